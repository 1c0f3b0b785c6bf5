"""Rank 3: passes that turn a concrete scheduled program into loops, vectors and flat memory."""
