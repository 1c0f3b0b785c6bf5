"""Fuzz the importer of PyTorch models."""
