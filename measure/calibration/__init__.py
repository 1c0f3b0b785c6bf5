"""Measure the rates of CPUs and GPUs, for cost models."""
