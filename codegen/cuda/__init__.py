"""Compile CUDA C, and generate host code that launches its kernels."""
