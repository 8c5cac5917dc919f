"""Benchmarks: ratios of one run."""
