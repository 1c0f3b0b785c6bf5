"""Backends: one manifest for each kind of target that code is generated for."""
