"""Implement DeviceAPI on top of a driver: handles for driver objects, and checks before each call.

This is the common part of OpenCL and CUDA; `runtime.device.driver` defines the part that differs between libraries.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Generic, TypeVar

from tunesmith.runtime.device.device import Allocation, Device, DeviceAttributes, DeviceLost, KernelLaunch, check_copy
from tunesmith.runtime.device.driver import Driver, DriverError, PreparedLaunch
from tunesmith.runtime.device.program import Dim3
from tunesmith.runtime.device.workspace_pool import PooledWorkspaces
from tunesmith.support.errors import RunError

T = TypeVar("T")

_EXTENT_LIMIT = (1 << 31) - 1
"""Largest extent of a grid or block; larger ones overflow the integers of the libraries."""


class Handles(Generic[T]):
    """Integer handles for objects of one kind.  Thread safe: each method is one dictionary operation."""

    def __init__(self, kind: str, what: str) -> None:
        self._kind, self._what = kind, what
        self._objects: dict[int, tuple[int, T]] = {}
        self._numbers = count(1)

    def add(self, index: int, obj: T) -> int:
        """Add an object of a device and return its handle."""
        number = next(self._numbers)
        self._objects[number] = (index, obj)
        return number

    def get(self, index: int, number: int) -> T:
        """The object of a handle.  RunError if it does not exist, or belongs to another device."""
        owner, obj = self._objects.get(number, (-1, None))
        if owner != index:
            raise self._unknown(index, number)
        return obj  # type: ignore[return-value]

    def replace(self, index: int, number: int, obj: T) -> None:
        """Replace the object of a handle."""
        self.get(index, number)
        self._objects[number] = (index, obj)

    def take(self, index: int, number: int) -> T:
        """Remove a handle and return its object."""
        self.get(index, number)
        found = self._objects.pop(number, None)
        if found is None:  # removed meanwhile by another thread
            raise self._unknown(index, number)
        return found[1]

    def _unknown(self, index: int, number: int) -> RunError:
        return RunError(f"{number} is no {self._what} of {self._kind}({index}), or was dropped before")


class DriverDeviceAPI(PooledWorkspaces):
    """Device API of one kind, based on a driver.

    Args:
        kind: as in `Device.kind`.
        make_driver: creates the driver; called when the first device is used.
    """

    def __init__(self, kind: str, make_driver: Callable[[], Driver]) -> None:
        super().__init__()
        self.kind = kind
        self._make_driver = make_driver
        self._driver: Driver | None = None
        self._driver_lock = threading.Lock()
        self._live: dict[int, Allocation] = {}
        self._streams: Handles[Any] = Handles(kind, "stream")
        self._foreign: dict[tuple[int, int], int] = {}
        self._foreign_lock = threading.Lock()
        self._events: Handles[Any] = Handles(kind, "event")
        self._codes: Handles[Any] = Handles(kind, "loaded code")
        self._graphs: Handles[Any] = Handles(kind, "graph")

    @property
    def driver(self) -> Driver:
        """The driver, created on first use."""
        if self._driver is None:
            with self._driver_lock:
                self._driver = self._driver or self._make_driver()
        return self._driver

    def count(self) -> int:
        return self.driver.count()

    def attributes(self, index: int) -> DeviceAttributes:
        with self._on(index, "attributes"):
            return self.driver.attributes(index)

    def allocate(self, index: int, nbytes: int, alignment: int = 64) -> Allocation:
        device = Device(self.kind, index)
        if nbytes < 0:
            raise RunError(f"cannot allocate {nbytes} bytes on {device}")
        if alignment < 8 or alignment & (alignment - 1) or alignment > self.driver.alignment:
            limit = self.driver.alignment
            raise RunError(f"cannot align memory on {device} to {alignment} bytes: it must be a power of two from 8 to {limit}")
        with self._on(index, f"allocation of {nbytes} bytes"):
            # At least one byte, so that every allocation has a unique handle.
            allocation = Allocation(device, self.driver.allocate(index, max(1, nbytes)), nbytes)
        self._live[allocation.handle] = allocation
        return allocation

    def free(self, allocation: Allocation) -> None:
        self._refuse_workspace(allocation)
        if allocation.device.kind != self.kind or self._live.pop(allocation.handle, None) is None:
            what = f"{allocation.nbytes} bytes at {allocation.handle:#x} of {allocation.device}"
            raise RunError(f"{what} are no memory of {self.kind} devices, or were freed before")
        with self._on(allocation.device.index, "free"):
            self.driver.free(allocation.handle)

    def export_memory(self, allocation: Allocation) -> int:
        super().export_memory(allocation)
        with self._on(allocation.device.index, "export_memory"):
            return self.driver.export(allocation.handle)

    def foreign_memory(self, index: int, data: int, nbytes: int) -> Allocation:
        super().foreign_memory(index, data, nbytes)
        with self._on(index, f"foreign_memory of {nbytes} bytes"):
            return Allocation(Device(self.kind, index), self.driver.foreign_memory(index, data, nbytes), nbytes)

    def drop_foreign_memory(self, allocation: Allocation) -> None:
        with self._on(allocation.device.index, "drop_foreign_memory"):
            self.driver.drop_foreign_memory(allocation.handle)

    def copy(
        self, source: Allocation, target: Allocation, nbytes: int, source_offset: int = 0, target_offset: int = 0, stream: int = 0
    ) -> None:
        check_copy(source, target, nbytes, source_offset, target_offset)
        devices = [a.device for a in (source, target) if a.device.kind == self.kind]
        for allocation in (source, target):
            if allocation.device.kind not in (self.kind, "cpu") or not devices:
                what = f"from {source.device} to {target.device}"
                raise RunError(f"devices of kind {self.kind} cannot copy {what}: copy through the host, with {allocation.device}.api")
        if not nbytes:
            return
        if source.handle == target.handle and len(devices) == 2 and abs(source_offset - target_offset) < nbytes:
            what = f"{nbytes} bytes from offset {source_offset} to {target_offset} of one allocation"
            raise RunError(f"cannot copy {what}: the ranges overlap")
        # The stream belongs to the source device, or to the target device if the source is the host.
        index = devices[0].index
        queue = self._stream(index, stream)
        with self._on(index, f"copy of {nbytes} bytes"):
            if source.device.kind != self.kind:
                self.driver.copy_in(source.handle + source_offset, target.handle, target_offset, nbytes, queue)
            elif target.device.kind != self.kind:
                self.driver.copy_out(source.handle, source_offset, target.handle + target_offset, nbytes, queue)
            elif source.device == target.device:
                self.driver.copy_within(source.handle, source_offset, target.handle, target_offset, nbytes, queue)
            else:
                pairs = [(a.device.index, a.handle) for a in (source, target)]
                self.driver.copy_between(pairs[0], source_offset, pairs[1], target_offset, nbytes, queue)

    def check_stream(self, index: int, stream: int) -> None:
        self._stream(index, stream)

    def set_device(self, index: int) -> None:
        self._check(index)
        super().set_device(index)

    def create_stream(self, index: int) -> int:
        with self._on(index, "create_stream"):
            return self._streams.add(index, (self.driver.create_stream(index), True))

    def foreign_stream(self, index: int, address: int) -> int:
        key = (index, address)
        with self._foreign_lock:
            if key not in self._foreign:
                with self._on(index, "foreign_stream"):
                    self._foreign[key] = self._streams.add(index, (self.driver.foreign_stream(index, address), False))
            return self._foreign[key]

    def free_stream(self, index: int, stream: int) -> None:
        self._stream(index, stream)
        if stream == 0:
            raise RunError("the default stream cannot be dropped")
        self.synchronise(index, stream)
        queue, owned = self._streams.take(index, stream)
        self._release_workspaces_of(index, stream)
        self._leave_stream(index, stream)
        with self._foreign_lock:
            self._foreign = {k: v for k, v in self._foreign.items() if v != stream}
        if owned:
            with self._on(index, "free_stream"):
                self.driver.free_stream(queue)

    def synchronise(self, index: int, stream: int = 0) -> None:
        queue = self._stream(index, stream)
        with self._on(index, "synchronise"):
            self.driver.synchronise(queue)

    def create_event(self, index: int) -> int:
        self._check(index)
        return self._events.add(index, None)

    def record_event(self, index: int, event: int, stream: int = 0) -> None:
        queue, mark = self._stream(index, stream), self._events.get(index, event)
        with self._on(index, "record_event"):
            self._events.replace(index, event, self.driver.record(mark, queue))

    def wait_event(self, index: int, event: int, stream: int = 0) -> None:
        queue, mark = self._stream(index, stream), self._events.get(index, event)
        if mark is None:
            raise RunError(f"event {event} of {self.kind}({index}) was never recorded: record it before a stream waits for it")
        with self._on(index, "wait_event"):
            self.driver.wait(mark, queue)

    def elapsed(self, index: int, start: int, stop: int) -> float:
        marks = [self._events.get(index, event) for event in (start, stop)]
        for event, mark in zip((start, stop), marks, strict=True):
            if mark is None:
                raise RunError(f"event {event} of {self.kind}({index}) was never recorded: record both marks first")
        with self._on(index, "elapsed"):
            return self.driver.elapsed(*marks)

    def free_event(self, index: int, event: int) -> None:
        mark = self._events.take(index, event)
        if mark is not None:
            with self._on(index, "free_event"):
                self.driver.free_mark(mark)

    def load_code(self, index: int, code: bytes, options: str = "") -> int:
        with self._on(index, "loading code"):
            return self._codes.add(index, self.driver.load(index, code, options))

    def unload_code(self, index: int, code: int) -> None:
        loaded = self._codes.take(index, code)
        with self._on(index, "unloading code"):
            self.driver.unload(loaded)

    def launch(
        self,
        index: int,
        code: int,
        kernel: str,
        arguments: Sequence[Allocation],
        grid: Dim3,
        block: Dim3,
        shared_bytes: int = 0,
        stream: int = 0,
    ) -> None:
        queue, launch = self._stream(index, stream), KernelLaunch(code, kernel, arguments, grid, block, shared_bytes)
        with self._on_launch(index, launch):
            self.driver.launch(*self._prepared(index, launch), queue)

    @property
    def has_graphs(self) -> bool:  # type: ignore[override]
        return self.driver.has_graphs

    def create_graph(self, index: int, launches: Sequence[KernelLaunch]) -> int:
        if not self.has_graphs:
            raise self._no_graphs(index)
        if not launches:
            raise RunError(f"a graph of {self.kind}({index}) has at least one launch")
        prepared = []
        for launch in launches:
            with self._on_launch(index, launch):
                prepared.append(self._prepared(index, launch))
        with self._on(index, f"create_graph of {len(launches)} launches"):
            return self._graphs.add(index, (self.driver.create_graph(prepared), [x.kernel for x in launches]))

    def update_graph(self, index: int, graph: int, position: int, launch: KernelLaunch) -> None:
        made, kernels = self._graphs.get(index, graph)
        if not 0 <= position < len(kernels) or kernels[position] != launch.kernel:
            what = f"launch {position} of graph {graph} of {self.kind}({index})"
            there = f"runs {kernels[position]}" if 0 <= position < len(kernels) else f"does not exist, it has {len(kernels)}"
            raise RunError(f"{what} {there}, and {launch.kernel} cannot replace it: create a new graph")
        with self._on_launch(index, launch):
            self.driver.update_graph(made, position, self._prepared(index, launch))

    def launch_graph(self, index: int, graph: int, stream: int = 0) -> None:
        queue, (made, kernels) = self._stream(index, stream), self._graphs.get(index, graph)
        with self._on(index, f"launch of a graph of {len(kernels)} kernels"):
            self.driver.launch_graph(made, queue)

    def free_graph(self, index: int, graph: int) -> None:
        made, _ = self._graphs.take(index, graph)
        with self._on(index, "free_graph"):
            self.driver.free_graph(made)

    def _on_launch(self, index: int, x: KernelLaunch) -> _DeviceScope:
        shape = f"a grid of {x.grid}, blocks of {x.block} and {x.shared_bytes} bytes of shared memory"
        return self._on(index, f"launch of {x.kernel} with {shape}")

    def _prepared(self, index: int, x: KernelLaunch) -> PreparedLaunch:
        """The launch in terms of the driver.  RunError if it is invalid.  The device is current."""
        loaded = self._codes.get(index, x.code)
        extents = (*x.grid, *x.block, x.shared_bytes + 1)
        if min(extents) < 1 or max(extents) > _EXTENT_LIMIT:
            raise RunError(
                f"cannot launch {x.kernel} on {self.kind}({index}): a grid of {x.grid} blocks of {x.block} threads with {x.shared_bytes} "
                f"bytes of shared memory. Extents are 1 to {_EXTENT_LIMIT}"
            )
        for i, argument in enumerate(x.arguments):
            if argument.device.kind != self.kind or argument.device.index != index:
                there = argument.device
                raise RunError(f"cannot launch {x.kernel} on {self.kind}({index}): argument {i} is memory of {there}. Copy it first")
        found = self.driver.kernel(loaded, x.kernel)
        expected, given = self.driver.parameter_count(found), len(x.arguments)
        if expected is not None and expected != given + self._extra_arguments(x.shared_bytes):
            raise RunError(f"cannot launch {x.kernel} on {self.kind}({index}): it takes {expected} arguments, and {given} are given")
        return PreparedLaunch(found, x.grid, x.block, x.shared_bytes, [a.handle for a in x.arguments])

    def _extra_arguments(self, shared_bytes: int) -> int:
        """Number of kernel arguments in addition to the pointers of the caller."""
        return 0

    def _check(self, index: int) -> None:
        count = self.driver.count()
        if not 0 <= index < count:
            raise RunError(f"there is no {self.kind}({index}): " + (f"there are {count}, from 0" if count else self.driver.missing()))

    def _stream(self, index: int, stream: int) -> Any:
        if stream:
            return self._streams.get(index, stream)[0]
        self._check(index)
        return self.driver.default_stream(index)

    def _on(self, index: int, what: str) -> _DeviceScope:
        self._check(index)
        return _DeviceScope(self.driver, Device(self.kind, index), what)


class _DeviceScope:
    """Context in which a device is current in the thread, and DriverErrors are converted to RunErrors."""

    __slots__ = ("_device", "_driver", "_entered", "_what")

    def __init__(self, driver: Driver, device: Device, what: str) -> None:
        self._driver, self._device, self._what = driver, device, what

    def __enter__(self) -> None:
        try:
            self._entered = self._driver.enter(self._device.index)
        except DriverError as error:
            raise self._converted(error) from error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._driver.leave(self._entered)
        if isinstance(error, DriverError):
            raise self._converted(error) from error

    def _converted(self, error: DriverError) -> RunError:
        text = f"{self._device}, {self._what}: {error}"
        if error.lost:
            return DeviceLost(f"{text}. The device accepts no further work from this process: start a new process")
        return RunError(text)
