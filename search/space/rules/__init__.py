"""Sketch rules, one per file.  A rule maps a function to named schedules; schedules with a refused step are skipped."""
