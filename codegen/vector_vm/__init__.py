"""Compile formulas over arrays of candidates to vector code."""
