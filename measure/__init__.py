"""Build, run, time and record candidates, and compare them with baseline libraries."""
