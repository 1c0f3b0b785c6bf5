"""Graph passes: one file each, functions from modules to modules."""
