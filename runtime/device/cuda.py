"""CUDA: NVIDIA GPUs, through cuda-bindings or PyCUDA.

Work goes to the primary context of a device, the one that torch, CuPy and JAX use too: their memory and streams are ours and ours theirs.
Which package drives is chosen by the environment variable TUNESMITH_CUDA_DRIVER, `cuda-core` or `pycuda`, when the first device is asked
for.
"""

from __future__ import annotations

import os
from typing import cast

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
"""What it may say."""


class CudaDeviceAPI(DriverDeviceAPI):
    """NVIDIA GPUs."""

    def __init__(self) -> None:
        super().__init__("cuda", _chosen)


def _chosen() -> Driver:
    name = os.environ.get(CHOICE) or "cuda-core"
    if name not in DRIVERS:
        raise UserError(f"{CHOICE}={name} names no driver of CUDA devices. Set it to one of: {', '.join(DRIVERS)}")
    return cast(type[Driver], resolve(DRIVERS[name]))()


CUDA = CudaDeviceAPI()
"""The one API of kind "cuda"."""
