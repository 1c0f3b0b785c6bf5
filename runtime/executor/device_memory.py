"""Hold the memory of a program on one device, and copy between host and devices."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tunesmith.runtime.arrays import nbytes, storage_dtype
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.cpu import host_memory
from tunesmith.runtime.device.device import Allocation, Device
from tunesmith.support.errors import RunError

Array = np.ndarray | DeviceArray
"""An array of the host, as numpy stores it, or of a device."""
HOST = "cpu"
"""The kind of device of host memory."""


class DeviceConstants:
    """The constants of a model on one device, each of which is uploaded at its first use.

    Args:
        device: the device.
        constants: storage of the constants on the host.
    """

    def __init__(self, device: Device, constants: Sequence[np.ndarray]) -> None:
        self.device = device
        self._host = constants
        self._uploaded: dict[int, DeviceArray] = {}

    def array(self, number: int, dtype: str) -> DeviceArray:
        """A constant on the device."""
        if number not in self._uploaded:
            self._uploaded[number] = DeviceArray.from_numpy(self.device, np.ascontiguousarray(self._host[number]), dtype)
        return self._uploaded[number]


class DeviceMemory:
    """Memory of a program on one device: buffers, constants, and copies of arrays of the host.

    Args:
        buffers: sizes of the buffers in bytes.
        constants: the constants on the device.
    """

    def __init__(self, buffers: Sequence[int], constants: DeviceConstants) -> None:
        self.device = constants.device
        self._buffers = [DeviceArray(self.device, (n,), "uint8") for n in buffers]
        self._constants = constants
        self._staging: dict[tuple[str, int], DeviceArray] = {}
        self._event: int | None = None
        """The end of the last run on a stream other than the default one, which may be freed before the next run."""

    def buffer(self, number: int, shape: Sequence[int], dtype: str) -> DeviceArray:
        """A tensor at the start of a buffer.  RunError if it exceeds the buffer."""
        return self._buffers[number].view(shape, dtype)

    def constant(self, number: int, shape: Sequence[int], dtype: str) -> DeviceArray:
        """A constant on the device."""
        return self._constants.array(number, dtype).view(shape, dtype)

    def staging(self, storage: str, number: int, shape: Sequence[int], dtype: str) -> DeviceArray:
        """The copy on the device of an input or output in host memory."""
        size = nbytes(dtype, shape)
        found = self._staging.get((storage, number))
        if found is None or found.nbytes < size:
            found = self._staging[storage, number] = DeviceArray(self.device, (size,), "uint8")
        return found.view(shape, dtype)

    def wait(self) -> None:
        """Wait for the work on the current stream."""
        self.device.api.synchronise(self.device.index, self.stream)

    def mark(self) -> None:
        """Remember that the work of a run ends here on the current stream."""
        api, index, stream = self.device.api, self.device.index, self.stream
        if stream:
            if self._event is None:
                self._event = api.create_event(index)
                weakref.finalize(self, _free_event, self.device, self._event)
            api.record_event(index, self._event, stream)

    def follow(self, old: int, new: int) -> None:
        """Let later work on the stream `new` wait for the last run, which was on the stream `old`: both use the same memory."""
        if not old:
            self.device.api.sync_streams(self.device.index, old, new)
        elif self._event is not None:
            self.device.api.wait_event(self.device.index, self._event, new)

    @property
    def stream(self) -> int:
        """The current stream of the device in this thread."""
        return self.device.api.current_stream(self.device.index)

    def seconds(self, call: Callable[[], object]) -> float:
        """Run a call, and return its time on the device between two events."""
        api, index, stream = self.device.api, self.device.index, self.stream
        start, stop = api.create_event(index), api.create_event(index)
        try:
            api.record_event(index, start, stream)
            call()
            api.record_event(index, stop, stream)
            return api.elapsed(index, start, stop)
        finally:
            for event in (start, stop):
                api.free_event(index, event)


def _free_event(device: Device, event: int) -> None:
    with contextlib.suppress(Exception):  # the device may be lost, or the interpreter may shut down
        device.api.free_event(device.index, event)


def kind_of_memory(array: Array) -> str:
    """The kind of device that holds an array."""
    return array.device.kind if isinstance(array, DeviceArray) else HOST


def new_array(shape: Sequence[int], dtype: str, device: str) -> Array:
    """An array whose elements are undefined.  RunError if there is no memory for it."""
    try:
        return np.empty(shape, storage_dtype(dtype)) if device == HOST else DeviceArray(Device(device), shape, dtype)
    except (MemoryError, ValueError) as error:
        raise RunError(f"there is no memory for an output of shape {list(shape)}: {error}") from error


def copier(source: Array, target: Array, wait: bool) -> Callable[[], None]:
    """A function that copies the elements of an array to one of the same size in bytes.

    Args:
        source: the array that is read.
        target: the array that is written; at least one of the two is on a device.
        wait: whether the copy is complete when the function returns.  Otherwise it is ordered on the current stream of the device.
    """
    devices = [a.device for a in (source, target) if isinstance(a, DeviceArray)]
    size = min(a.nbytes if isinstance(a, np.ndarray) else nbytes(a.dtype, a.shape) for a in (source, target))
    if len(set(devices)) > 1:
        host = np.empty(size, np.uint8)
        return partial(_in_turn, copier(source, host, True), copier(host, target, True))
    return partial(_copy, devices[0], _memory(source), _memory(target), size, wait)


def _copy(device: Device, source: Allocation, target: Allocation, size: int, wait: bool) -> None:
    api, index = device.api, device.index
    stream = api.current_stream(index)
    api.copy(source, target, size, stream=stream)
    if wait:
        api.synchronise(index, stream)


def _in_turn(*calls: Callable[[], None]) -> None:
    for call in calls:
        call()


def _memory(array: Array) -> Allocation:
    return array.allocation if isinstance(array, DeviceArray) else host_memory(array)
