"""Generate machine code from lowered programs: LLVM, C, CUDA C and OpenCL C kernels, host entry points, linking."""
