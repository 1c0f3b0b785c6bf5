"""Rank 8: spaces and their rules, samplers, the tuner."""
