"""What ``benchmarks.gpu_check`` asks of a GPU."""
