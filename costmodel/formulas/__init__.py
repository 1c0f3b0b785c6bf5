"""Evaluate formulas over the parameters of a sketch for many configurations at once."""
