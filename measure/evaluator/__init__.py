"""Run and time candidates on CPUs and devices."""
