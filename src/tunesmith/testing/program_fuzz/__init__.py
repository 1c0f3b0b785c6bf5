"""Fuzz programs and schedules differentially: random programs, random primitives in any order, three independent oracles."""
