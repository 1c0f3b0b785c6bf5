"""One file per primitive (or per tight family)."""
