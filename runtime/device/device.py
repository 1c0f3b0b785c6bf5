"""Define the device API, common to all kinds: memory, copies, streams, events, kernels and attributes.

`cpu(0)` identifies a device; its `api` performs the operations.  Code generators use only a Target and never query a
device; the API is used to run programs and to detect the Target of this machine.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

from tunesmith.support.errors import RunError
from tunesmith.support.registry import Registry, instance_of


class DeviceLost(RunError):
    """The device refuses all further work of this process, for example after an out-of-bounds access or a timeout of a kernel.

    Only another process can use the device again.
    """


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a kind: `Device("cpu", 0)`."""

    kind: str
    index: int = 0

    @property
    def api(self) -> DeviceAPI:
        """The API of this kind of device.  UserError if the kind is unknown."""
        return DEVICES.get(self.kind)

    def __str__(self) -> str:
        return f"{self.kind}({self.index})"


@dataclass(frozen=True, slots=True)
class DeviceAttributes:
    """Attributes of a device; None if an attribute does not apply or is unknown.

    Sizes are in bytes, clock rates in Hz.
    """

    name: str | None = None
    compute_units: int | None = None
    clock_hz: int | None = None
    memory_bytes: int | None = None
    free_memory_bytes: int | None = None
    l2_cache_bytes: int | None = None
    warp_size: int | None = None
    max_threads_per_block: int | None = None
    max_thread_dimensions: tuple[int, int, int] | None = None
    max_registers_per_block: int | None = None
    max_shared_memory_per_block: int | None = None
    max_shared_memory_per_block_optin: int | None = None
    compute_version: str | None = None
    driver_version: str | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory of a device.

    Args:
        device: the device.
        handle: the address if the device has addresses; else the identifier of the memory in its API.
        nbytes: usable bytes.
    """

    device: Device
    handle: int
    nbytes: int


class KernelLaunch(NamedTuple):
    """A launch of a graph: the arguments of `DeviceAPI.launch` without the device and the stream."""

    code: int
    kernel: str
    arguments: Sequence[Allocation]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0


@dataclass(slots=True)
class _ThreadChoice:
    """Current device, and current stream of each device, of an API in one thread."""

    index: int = 0
    streams: dict[int, int] = field(default_factory=dict)


_choices = threading.local()
"""In each thread, the choices by API."""


class DeviceAPI(ABC):
    """Operations on all devices of one kind.

    An API is thread safe; a stream, event or allocation must be used by one thread at a time.
    Streams and events are handles of the API that created them; stream 0 is the default stream.  Work on one stream
    runs in order; `copy` and `launch` may return before completion, `synchronise` waits.

    Each thread has a current device of a kind, used where none is named, and a current stream of each device, used by `DeviceArray` and by
    calls of compiled functions.
    """

    kind: str
    """Name in the registry and in `Device.kind`."""

    dlpack_type: int | None = None
    """DLPack device type of its memory; None if other libraries cannot use it."""

    has_addresses: bool = True
    """Whether `Allocation.handle` is an address, which other libraries can offset."""

    has_graphs: bool = False
    """Whether sequences of launches can be prepared as graphs, so that one call starts them all."""

    @abstractmethod
    def count(self) -> int:
        """Number of devices of this kind; 0 if the driver is missing."""

    def set_device(self, index: int) -> None:
        """Make a device the current one of this thread; it is 0 at first.  RunError if it does not exist."""
        if not 0 <= index < self.count():
            raise RunError(f"there is no {self.kind}({index}): there are {self.count()}, from 0")
        self._choice().index = index

    def current_device(self) -> int:
        """Number of the current device of this thread."""
        return self._choice().index

    def set_stream(self, index: int, stream: int) -> None:
        """Make a stream the current one of its device in this thread; it is the default stream at first.

        The order between work on the earlier and the new stream is that of `sync_streams`.

        Raises:
            RunError: there is no such device or stream.
        """
        self.check_stream(index, stream)
        self._choice().streams[index] = stream

    def current_stream(self, index: int) -> int:
        """The current stream of a device in this thread.  Freeing it in this thread makes the default stream current."""
        return self._choice().streams.get(index, 0)

    @contextmanager
    def using_stream(self, index: int, stream: int) -> Iterator[None]:
        """A context in which a stream is the current one."""
        before = self.current_stream(index)
        self.set_stream(index, stream)
        try:
            yield
        finally:
            self._choice().streams[index] = before

    def _choice(self) -> _ThreadChoice:
        by_api = _choices.__dict__.setdefault("by_api", WeakKeyDictionary())
        found: _ThreadChoice = by_api.setdefault(self, _ThreadChoice())
        return found

    def _leave_stream(self, index: int, stream: int) -> None:
        """Make the default stream current, because the current one is destroyed."""
        streams = self._choice().streams
        if streams.get(index) == stream:
            del streams[index]

    @abstractmethod
    def attributes(self, index: int) -> DeviceAttributes:
        """Attributes of a device.  RunError if it does not exist."""

    @abstractmethod
    def allocate(self, index: int, nbytes: int, alignment: int = 64) -> Allocation:
        """Allocate memory at a multiple of `alignment`, valid until `free`.  RunError if out of memory."""

    @abstractmethod
    def free(self, allocation: Allocation) -> None:
        """Free memory of `allocate`.  RunError if it is not memory of this API, or was already freed."""

    @abstractmethod
    def allocate_workspace(self, index: int, nbytes: int, stream: int = 0) -> Allocation:
        """Allocate scratch memory for work on one stream; cheap, because freed workspaces are pooled for reuse."""

    @abstractmethod
    def free_workspace(self, allocation: Allocation) -> None:
        """Return scratch memory to the pool.  Pending work on its stream may still use it, because reuse is ordered by the stream."""

    @abstractmethod
    def release_workspaces(self) -> None:
        """Free all unused scratch memory of the pool."""

    @abstractmethod
    def copy(
        self, source: Allocation, target: Allocation, nbytes: int, source_offset: int = 0, target_offset: int = 0, stream: int = 0
    ) -> None:
        """Copy bytes between two allocations, one of which may be host memory.  RunError if a range exceeds its allocation."""

    def export_memory(self, allocation: Allocation) -> int:
        """The `data` field of a DLPack tensor in this memory.

        Raises:
            RunError: memory of this kind cannot be passed to other libraries.
        """
        if self.dlpack_type is None:
            raise RunError(f"memory of {allocation.device} cannot be passed through DLPack: copy it to the host")
        return allocation.handle

    def foreign_memory(self, index: int, data: int, nbytes: int) -> Allocation:
        """Import memory of another library; valid until `drop_foreign_memory`, which does not free it.

        Args:
            index: the device.
            data: the `data` field of a DLPack tensor.
            nbytes: its size.
        Raises:
            RunError: there is no such device, or memory of this kind, or this memory, cannot be imported.
        """
        self.check_stream(index, 0)
        if self.dlpack_type is None:
            raise RunError(f"{self.kind}({index}) cannot use memory of other libraries: copy the array to it")
        return Allocation(Device(self.kind, index), data, nbytes)

    def drop_foreign_memory(self, allocation: Allocation) -> None:
        """End the use of memory of `foreign_memory`; its library frees it."""
        return

    @abstractmethod
    def check_stream(self, index: int, stream: int) -> None:
        """Raise RunError if the device or the stream does not exist."""

    @abstractmethod
    def create_stream(self, index: int) -> int:
        """Create a stream in addition to the default stream."""

    @abstractmethod
    def free_stream(self, index: int, stream: int) -> None:
        """Destroy a stream, after its pending work has finished."""

    @abstractmethod
    def synchronise(self, index: int, stream: int = 0) -> None:
        """Wait until all work on the stream has finished."""

    @abstractmethod
    def create_event(self, index: int) -> int:
        """Create an event that can be recorded in a stream."""

    @abstractmethod
    def record_event(self, index: int, event: int, stream: int = 0) -> None:
        """Record the event in the stream; a later record replaces an earlier one."""

    @abstractmethod
    def wait_event(self, index: int, event: int, stream: int = 0) -> None:
        """Let later work on the stream wait for the event as last recorded.  RunError if it was never recorded."""

    def sync_streams(self, index: int, source: int, target: int) -> None:
        """Let later work on the stream `target` wait for the work on `source` so far; the host does not wait."""
        event = self.create_event(index)
        try:
            self.record_event(index, event, source)
            self.wait_event(index, event, target)
        finally:
            self.free_event(index, event)

    @abstractmethod
    def elapsed(self, index: int, start: int, stop: int) -> float:
        """Seconds between two recorded events; waits for the second.  RunError if an event was never recorded."""

    @abstractmethod
    def free_event(self, index: int, event: int) -> None:
        """Destroy an event."""

    def foreign_stream(self, index: int, address: int) -> int:
        """Import a stream of another library (torch, CuPy) by its address; `free_stream` does not destroy it.

        Repeated calls return the same stream.  RunError if streams of this kind have no address.
        """
        raise RunError(
            f"streams of {self.kind}({index}) have no address, so that foreign streams cannot be used. Create one with create_stream"
        )

    @abstractmethod
    def load_code(self, index: int, code: bytes, options: str = "") -> int:
        """Load code onto a device.

        Args:
            index: the device.
            code: in the format of the device kind: a cubin or PTX for CUDA, source text for OpenCL.
            options: command line options of the device compiler.
        Returns:
            A handle of the code for `launch` and `unload_code`.
        Raises:
            RunError: the device does not accept the code; the message contains the output of its compiler.
        """

    @abstractmethod
    def unload_code(self, index: int, code: int) -> None:
        """Unload code, after pending work that uses it has finished."""

    @abstractmethod
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
        """Launch a kernel on a stream, asynchronously.

        Args:
            index: the device.
            code: handle of `load_code`.
            kernel: name of the kernel.
            arguments: memory of its pointer arguments, in order.
            grid: blocks along x, y and z.
            block: threads of a block along x, y and z.
            shared_bytes: dynamic shared memory of a block, in addition to static shared memory.  An OpenCL kernel gets it as an
                additional argument.
            stream: the stream.
        Raises:
            RunError: there is no such kernel, or the device refuses the launch.
            DeviceLost: earlier work has corrupted the device state of this process; any other method may raise it too.
        """

    def create_graph(self, index: int, launches: Sequence[KernelLaunch]) -> int:
        """Prepare launches that run one after the other, as in CUDA graphs.

        Args:
            index: the device.
            launches: at least one; their memory and code must exist as long as the graph.
        Returns:
            A handle of the graph for the methods below.
        Raises:
            RunError: the kind has no graphs, or a launch is invalid.
        """
        raise self._no_graphs(index)

    def update_graph(self, index: int, graph: int, position: int, launch: KernelLaunch) -> None:
        """Replace a launch of a graph by one of the same kernel, for all later runs of the graph."""
        raise self._no_graphs(index)

    def launch_graph(self, index: int, graph: int, stream: int = 0) -> None:
        """Start the launches of a graph on a stream, asynchronously."""
        raise self._no_graphs(index)

    def free_graph(self, index: int, graph: int) -> None:
        """Destroy a graph; a run that was started continues."""
        raise self._no_graphs(index)

    def _no_graphs(self, index: int) -> RunError:
        return RunError(f"{self.kind}({index}) has no graphs: start its kernels with launch")


DEVICES: Registry[DeviceAPI] = Registry(
    "device",
    {
        "cpu": "tunesmith.runtime.device.cpu:CPU",
        "cuda": "tunesmith.runtime.device.cuda:CUDA",
        "opencl": "tunesmith.runtime.device.opencl:OPENCL",
    },
    contract=instance_of(DeviceAPI),
)
"""Device kind -> API."""


def cpu(index: int = 0) -> Device:
    """The CPU of this machine; its only index is 0."""
    return Device("cpu", index)


def cuda(index: int = 0) -> Device:
    """An NVIDIA GPU, by its CUDA device number."""
    return Device("cuda", index)


def opencl(index: int = 0) -> Device:
    """An OpenCL device; GPUs are numbered before CPUs."""
    return Device("opencl", index)


def check_copy(source: Allocation, target: Allocation, nbytes: int, source_offset: int, target_offset: int) -> None:
    """Refuse a copy that exceeds an allocation; called first by every API.

    Raises:
        RunError: a range is negative or exceeds its allocation.
    """
    for what, allocation, offset in (("source", source, source_offset), ("target", target, target_offset)):
        if nbytes < 0 or offset < 0 or offset + nbytes > allocation.nbytes:
            raise RunError(
                f"cannot copy {nbytes} bytes at offset {offset} of the {what}: it has {allocation.nbytes} bytes on {allocation.device}"
            )
