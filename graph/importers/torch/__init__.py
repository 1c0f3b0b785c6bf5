"""Import PyTorch models."""
