"""Benchmarks: every bar of the design, measured side by side. Run ``python -m benchmarks``."""
