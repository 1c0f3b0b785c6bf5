"""Predict times from roofline-like models of CPUs and GPUs."""
