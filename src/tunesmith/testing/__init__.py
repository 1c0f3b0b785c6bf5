"""Conformance suites for implementations of the public interfaces, and generators of test cases."""
