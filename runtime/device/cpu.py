"""Implement the device API for the CPU: aligned memory, synchronous copies, events that are clock readings."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tunesmith.runtime import dlpack
from tunesmith.runtime.device.device import Allocation, Device, DeviceAttributes, check_copy
from tunesmith.runtime.device.workspace_pool import PooledWorkspaces
from tunesmith.support.errors import RunError

_LIBC = ctypes.CDLL(None)
_LIBC.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
_LIBC.posix_memalign.restype = ctypes.c_int
_LIBC.free.argtypes = [ctypes.c_void_p]
_LIBC.free.restype = None

_LINE = 64
"""Alignment of workspaces: a cache line, and the widest vector."""


class CpuDeviceAPI(PooledWorkspaces):
    """The CPU as a device.  All work runs in the calling thread, so that streams are only numbers and nothing is asynchronous."""

    kind = "cpu"
    dlpack_type = dlpack.CPU

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._live: set[int] = set()
        self._numbers = count(1)
        self._streams: set[int] = {0}
        self._events: dict[int, float | None] = {}

    def count(self) -> int:
        return 1

    def attributes(self, index: int) -> DeviceAttributes:
        self._device(index)
        memory = _table(Path("/proc/meminfo"))
        clock = _number(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"))
        return DeviceAttributes(
            name=_table(Path("/proc/cpuinfo")).get("model name") or platform.processor() or None,
            compute_units=len(os.sched_getaffinity(0)),
            clock_hz=None if clock is None else clock * 1000,
            memory_bytes=_kilobytes(memory.get("MemTotal")),
            free_memory_bytes=_kilobytes(memory.get("MemAvailable")),
            l2_cache_bytes=_number(Path("/sys/devices/system/cpu/cpu0/cache/index2/size")),
        )

    def allocate(self, index: int, nbytes: int, alignment: int = _LINE) -> Allocation:
        device = self._device(index)
        if nbytes < 0:
            raise RunError(f"cannot allocate {nbytes} bytes on {device}")
        if alignment < 8 or alignment & (alignment - 1):
            raise RunError(f"cannot align memory on {device} to {alignment} bytes: it must be a power of two, at least 8")
        address = ctypes.c_void_p()
        # At least one byte, so that every allocation has a unique address.
        if _LIBC.posix_memalign(ctypes.byref(address), alignment, max(1, nbytes)) != 0 or address.value is None:
            raise RunError(f"out of memory: {nbytes} bytes on {device}")
        with self._lock:
            self._live.add(address.value)
        return Allocation(device, address.value, nbytes)

    def free(self, allocation: Allocation) -> None:
        self._refuse_workspace(allocation)
        self._forget(allocation)
        _LIBC.free(allocation.handle)

    def copy(
        self, source: Allocation, target: Allocation, nbytes: int, source_offset: int = 0, target_offset: int = 0, stream: int = 0
    ) -> None:
        check_copy(source, target, nbytes, source_offset, target_offset)
        for allocation in (source, target):
            if allocation.device.kind != self.kind:
                raise RunError(f"the CPU cannot reach memory of {allocation.device}: copy through its own API, {allocation.device}.api")
        self._stream(stream)
        ctypes.memmove(target.handle + target_offset, source.handle + source_offset, nbytes)

    def check_stream(self, index: int, stream: int) -> None:
        self._device(index)
        self._stream(stream)

    def create_stream(self, index: int) -> int:
        self._device(index)
        stream = next(self._numbers)
        with self._lock:
            self._streams.add(stream)
        return stream

    def free_stream(self, index: int, stream: int) -> None:
        self._device(index)
        self._stream(stream)
        if stream == 0:
            raise RunError("the default stream cannot be dropped")
        self._release_workspaces_of(index, stream)
        self._leave_stream(index, stream)
        with self._lock:
            self._streams.remove(stream)

    def synchronise(self, index: int, stream: int = 0) -> None:
        self._device(index)
        self._stream(stream)

    def create_event(self, index: int) -> int:
        self._device(index)
        event = next(self._numbers)
        with self._lock:
            self._events[event] = None
        return event

    def record_event(self, index: int, event: int, stream: int = 0) -> None:
        self._device(index)
        self._stream(stream)
        if event not in self._events:
            raise RunError(f"{event} is no event of {self.kind}({index}), or was dropped")
        self._events[event] = time.perf_counter()

    def wait_event(self, index: int, event: int, stream: int = 0) -> None:
        self._device(index)
        self._stream(stream)
        if event not in self._events:
            raise RunError(f"{event} is no event of {self.kind}({index}), or was dropped")
        if self._events[event] is None:
            raise RunError(f"event {event} of {self.kind}({index}) was never recorded: record it before a stream waits for it")

    def elapsed(self, index: int, start: int, stop: int) -> float:
        self._device(index)
        first, last = self._events.get(start), self._events.get(stop)
        if first is None or last is None:
            raise RunError(f"event {start if first is None else stop} of {self.kind}({index}) was never recorded: record both marks first")
        return last - first

    def free_event(self, index: int, event: int) -> None:
        self._device(index)
        if self._events.pop(event, False) is False:
            raise RunError(f"{event} is no event of {self.kind}({index}), or was dropped before")

    def load_code(self, index: int, code: bytes, options: str = "") -> int:
        raise self._no_kernels(index)

    def unload_code(self, index: int, code: int) -> None:
        raise self._no_kernels(index)

    def launch(
        self,
        index: int,
        code: int,
        kernel: str,
        arguments: Sequence[Allocation],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int = 0,
        stream: int = 0,
    ) -> None:
        raise self._no_kernels(index)

    def _no_kernels(self, index: int) -> RunError:
        return RunError(
            f"{self._device(index)} runs functions and no kernels: load compiled code with tunesmith.runtime.module, "
            "Module.from_object(code) or load_module(path)"
        )

    def _device(self, index: int) -> Device:
        if index != 0:
            raise RunError(f"there is no {self.kind}({index}): the processor is one device, {self.kind}(0)")
        return Device(self.kind, index)

    def _stream(self, stream: int) -> None:
        if stream not in self._streams:
            raise RunError(f"{stream} is no stream of {self.kind}(0), or was dropped")

    def _forget(self, allocation: Allocation) -> None:
        with self._lock:
            if allocation.device.kind != self.kind or allocation.handle not in self._live:
                raise RunError(
                    f"{allocation.nbytes} bytes at {allocation.handle:#x} are not memory of {self.kind}(0), or were freed before"
                )
            self._live.remove(allocation.handle)


CPU = CpuDeviceAPI()
"""The device API of kind "cpu"."""


def host_memory(array: npt.NDArray[Any]) -> Allocation:
    """The memory of a numpy array, for copies from and to it; valid while the array exists.

    Raises:
        RunError: the array is not contiguous.
    """
    if not array.flags.c_contiguous:
        raise RunError(f"an array with strides {array.strides} of shape {array.shape} is not contiguous: pass numpy.ascontiguousarray(a)")
    return Allocation(Device("cpu", 0), array.ctypes.data, array.nbytes)


def _table(path: Path) -> dict[str, str]:
    """First value of each `key : value` line; empty if the file does not exist."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        key, separator, value = line.partition(":")
        if separator:
            found.setdefault(key.strip(), value.strip())
    return found


def _kilobytes(text: str | None) -> int | None:
    """`16384 kB` in bytes."""
    return int(text.split()[0]) * 1024 if text else None


def _number(path: Path) -> int | None:
    """The number in a file of /sys, `2048K` in bytes; None if it cannot be read."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
    digits = text.rstrip("KM")
    return int(digits) * scale if digits.isdigit() else None
