"""Compute features of configurations from parametric programs."""
