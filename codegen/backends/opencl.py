"""The backend of OpenCL devices: OpenCL C, compiled by the driver of the device."""

from __future__ import annotations

from dataclasses import replace

from tunesmith.codegen.backends.cuda import CUDA_BACKEND

OPENCL_BACKEND = replace(CUDA_BACKEND, kind="opencl", device="opencl", may_spill="", baselines={})
