"""Generate LLVM IR and object code for CPUs."""
