"""Measure how many candidates a Ray cluster builds and runs."""
