"""Calls inside compilers, transformations of functions and autocast."""
