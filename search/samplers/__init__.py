"""Samplers: strategies that propose candidates."""
