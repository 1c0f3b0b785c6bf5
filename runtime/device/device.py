"""What a device can do, the same for every kind: memory, copies, streams, events, kernels, and facts about itself.

`cpu(0)` names a device; its `api` does the work.  Code generators never ask a device anything (they have a Target):
this is for programs that run, and for finding out what the Target of this machine is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tunesmith.support.errors import RunError
from tunesmith.support.registry import Registry


class DeviceLost(RunError):
    """The device refuses all further work of this process, whatever it is: a kernel has left its memory, or ran for too long.

    Only another process can use the device again.
    """


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a kind: `Device("cpu", 0)`."""

    kind: str
    index: int = 0

    @property
    def api(self) -> DeviceAPI:
        """What can be done with devices of this kind.  Raises UserError when the kind is unknown."""
        return DEVICES.get(self.kind)

    def __str__(self) -> str:
        return f"{self.kind}({self.index})"


@dataclass(frozen=True, slots=True)
class DeviceAttributes:
    """Facts about a device; None where a question does not apply or the system does not tell.

    Bytes are bytes, and clocks are Hz.
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
        device: where.
        handle: the address where the device has addresses; else whatever names the memory to its API.
        nbytes: usable bytes.
    """

    device: Device
    handle: int
    nbytes: int


class DeviceAPI(ABC):
    """All devices of one kind.

    Threads may use an API at the same time; one stream, event or allocation is for one thread at a time.
    Streams and events are handles of the API that made them; stream 0 is the default one.  Work on one stream runs
    in order; `copy` and kernels may return before they are done, `synchronise` waits.
    """

    kind: str
    """Name in the registry and in `Device.kind`."""

    @abstractmethod
    def count(self) -> int:
        """Devices of this kind that are there; 0 when the driver is missing."""

    @abstractmethod
    def attributes(self, index: int) -> DeviceAttributes:
        """Facts about one device.  Raises RunError when it is not there."""

    @abstractmethod
    def allocate(self, index: int, nbytes: int, alignment: int = 64) -> Allocation:
        """Memory that lasts until `free`, its address a multiple of `alignment`.  Raises RunError when there is none."""

    @abstractmethod
    def free(self, allocation: Allocation) -> None:
        """Give memory of `allocate` back.  Raises RunError when it is not this API's, or was freed before."""

    @abstractmethod
    def allocate_workspace(self, index: int, nbytes: int, stream: int = 0) -> Allocation:
        """Scratch memory for work on one stream: cheap, because what `free_workspace` gives back is kept for the next one."""

    @abstractmethod
    def free_workspace(self, allocation: Allocation) -> None:
        """Give scratch memory back to the pool.  Work on its stream may still use it: whoever gets it next comes after that."""

    @abstractmethod
    def release_workspaces(self) -> None:
        """Give the pooled scratch memory that nobody uses back to the system."""

    @abstractmethod
    def copy(
        self, source: Allocation, target: Allocation, nbytes: int, source_offset: int = 0, target_offset: int = 0, stream: int = 0
    ) -> None:
        """Copy bytes between two allocations, of which one may be the host's.  Raises RunError when they do not fit."""

    @abstractmethod
    def create_stream(self, index: int) -> int:
        """A queue of work beside the default one."""

    @abstractmethod
    def free_stream(self, index: int, stream: int) -> None:
        """Drop a queue; work on it is finished first."""

    @abstractmethod
    def synchronise(self, index: int, stream: int = 0) -> None:
        """Wait until everything on the stream is done."""

    @abstractmethod
    def create_event(self, index: int) -> int:
        """A mark that can be put into a stream."""

    @abstractmethod
    def record_event(self, index: int, event: int, stream: int = 0) -> None:
        """Put the mark into the stream; marking again moves it."""

    @abstractmethod
    def elapsed(self, index: int, start: int, stop: int) -> float:
        """Seconds between two recorded marks; waits for the second.  Raises RunError when one was never recorded."""

    @abstractmethod
    def free_event(self, index: int, event: int) -> None:
        """Drop a mark."""

    def foreign_stream(self, index: int, address: int) -> int:
        """A stream that somebody else made (torch, CuPy), by its address; `free_stream` forgets it and leaves it alone.

        Asking again for one gives the same stream.  Raises RunError where streams have no address.
        """
        raise RunError(f"streams of {self.kind}({index}) have no address, so that those of others cannot be used. Make one: create_stream")

    @abstractmethod
    def load_code(self, index: int, code: bytes, options: str = "") -> int:
        """Make code ready to run.

        Args:
            index: the device.
            code: what the kind of device takes: for CUDA a cubin or PTX, for OpenCL source text.
            options: of the device's own compiler, as on a command line.
        Returns:
            What stands for the code in `launch` and `unload_code`.
        Raises:
            RunError: the device does not take it; the message has what its compiler said.
        """

    @abstractmethod
    def unload_code(self, index: int, code: int) -> None:
        """Drop code; work that uses it is finished first."""

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
        """Put a kernel into a stream; it may begin and end after this returns.

        Args:
            index: the device.
            code: of `load_code`.
            kernel: its name there.
            arguments: the memory that its pointers point to, in order.
            grid: blocks along x, y and z.
            block: threads of a block along x, y and z.
            shared_bytes: shared memory of a block beside what the kernel declares.  An OpenCL kernel gets it as one more argument.
            stream: where.
        Raises:
            RunError: there is no such kernel, or the device refuses the launch.
            DeviceLost: what ran before has destroyed the device's state for this process; any other method may raise it too.
        """


DEVICES: Registry[DeviceAPI] = Registry(
    "device",
    {
        "cpu": "tunesmith.runtime.device.cpu:CPU",
        "cuda": "tunesmith.runtime.device.cuda:CUDA",
        "opencl": "tunesmith.runtime.device.opencl:OPENCL",
    },
)
"""Device kinds by name."""


def cpu(index: int = 0) -> Device:
    """The processor that runs this program; there is one, number 0."""
    return Device("cpu", index)


def cuda(index: int = 0) -> Device:
    """An NVIDIA GPU, by the number that CUDA gives it."""
    return Device("cuda", index)


def opencl(index: int = 0) -> Device:
    """A device of an OpenCL runtime: GPUs come first, then processors."""
    return Device("opencl", index)


def check_copy(source: Allocation, target: Allocation, nbytes: int, source_offset: int, target_offset: int) -> None:
    """Refuse a copy that leaves either allocation: every API asks this first.

    Raises:
        RunError: a range is negative or leaves its allocation.
    """
    for what, allocation, offset in (("source", source, source_offset), ("target", target, target_offset)):
        if nbytes < 0 or offset < 0 or offset + nbytes > allocation.nbytes:
            raise RunError(
                f"cannot copy {nbytes} bytes at offset {offset} of the {what}: it has {allocation.nbytes} bytes on {allocation.device}"
            )
