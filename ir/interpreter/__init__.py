"""Run functions in Python: the reference that compiled code is compared with."""
