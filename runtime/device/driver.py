"""What a library that drives devices must offer, so that `runtime.device.driver_backed` makes a DeviceAPI of it.

A driver does and does not check: what comes here has passed the rules that are the same for all.  Its streams, marks, codes and kernels are
objects of its own; memory is an integer, as in `Allocation.handle`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tunesmith.runtime.device.device import DeviceAttributes
from tunesmith.runtime.device.program import Dim3


class DriverError(Exception):
    """A call that the library refused.

    Args:
        name: as the library spells the error: `CUDA_ERROR_ILLEGAL_ADDRESS`.
        text: what it says about it.
        lost: the device takes nothing more from this process.
    """

    def __init__(self, name: str, text: str, lost: bool = False) -> None:
        super().__init__(f"{name}: {text}" if text else name)
        self.name = name
        self.lost = lost


class Driver(ABC):
    """All devices of one library.  Threads may call it at the same time.  Every method may raise DriverError."""

    alignment: int
    """Bytes that every address of `allocate` is a multiple of; a power of two."""

    @abstractmethod
    def count(self) -> int:
        """Devices that are there; 0 when the library or the system's part of it is missing."""

    @abstractmethod
    def missing(self) -> str:
        """Why there are none, and what to do about it: a sentence."""

    @abstractmethod
    def attributes(self, index: int) -> DeviceAttributes:
        """Facts about one device."""

    @abstractmethod
    def enter(self, index: int) -> object:
        """Make the device the one that this thread's calls are about.  What it gives goes to `leave`."""

    @abstractmethod
    def leave(self, entered: Any) -> None:
        """Undo `enter`, for whoever else uses devices in this thread."""

    @abstractmethod
    def allocate(self, index: int, nbytes: int) -> int:
        """At least one byte of memory."""

    @abstractmethod
    def free(self, memory: int) -> None:
        """Give memory back once all work that was started is done with it."""

    @abstractmethod
    def copy_in(self, address: int, target: int, offset: int, nbytes: int, stream: Any) -> None:
        """From the host's memory at an address to a device's."""

    @abstractmethod
    def copy_out(self, source: int, offset: int, address: int, nbytes: int, stream: Any) -> None:
        """From a device's memory to the host's at an address."""

    @abstractmethod
    def copy_within(self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int, stream: Any) -> None:
        """Between two places of one device, which do not overlap."""

    @abstractmethod
    def copy_between(
        self, source: tuple[int, int], source_offset: int, target: tuple[int, int], target_offset: int, nbytes: int, stream: Any
    ) -> None:
        """Between two devices; each place is a device's number and its memory."""

    @abstractmethod
    def default_stream(self, index: int) -> object:
        """What stands for stream 0."""

    @abstractmethod
    def create_stream(self, index: int) -> object:
        """A queue of its own."""

    @abstractmethod
    def foreign_stream(self, index: int, address: int) -> object:
        """Somebody else's queue."""

    @abstractmethod
    def free_stream(self, stream: Any) -> None:
        """Drop a queue of `create_stream`, on which nothing is left to do."""

    @abstractmethod
    def synchronise(self, stream: Any) -> None:
        """Wait."""

    @abstractmethod
    def record(self, mark: Any, stream: Any) -> object:
        """Put a mark into a stream: the given one, or a new one where it is None."""

    @abstractmethod
    def elapsed(self, start: Any, stop: Any) -> float:
        """Seconds between two marks, once the second is reached."""

    @abstractmethod
    def free_mark(self, mark: Any) -> None:
        """Drop a mark."""

    @abstractmethod
    def load(self, index: int, code: bytes, options: str) -> object:
        """Code, ready to run."""

    @abstractmethod
    def unload(self, code: Any) -> None:
        """Drop code, which nothing runs any more."""

    @abstractmethod
    def kernel(self, code: Any, name: str) -> object:
        """A kernel for this thread to launch."""

    @abstractmethod
    def parameter_count(self, kernel: Any) -> int | None:
        """Arguments that a kernel takes at a launch, the shared memory of OpenCL among them; None where nobody tells."""

    @abstractmethod
    def launch(self, kernel: Any, grid: Dim3, block: Dim3, shared_bytes: int, arguments: Sequence[int], stream: Any) -> None:
        """Put a kernel with its pointers into a stream."""
