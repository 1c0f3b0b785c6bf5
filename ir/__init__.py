"""Rank 1: expressions, statements, functions, targets; their text, their equality, their interpreter."""
