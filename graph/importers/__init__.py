"""Import models from other frameworks."""
