"""Build tabular benchmarks from suites of workloads."""
