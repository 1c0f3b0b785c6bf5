"""Print lowered functions as C: kernels of CUDA C and OpenCL C here, C11 for CPUs in `host`."""
