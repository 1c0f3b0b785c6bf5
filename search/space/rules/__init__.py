"""Sketch rules, one per file.  A rule maps a function to named schedules; refused schedules are skipped."""
