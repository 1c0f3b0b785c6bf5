"""Emit programs of executors from lowered graph functions."""
