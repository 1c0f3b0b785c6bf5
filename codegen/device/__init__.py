"""Build and export programs for GPU devices."""
