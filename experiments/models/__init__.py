"""Compile whole models and compare them with other systems."""
