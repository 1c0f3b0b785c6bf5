"""Provide measurements as tables: record tables, splits, suites of workloads, and imported logs of other tuners."""
