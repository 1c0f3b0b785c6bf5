"""Measure tunesmith over its history: benchmarks for airspeed velocity, whose loader needs this file."""
