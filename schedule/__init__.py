"""Rank 2: scheduling primitives, traces, and the two modes, concrete and parametric."""
