"""Calls that torch's fused kernels know whole: all of the sdpa path, and most keys of the decode path."""
