"""External code generators: the interface, and BLAS."""
