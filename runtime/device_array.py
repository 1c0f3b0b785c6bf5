"""An array in the memory of a device: shape, type and an allocation, which is freed when the array is gone."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tunesmith.runtime.arrays import nbytes, storage, storage_dtype
from tunesmith.runtime.cpu_device import host_memory
from tunesmith.runtime.device import Allocation, Device, DeviceLost
from tunesmith.support import dtype as dtypes
from tunesmith.support.errors import RunError


class DeviceArray:
    """Contiguous, row-major.  Copies go through the device's default stream, after what was started there.

    Attributes:
        shape: extents.
        dtype: a scalar type of `support.dtype`.
        allocation: the memory; it is the array's own.
    """

    __slots__ = ("__weakref__", "allocation", "dtype", "shape")

    def __init__(self, device: Device, shape: Sequence[int], dtype: str) -> None:
        """Memory of the device, with anything in it.  Raises RunError when there is none."""
        if dtypes.lanes(dtype) != 1:
            raise RunError(f"an array of {dtype}: arrays hold scalars, use {dtypes.element(dtype)}")
        self.shape, self.dtype = tuple([int(n) for n in shape]), dtype
        self.allocation: Allocation = device.api.allocate(device.index, nbytes(dtype, self.shape))
        # Not __del__: that may run when the interpreter has taken the device's API apart already.
        weakref.finalize(self, _free, self.allocation).atexit = False

    @staticmethod
    def from_numpy(device: Device, array: object, dtype: str | None = None) -> DeviceArray:
        """A copy of a host's array.

        Args:
            device: where.
            array: numpy, torch or any other DLPack array in CPU memory.
            dtype: what the elements are; numpy has no bfloat16, whose bits it holds as uint16.
        Raises:
            RunError: the array has another type, or the device has no room.
        """
        dtype = dtype or str(getattr(array, "dtype", "float32")).removeprefix("torch.")
        bits = dtype == "bfloat16" and isinstance(array, np.ndarray) and array.dtype == np.uint16
        host = array if bits and isinstance(array, np.ndarray) else storage(array, dtype)
        made = DeviceArray(device, host.shape, dtype)
        made.fill(host)
        return made

    @property
    def device(self) -> Device:
        """Where it lies."""
        return self.allocation.device

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.allocation.nbytes

    def fill(self, host: npt.NDArray[Any]) -> None:
        """Overwrite it with a numpy array of its shape and storage type.  Raises RunError when the array has others."""
        if host.shape != self.shape or host.dtype != storage_dtype(self.dtype):
            raise RunError(f"cannot fill {self} from an array of {host.dtype}{list(host.shape)}")
        api, index = self.device.api, self.device.index
        source = np.ascontiguousarray(host)
        api.copy(host_memory(source), self.allocation, self.nbytes)
        api.synchronise(index)  # the source may be gone when this returns

    def numpy(self) -> npt.NDArray[Any]:
        """A copy of its elements for the host; those of bfloat16 as uint16."""
        host = np.empty(self.shape, storage_dtype(self.dtype))
        self.device.api.copy(self.allocation, host_memory(host), self.nbytes)
        self.device.api.synchronise(self.device.index)
        return host

    def __repr__(self) -> str:
        return f"<{self.dtype}[{', '.join(map(str, self.shape))}] on {self.device}>"


def _free(allocation: Allocation) -> None:
    try:
        allocation.device.api.free(allocation)
    except DeviceLost:
        return  # its memory went with it, and whoever used the device last was told
