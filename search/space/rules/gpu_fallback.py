"""Schedule any function on GPUs: bind the spatial iterations of every block to threads.

Used only if no other rule applies.
"""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.schedule.auto_bind import bind_spatial
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.gpu_pointwise import THREADS

Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """One schedule for any function."""
    return [("gpu fallback", lambda s: schedule(s, target))]


def schedule(s: Schedule, target: Target) -> None:
    """Bind the fused spatial loops of every block to thread blocks and threads."""
    threads = s.sample_categorical(tuple(t for t in THREADS if t <= target.max_threads_per_block), "threads")
    for b in [b.name for b in s.blocks()]:
        if not any(f.kind == "thread" for f in s.loops_of(b)):
            bind_spatial(s, s.get_block(b), threads)
