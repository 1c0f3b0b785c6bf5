"""Print lowered functions as C-like kernels for GPUs."""
