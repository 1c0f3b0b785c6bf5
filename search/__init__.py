"""Layer 8: search spaces and their rules, samplers, the tuner and the task scheduler."""
