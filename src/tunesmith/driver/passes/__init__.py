"""Passes that need the drivers."""
