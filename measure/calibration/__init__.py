"""Measure the peak rates of CPUs and GPUs, for cost models."""
