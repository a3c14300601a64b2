"""Kernels on a GPU: compiled by NVRTC, kept on disk, launched by CuPy."""
