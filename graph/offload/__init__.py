"""Offload parts of graphs to external code generators; a BLAS is built in."""
