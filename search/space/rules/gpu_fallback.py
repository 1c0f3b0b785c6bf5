"""gpu_fallback: any function on a GPU: the spatial iterations of every block go to threads.  Asked only when no other rule applies."""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.schedule.auto_bind import bind_spatial
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.gpu_pointwise import THREADS

Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """One schedule for whatever it is."""
    return [("gpu fallback", lambda s: schedule(s, target))]


def schedule(s: Schedule, target: Target) -> None:
    """Blocks of threads over the fused spatial loops of every block."""
    threads = s.sample_categorical(tuple(t for t in THREADS if t <= target.max_threads_per_block), "threads")
    for b in [b.name for b in s.blocks()]:
        bind_spatial(s, s.get_block(b), threads)
