"""Lower a concrete scheduled program to loops, vectors and flat memory by a list of passes."""
