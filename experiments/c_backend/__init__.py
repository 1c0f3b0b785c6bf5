"""Compare C with LLVM for the functions of a model."""
