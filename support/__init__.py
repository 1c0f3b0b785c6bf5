"""Layer 0: utilities shared by packages that may not import each other."""
