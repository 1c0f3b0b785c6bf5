"""Generate the LLVM IR of one lowered function."""
