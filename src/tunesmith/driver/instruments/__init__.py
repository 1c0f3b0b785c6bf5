"""Instruments that dump, time, compare, verify and print programs between passes."""
