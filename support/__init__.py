"""Rank 0: what two rooms that may not import each other both need."""
