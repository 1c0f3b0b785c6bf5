"""One extension of every kind: what docs/extending.md walks through."""
