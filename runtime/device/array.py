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
from tunesmith.runtime.device.device import DEVICES, Allocation, Device, DeviceLost, cpu
from tunesmith.runtime.dlpack import TensorView
from tunesmith.runtime.lazy_negation import is_negated, negation
from tunesmith.support import dtype as dtypes
from tunesmith.support.errors import RunError, UserError

ALIGNMENT = 16
"""In bytes: the widest access of a thread.  Kernels use it wherever shapes allow, so arguments must be aligned to it."""


class DeviceArray:
    """A contiguous, row-major array in device memory.  Copies are enqueued on the current stream of the device in the calling thread.

    DLPack libraries can import it without a copy (`torch.from_dlpack(array)`), and their arrays can be imported without a copy
    (`DeviceArray.from_dlpack(tensor)`); both arrays then share the memory, and each keeps it alive.

    Attributes:
        shape: extents.
        dtype: a scalar type of `support.dtype`.
        allocation: the memory; owned by the array, unless it was imported by `from_dlpack`.
        read_only: the elements must not be written: the array was imported from a read-only one.
    """

    __slots__ = ("__weakref__", "_owner", "allocation", "dtype", "read_only", "shape")

    def __init__(self, device: Device, shape: Sequence[int], dtype: str) -> None:
        """Allocate uninitialised device memory.  RunError if it cannot be allocated."""
        if dtypes.lanes(dtype) != 1:
            raise RunError(f"an array of {dtype}: arrays hold scalars, use {dtypes.element(dtype)}")
        self.shape, self.dtype = tuple([int(n) for n in shape]), dtype
        self.read_only = False
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
            array: has `__dlpack__` and `__dlpack_device__`; in memory of a device kind that exchanges memory, contiguous and row-major.
        Raises:
            RunError: the array does not satisfy these conditions.
        """
        what = f"{type(array).__module__}.{type(array).__name__}".removeprefix("builtins.")
        if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
            raise RunError(f"from_dlpack takes arrays that support DLPack (numpy, torch, CuPy, JAX), not a {what}")
        if is_negated(array):
            raise negation("from_dlpack", array)
        number, index = (int(x) for x in array.__dlpack_device__())
        kind = _kind_of(number)
        if kind is None:
            raise RunError(f"a {what} on DLPack's device type {number} cannot be taken over: copy it to the host or to a CUDA device first")
        device = Device(kind, index)
        try:
            # 1 is the CUDA default stream, after which the current stream is ordered.
            view = dlpack.read(array, 1 if number == dlpack.CUDA else None)
        except Exception as error:  # libraries raise exceptions of any type
            raise RunError(f"a {what} cannot be passed through DLPack: {error}") from error
        made = DeviceArray.of_view(device, view, what)
        current = device.api.current_stream(index)
        if current and number == dlpack.CUDA:
            device.api.sync_streams(index, 0, current)
        return made

    @staticmethod
    def of_view(device: Device, view: TensorView, what: str = "tensor") -> DeviceArray:
        """An array that shares the memory of a view on its device, and keeps its owner alive.

        Args:
            device: the device of the memory.
            view: the array as DLPack describes it.
            what: its type, for messages.
        Raises:
            RunError: it is not contiguous, misaligned, of an unknown element type, or its memory cannot be imported.
        """
        if not dlpack.contiguous(view.shape, view.strides):
            raise RunError(f"a {what} with strides {list(view.strides or ())} (in elements) is not contiguous and row-major: pass a copy")
        try:
            size = nbytes(view.dtype, view.shape)
        except (UserError, ValueError, KeyError) as error:
            raise RunError(f"a {what} of {view.dtype} cannot be taken over: {error}") from error
        if device.api.has_addresses and view.address % ALIGNMENT and size:
            raise RunError(f"a {what} at the address {view.address:#x}, which is not a multiple of {ALIGNMENT}: pass a copy")
        if view.offset:
            raise RunError(f"a {what} that starts {view.offset} bytes into memory without addresses cannot be taken over: pass a copy")
        if size and not view.address:
            raise RunError(f"a {what} of {size} bytes at a null pointer cannot be taken over")
        made = object.__new__(DeviceArray)
        made.shape, made.dtype, made.read_only, made._owner = view.shape, view.dtype, view.read_only, view
        made.allocation = device.api.foreign_memory(device.index, view.address, size)
        weakref.finalize(made, _drop, made.allocation).atexit = False
        return made

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack device type and index.  BufferError if memory of this kind of device cannot be exchanged."""
        if self.device.api.dlpack_type is None:
            raise BufferError(f"memory of {self.device} cannot be passed through DLPack: copy it to the host with .numpy()")
        return self.device.api.dlpack_type, self.device.index

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule of the array, for `from_dlpack` of another library.

        Waits for pending work on the current stream, unless `stream` is -1.

        Args:
            stream: the consumer's stream; the array is ready on all streams, except with -1.
            max_version: the latest version that the consumer reads; before 1.0 there is no flag for read-only arrays.
            dl_device: the device of the result: that of the array, or the host.
            copy: whether the result must be a copy, must not be one, or may be (None).
        Raises:
            BufferError: memory of this device cannot be exported, or is requested on another device; or the array is read-only, and the
                protocol cannot say so.
        """
        here = self.__dlpack_device__()
        wanted = here if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        if wanted not in (here, (dlpack.CPU, 0)):
            raise BufferError(f"{self} is requested on DLPack device {wanted}: copy it to the host with .numpy()")
        if wanted != here and copy is False:
            raise BufferError(f"{self} is requested on the host without a copy, and its memory is not there: allow a copy")
        versioned = max_version is not None and max_version[0] >= 1
        copied = bool(copy) or wanted != here
        if self.read_only and not versioned and not copied:
            raise BufferError(f"{self} is read-only, which DLPack before 1.0 cannot say: use a consumer of DLPack 1.0, or a copy")
        given = self._copied(cpu() if wanted != here else self.device) if copied else self
        if stream != -1 or copied:
            self._wait()
        flags = dlpack.IS_COPY if copied else dlpack.READ_ONLY if self.read_only else 0
        data = given.device.api.export_memory(given.allocation)
        return dlpack.write(data, wanted, self.dtype, self.shape, given, versioned, flags)

    def view(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        """An array of another shape and type that shares the memory, from its start.  RunError if it needs more bytes."""
        made = object.__new__(DeviceArray)
        made.shape, made.dtype, made.read_only = tuple([int(n) for n in shape]), dtype, self.read_only
        made._owner, made.allocation = self, self.allocation
        if nbytes(dtype, made.shape) > self.allocation.nbytes:
            raise RunError(f"{made} is no view of {self.allocation.nbytes} bytes")
        return made

    def copy(self) -> DeviceArray:
        """A copy in new memory of the same device."""
        return self._copied(self.device)

    def _copied(self, device: Device) -> DeviceArray:
        made = DeviceArray(device, self.shape, self.dtype)
        self._copy(self.allocation, made.allocation)
        return made

    def _copy(self, source: Allocation, target: Allocation) -> None:
        """Enqueue a copy from or to this array on the current stream."""
        api, index = self.device.api, self.device.index
        api.copy(source, target, self.nbytes, stream=api.current_stream(index))

    def _wait(self) -> None:
        api, index = self.device.api, self.device.index
        api.synchronise(index, api.current_stream(index))

    @property
    def device(self) -> Device:
        """The device of the memory."""
        return self.allocation.device

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return nbytes(self.dtype, self.shape)

    def fill(self, host: npt.NDArray[Any]) -> None:
        """Overwrite the elements with a numpy array of the same shape and storage type.

        Raises:
            RunError: shape or type differ, or the array is read-only.
        """
        if self.read_only:
            raise RunError(f"cannot fill {self}: it shares the memory of a read-only array. Make a copy with DeviceArray.from_numpy")
        if host.shape != self.shape or host.dtype != storage_dtype(self.dtype):
            raise RunError(f"cannot fill {self} from an array of {host.dtype}{list(host.shape)}")
        source = np.ascontiguousarray(host)
        self._copy(host_memory(source), self.allocation)
        self._wait()  # the source may be freed after this returns

    def numpy(self) -> npt.NDArray[Any]:
        """A host copy of the elements; bfloat16 as uint16."""
        host = np.empty(self.shape, storage_dtype(self.dtype))
        self._copy(self.allocation, host_memory(host))
        self._wait()
        return host

    def __repr__(self) -> str:
        return f"<{self.dtype}[{', '.join(map(str, self.shape))}] on {self.device}>"


def _kind_of(number: int) -> str | None:
    """The kind of device whose memory has a DLPack device type; None if there is none."""
    known = {dlpack.CPU: "cpu", dlpack.CUDA: "cuda", dlpack.OPENCL: "opencl"}
    return known.get(number) or next((kind for kind in DEVICES if DEVICES.get(kind).dlpack_type == number), None)


def _free(allocation: Allocation) -> None:
    try:
        allocation.device.api.free(allocation)
    except DeviceLost:
        return  # its memory is lost too, and the call that lost the device has reported it


def _drop(allocation: Allocation) -> None:
    try:
        allocation.device.api.drop_foreign_memory(allocation)
    except DeviceLost:
        return
