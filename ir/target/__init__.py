"""Describe the machine that code is generated for: attributes, defaults, tables of processors and cards, detection."""
