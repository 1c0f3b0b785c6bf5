"""Measure what searches cost: their seconds, their trials, and what a budget of either buys."""
