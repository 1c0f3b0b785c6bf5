"""Devices, arrays on them, and the modules that run there."""
