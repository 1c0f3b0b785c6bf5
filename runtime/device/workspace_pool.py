"""Pool scratch memory by device, stream and size class, so that a workspace costs no allocation after its first use."""

from __future__ import annotations

import threading

from tunesmith.runtime.device.device import Allocation, DeviceAPI
from tunesmith.support.errors import RunError

_PAGE = 4096


class WorkspacePool:
    """Idle scratch memory, by device, stream and size; the block freed last is reused first.

    A block is reused only on its own stream: its previous user may still be running, and the stream orders the next one after it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[int, int, int], list[Allocation]] = {}
        self._owners: dict[tuple[int, int], int | None] = {}
        """Device and handle of each block -> the stream that uses it; None if it is idle."""

    def take(self, index: int, stream: int, nbytes: int) -> Allocation | None:
        """An idle block of the stream; None if there is none."""
        with self._lock:
            idle = self._idle.get((index, stream, nbytes))
            if not idle:
                return None
            block = idle.pop()
            self._owners[index, block.handle] = stream
            return block

    def use(self, block: Allocation, stream: int) -> Allocation:
        """Register a new block as in use on a stream."""
        with self._lock:
            self._owners[block.device.index, block.handle] = stream
        return block

    def give(self, block: Allocation) -> None:
        """Return a block to the pool.  RunError if it was not in use."""
        key = block.device.index, block.handle
        with self._lock:
            stream = self._owners.get(key)
            if stream is None:
                raise RunError(f"{block.nbytes} bytes at {block.handle:#x} are not a workspace of {block.device}, or were freed before")
            self._owners[key] = None
            self._idle.setdefault((block.device.index, stream, block.nbytes), []).append(block)

    def owns(self, block: Allocation) -> bool:
        """Whether a block is of this pool, idle or in use."""
        return (block.device.index, block.handle) in self._owners

    def drain(self, index: int | None = None, stream: int | None = None) -> list[Allocation]:
        """Remove and return the idle blocks of one stream, or of all."""
        with self._lock:
            keys = [k for k in self._idle if index is None or k[:2] == (index, stream)]
            blocks = [block for key in keys for block in self._idle.pop(key)]
            for block in blocks:
                del self._owners[block.device.index, block.handle]
            return blocks


class PooledWorkspaces(DeviceAPI):
    """The workspaces of a device API, by `allocate` and `free`."""

    def __init__(self) -> None:
        self._pool = WorkspacePool()

    def allocate_workspace(self, index: int, nbytes: int, stream: int = 0) -> Allocation:
        self.check_stream(index, stream)
        if nbytes < 0:
            raise RunError(f"cannot allocate {nbytes} bytes on {self.kind}({index})")
        # Rounded to powers of two of at least a page: few sizes, so that blocks are reused.
        size = max(_PAGE, 1 << max(0, nbytes - 1).bit_length())
        return self._pool.take(index, stream, size) or self._pool.use(self.allocate(index, size), stream)

    def free_workspace(self, allocation: Allocation) -> None:
        if allocation.device.kind != self.kind:
            raise RunError(f"{allocation.nbytes} bytes at {allocation.handle:#x} of {allocation.device} are no workspace of {self.kind}")
        self._pool.give(allocation)

    def release_workspaces(self) -> None:
        for block in self._pool.drain():
            self.free(block)

    def _release_workspaces_of(self, index: int, stream: int) -> None:
        """Free the idle scratch memory of a stream that is about to be destroyed."""
        for block in self._pool.drain(index, stream):
            self.free(block)

    def _refuse_workspace(self, allocation: Allocation) -> None:
        """Raise RunError if memory given to `free` is a workspace: the pool would use it again."""
        if self._pool.owns(allocation):
            raise RunError(f"{allocation.nbytes} bytes at {allocation.handle:#x} are a workspace: use free_workspace")
