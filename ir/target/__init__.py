"""Describe the machine that code is generated for."""
