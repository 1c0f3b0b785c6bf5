"""Print lowered functions as CUDA C and OpenCL C kernels."""
