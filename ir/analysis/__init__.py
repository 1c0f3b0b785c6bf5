"""Analyse programs: accesses, footprints, dependences, bounds, work."""
