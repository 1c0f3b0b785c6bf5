"""Represent graph functions as data: nodes, operators, script, verifier and interpreter."""
