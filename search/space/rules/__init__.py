"""Sketch rules, one file each.  A rule looks at a function and gives named schedules; a structure that a step refuses is left out."""
