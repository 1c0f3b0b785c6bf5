"""Measurements as tables: record tables, splits, suites of workloads, and logs of other systems."""
