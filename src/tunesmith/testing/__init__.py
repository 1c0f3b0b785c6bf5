"""Conformance suites: what every implementation of a contract must do, as tests that others run on theirs."""
