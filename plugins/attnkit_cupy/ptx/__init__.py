"""An interpreter of PTX, for tests: what NVRTC made of a kernel, inline assembly included, runs on NumPy."""
