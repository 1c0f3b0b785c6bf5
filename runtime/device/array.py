"""Represent arrays in device memory: a shape, a type and an allocation, which is freed with the array."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tunesmith.runtime import dlpack
from tunesmith.runtime.arrays import nbytes, storage, storage_dtype
from tunesmith.runtime.device.cpu import host_memory
from tunesmith.runtime.device.device import Allocation, Device, DeviceLost
from tunesmith.runtime.lazy_negation import is_negated, negation
from tunesmith.support import dtype as dtypes
from tunesmith.support.errors import RunError, UserError

ALIGNMENT = 16
"""In bytes: the widest access of a thread.  Kernels use it wherever shapes allow, so arguments must be aligned to it."""


class DeviceArray:
    """A contiguous, row-major array in device memory.  Copies are enqueued on the default stream of the device.

    DLPack libraries can import it without a copy (`torch.from_dlpack(array)`), and their arrays can be imported without a copy
    (`DeviceArray.from_dlpack(tensor)`); both arrays then share the memory.

    Attributes:
        shape: extents.
        dtype: a scalar type of `support.dtype`.
        allocation: the memory; owned by the array, unless it was imported by `from_dlpack`.
    """

    __slots__ = ("__weakref__", "_owner", "allocation", "dtype", "shape")

    def __init__(self, device: Device, shape: Sequence[int], dtype: str) -> None:
        """Allocate uninitialised device memory.  RunError if it cannot be allocated."""
        if dtypes.lanes(dtype) != 1:
            raise RunError(f"an array of {dtype}: arrays hold scalars, use {dtypes.element(dtype)}")
        self.shape, self.dtype = tuple([int(n) for n in shape]), dtype
        self._owner: object = None
        self.allocation: Allocation = device.api.allocate(device.index, nbytes(dtype, self.shape))
        # Not __del__, which may run at interpreter exit after the device API has been torn down.
        weakref.finalize(self, _free, self.allocation).atexit = False

    @staticmethod
    def from_numpy(device: Device, array: object, dtype: str | None = None) -> DeviceArray:
        """A copy of a host array.

        Args:
            device: the device of the copy.
            array: numpy, torch or any other DLPack array in CPU memory.
            dtype: element type; for bfloat16, which numpy does not have, an array of uint16 is accepted.
        Raises:
            RunError: the array has another type, or the device is out of memory.
        """
        dtype = dtype or str(getattr(array, "dtype", "float32")).removeprefix("torch.")
        bits = dtype == "bfloat16" and isinstance(array, np.ndarray) and array.dtype == np.uint16
        host = array if bits and isinstance(array, np.ndarray) else storage(array, dtype)
        made = DeviceArray(device, host.shape, dtype)
        made.fill(host)
        return made

    @staticmethod
    def from_dlpack(array: Any) -> DeviceArray:
        """Import an array of another library without a copy; both arrays share the memory.

        Args:
            array: has `__dlpack__` and `__dlpack_device__`; in memory of the host or of a CUDA device, contiguous and row-major.
        Raises:
            RunError: the array does not satisfy these conditions.
        """
        what = f"{type(array).__module__}.{type(array).__name__}".removeprefix("builtins.")
        if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
            raise RunError(f"from_dlpack takes arrays that support DLPack (numpy, torch, CuPy, JAX), not a {what}")
        if is_negated(array):
            raise negation("from_dlpack", array)
        kind, index = (int(x) for x in array.__dlpack_device__())
        kinds = {dlpack.CPU: "cpu", dlpack.CUDA: "cuda"}
        if kind not in kinds:
            raise RunError(f"a {what} on DLPack's device type {kind} cannot be taken over: copy it to the host or to a CUDA device first")
        try:
            # 1 is the CUDA default stream, on which DeviceArray copies run.
            view = dlpack.read(array, 1 if kind == dlpack.CUDA else None)
        except Exception as error:  # libraries raise exceptions of any type
            raise RunError(f"a {what} cannot be passed through DLPack: {error}") from error
        if not dlpack.contiguous(view.shape, view.strides):
            raise RunError(f"a {what} with strides {list(view.strides or ())} (in elements) is not contiguous and row-major: pass a copy")
        try:
            size = nbytes(view.dtype, view.shape)
        except (UserError, ValueError, KeyError) as error:
            raise RunError(f"a {what} of {view.dtype} cannot be taken over: {error}") from error
        if view.address % ALIGNMENT and size:
            raise RunError(f"a {what} at the address {view.address:#x}, which is not a multiple of {ALIGNMENT}: pass a copy")
        made = object.__new__(DeviceArray)
        made.shape, made.dtype, made._owner = view.shape, view.dtype, view
        made.allocation = Allocation(Device(kinds[kind], index), view.address, size)
        return made

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack device type and index."""
        return dlpack.KINDS[self.device.kind], self.device.index

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule of the array, for `from_dlpack` of another library.

        Waits for pending work on the default stream, unless `stream` is -1.

        Raises:
            BufferError: memory of this device cannot be exported, or is requested on another device.
        """
        if self.device.kind not in ("cpu", "cuda"):
            raise BufferError(f"memory of {self.device} cannot be passed through DLPack: copy it to the host with .numpy()")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"{self} is requested on DLPack device {tuple(dl_device)}: copy it to the host with .numpy()")
        given = self.copy() if copy else self
        if stream != -1:
            self.device.api.synchronise(self.device.index)
        versioned = max_version is not None and max_version[0] >= 1
        return dlpack.write(given.allocation.handle, self.__dlpack_device__(), self.dtype, self.shape, given, versioned)

    def view(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        """An array of another shape and type that shares the memory, from its start.  RunError if it needs more bytes."""
        made = object.__new__(DeviceArray)
        made.shape, made.dtype, made._owner, made.allocation = tuple([int(n) for n in shape]), dtype, self, self.allocation
        if nbytes(dtype, made.shape) > self.allocation.nbytes:
            raise RunError(f"{made} is no view of {self.allocation.nbytes} bytes")
        return made

    def copy(self) -> DeviceArray:
        """A copy in new memory of the same device."""
        made = DeviceArray(self.device, self.shape, self.dtype)
        self.device.api.copy(self.allocation, made.allocation, self.nbytes)
        return made

    @property
    def device(self) -> Device:
        """The device of the memory."""
        return self.allocation.device

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return nbytes(self.dtype, self.shape)

    def fill(self, host: npt.NDArray[Any]) -> None:
        """Overwrite the elements with a numpy array of the same shape and storage type.  RunError if they differ."""
        if host.shape != self.shape or host.dtype != storage_dtype(self.dtype):
            raise RunError(f"cannot fill {self} from an array of {host.dtype}{list(host.shape)}")
        api, index = self.device.api, self.device.index
        source = np.ascontiguousarray(host)
        api.copy(host_memory(source), self.allocation, self.nbytes)
        api.synchronise(index)  # the source may be freed after this returns

    def numpy(self) -> npt.NDArray[Any]:
        """A host copy of the elements; bfloat16 as uint16."""
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
        return  # its memory is lost too, and the call that lost the device has reported it
