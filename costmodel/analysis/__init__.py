"""Analyse the loops, accesses and kernels of parametric programs."""
