"""Replay searches on tabular benchmarks, without hardware."""
