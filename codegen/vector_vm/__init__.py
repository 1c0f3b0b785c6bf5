"""Evaluate expression graphs over arrays of configurations with vector code."""
