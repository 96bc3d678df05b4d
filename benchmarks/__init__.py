"""Measurements: `python -m benchmarks.soak`."""
