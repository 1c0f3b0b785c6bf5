"""Training sets, metrics and evaluation of cost models."""
