"""Run studies: configurations, ablations, statistics and reports."""
