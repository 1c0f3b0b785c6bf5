"""Dump programs, schedules and records of TVM, which the tests of tunesmith read without TVM."""
