"""Interval arithmetic and simplification of index expressions."""
