"""Tune, compile, replay, benchmark and inspect: the functions that users call."""
