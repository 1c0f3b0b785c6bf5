"""Formulas over the parameters of a sketch, evaluated for many candidates at once."""
