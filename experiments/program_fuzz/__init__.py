"""Fuzz programs and schedules."""
