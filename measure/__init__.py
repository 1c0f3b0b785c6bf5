"""Rank 5: building, running, timing and recording candidates, and the libraries they are compared with."""
