"""Name the thread axes, memory scopes and warp width of GPUs."""

from __future__ import annotations

from tunesmith.ir.buffer import TILE_SCOPE

BLOCK_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
"""Axes of the grid, the blocks of a kernel."""
THREAD_AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
"""Axes of a block, its threads."""
VIRTUAL_AXES = ("vthread.x", "vthread.y", "vthread.z")
"""Axes of virtual threads: their iterations run interleaved in one thread."""
AXES = (*BLOCK_AXES, *THREAD_AXES, *VIRTUAL_AXES)

SHARED_SCOPES = ("shared", "shared.dyn")
"""Memory that the threads of a block share."""
COMMON_SCOPES = ("global", *SHARED_SCOPES)
"""Memory in which accesses of different threads may conflict."""
PRIVATE_SCOPES = ("workspace", "register", TILE_SCOPE, "local")
"""Memory of one thread."""

WARP = 32
"""Threads that can exchange values by shuffles, on the GPUs that have shuffles."""


def is_block_axis(axis: str | None) -> bool:
    """Whether `axis` is an axis of the grid."""
    return axis in BLOCK_AXES


def is_thread_axis(axis: str | None) -> bool:
    """Whether `axis` is an axis of a block."""
    return axis in THREAD_AXES


def is_virtual_axis(axis: str | None) -> bool:
    """Whether `axis` is an axis of virtual threads."""
    return axis in VIRTUAL_AXES
