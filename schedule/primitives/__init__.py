"""Scheduling primitives: one file for each primitive, or for a family that shares its checks."""
