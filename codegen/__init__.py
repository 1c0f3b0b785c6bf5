"""Rank 4: machine code from lowered programs: LLVM, C, CUDA C and OpenCL C, host entry points, linking."""
