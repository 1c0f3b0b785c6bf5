"""Compute features of candidates from parametric programs."""
