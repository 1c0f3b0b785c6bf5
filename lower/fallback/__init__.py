"""Schedules for functions that have no record."""
