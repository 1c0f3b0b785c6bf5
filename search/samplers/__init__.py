"""Samplers: search strategies that propose candidates."""
