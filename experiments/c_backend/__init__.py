"""Compare the C backend with LLVM on whole models."""
