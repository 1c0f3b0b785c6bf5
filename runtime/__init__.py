"""Rank 1: devices, compiled modules, threads and timing: what a deployed program needs.  Knows no IR."""
