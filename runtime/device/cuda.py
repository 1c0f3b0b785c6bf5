"""Provide CUDA devices (NVIDIA GPUs) through cuda-bindings or PyCUDA.

All work uses the primary context of a device, as in torch, CuPy and JAX, so that memory and streams can be shared with them.  The
environment variable TUNESMITH_CUDA_DRIVER, `cuda-core` or `pycuda`, selects the package when the first device is used.
"""

from __future__ import annotations

import os
from typing import cast

from tunesmith.runtime import dlpack
from tunesmith.runtime.device.driver import Driver
from tunesmith.runtime.device.driver_backed import DriverDeviceAPI
from tunesmith.support.errors import UserError
from tunesmith.support.registry import resolve

CHOICE = "TUNESMITH_CUDA_DRIVER"
"""The environment variable."""

DRIVERS = {
    "cuda-core": "tunesmith.runtime.device.cuda_core_driver:CudaCoreDriver",
    "pycuda": "tunesmith.runtime.device.cuda_pycuda_driver:PyCudaDriver",
}
"""Value of the environment variable -> driver."""


class CudaDeviceAPI(DriverDeviceAPI):
    """NVIDIA GPUs."""

    dlpack_type = dlpack.CUDA

    def __init__(self) -> None:
        super().__init__("cuda", _chosen)


def _chosen() -> Driver:
    name = os.environ.get(CHOICE) or "cuda-core"
    if name not in DRIVERS:
        raise UserError(f"{CHOICE}={name} names no driver of CUDA devices. Set it to one of: {', '.join(DRIVERS)}")
    return cast(type[Driver], resolve(DRIVERS[name]))()


CUDA = CudaDeviceAPI()
"""The device API of kind "cuda"."""
