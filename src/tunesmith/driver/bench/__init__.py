"""Benchmark tuned functions against vendor libraries."""
