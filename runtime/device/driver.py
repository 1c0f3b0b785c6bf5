"""Define the driver interface from which `runtime.device.driver_backed` builds a DeviceAPI.

A driver executes calls without checking them: `driver_backed` has validated the arguments.  Streams, marks, codes and kernels are objects
of the driver; memory is an integer, as in `Allocation.handle`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from tunesmith.runtime.device.device import DeviceAttributes
from tunesmith.runtime.device.program import Dim3


class DriverError(Exception):
    """A call failed in the library.

    Args:
        name: error name of the library, for example `CUDA_ERROR_ILLEGAL_ADDRESS`.
        text: error text of the library.
        lost: the device accepts no further work from this process.
    """

    def __init__(self, name: str, text: str, lost: bool = False) -> None:
        super().__init__(f"{name}: {text}" if text else name)
        self.name = name
        self.lost = lost


class PreparedLaunch(NamedTuple):
    """A launch of a graph: the arguments of `Driver.launch` without the stream."""

    kernel: Any
    grid: Dim3
    block: Dim3
    shared_bytes: int
    arguments: Sequence[int]


class Driver(ABC):
    """Operations on all devices of one library.  Thread safe.  Every method may raise DriverError."""

    alignment: int
    """Alignment of `allocate` in bytes; a power of two."""

    has_graphs = False
    """Whether the methods of graphs are implemented."""

    @abstractmethod
    def count(self) -> int:
        """Number of devices; 0 if the library or the system driver is missing."""

    @abstractmethod
    def missing(self) -> str:
        """A sentence that says why there are no devices, and what to do about it."""

    @abstractmethod
    def attributes(self, index: int) -> DeviceAttributes:
        """Attributes of a device."""

    @abstractmethod
    def enter(self, index: int) -> object:
        """Make the device current in this thread.  The result is passed to `leave`."""

    @abstractmethod
    def leave(self, entered: Any) -> None:
        """Undo `enter`, so that other libraries in this thread find their device current."""

    @abstractmethod
    def allocate(self, index: int, nbytes: int) -> int:
        """Allocate memory; `nbytes` is at least 1."""

    @abstractmethod
    def free(self, memory: int) -> None:
        """Free memory after pending work that uses it has finished."""

    def export(self, memory: int) -> int:
        """The `data` field of a DLPack tensor in this memory."""
        return memory

    def foreign_memory(self, index: int, data: int, nbytes: int) -> int:
        """Import memory of another library by the `data` field of its DLPack tensor."""
        return data

    def drop_foreign_memory(self, memory: int) -> None:
        """Undo `foreign_memory`."""
        return

    @abstractmethod
    def copy_in(self, address: int, target: int, offset: int, nbytes: int, stream: Any) -> None:
        """Copy from a host address to device memory."""

    @abstractmethod
    def copy_out(self, source: int, offset: int, address: int, nbytes: int, stream: Any) -> None:
        """Copy from device memory to a host address."""

    @abstractmethod
    def copy_within(self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int, stream: Any) -> None:
        """Copy between two ranges on one device that do not overlap."""

    @abstractmethod
    def copy_between(
        self, source: tuple[int, int], source_offset: int, target: tuple[int, int], target_offset: int, nbytes: int, stream: Any
    ) -> None:
        """Copy between two devices; source and target are pairs of device number and memory."""

    @abstractmethod
    def default_stream(self, index: int) -> object:
        """The object of stream 0."""

    @abstractmethod
    def create_stream(self, index: int) -> object:
        """Create a stream."""

    @abstractmethod
    def foreign_stream(self, index: int, address: int) -> object:
        """Import a stream of another library by its address."""

    @abstractmethod
    def free_stream(self, stream: Any) -> None:
        """Destroy a stream of `create_stream`, which has no pending work."""

    @abstractmethod
    def synchronise(self, stream: Any) -> None:
        """Wait until all work on the stream has finished."""

    @abstractmethod
    def record(self, mark: Any, stream: Any) -> object:
        """Record a mark in a stream and return it; None creates a new mark."""

    @abstractmethod
    def wait(self, mark: Any, stream: Any) -> None:
        """Let later work on a stream wait for a mark of the same device."""

    @abstractmethod
    def elapsed(self, start: Any, stop: Any) -> float:
        """Seconds between two marks; waits for the second."""

    @abstractmethod
    def free_mark(self, mark: Any) -> None:
        """Destroy a mark."""

    @abstractmethod
    def load(self, index: int, code: bytes, options: str) -> object:
        """Load code onto a device."""

    @abstractmethod
    def unload(self, code: Any) -> None:
        """Unload code without affecting kernels in flight."""

    @abstractmethod
    def kernel(self, code: Any, name: str) -> object:
        """A kernel of the code, for launches in this thread."""

    @abstractmethod
    def parameter_count(self, kernel: Any) -> int | None:
        """Number of kernel arguments, including the shared memory argument of OpenCL; None if unknown."""

    @abstractmethod
    def launch(self, kernel: Any, grid: Dim3, block: Dim3, shared_bytes: int, arguments: Sequence[int], stream: Any) -> None:
        """Launch a kernel with pointer arguments on a stream."""

    def create_graph(self, launches: Sequence[PreparedLaunch]) -> object:
        """Prepare launches as a graph.  Only called if `has_graphs`."""
        raise NotImplementedError

    def update_graph(self, graph: Any, position: int, launch: PreparedLaunch) -> None:
        """Replace a launch of a graph.  Only called if `has_graphs`."""
        raise NotImplementedError

    def launch_graph(self, graph: Any, stream: Any) -> None:
        """Start a graph on a stream.  Only called if `has_graphs`."""
        raise NotImplementedError

    def free_graph(self, graph: Any) -> None:
        """Destroy a graph.  Only called if `has_graphs`."""
        raise NotImplementedError
