"""Check the arguments of calls before compiled code runs."""
