"""Differential fuzzing of programs and schedules: random programs, any primitive in any order, three independent oracles."""
