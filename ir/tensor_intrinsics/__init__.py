"""Tensor intrinsics: instructions that compute a small loop nest."""
