"""Search spaces: sketches, their parameters and constraints."""
