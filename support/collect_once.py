"""Collect garbage once after a computation that makes many objects, instead of many times during it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_once() -> Iterator[None]:
    """Defer the collection of cycles to the end of the block, which then scans only the objects made in it.

    Generating and pricing a search space makes half a million objects that live until its end.  The collector scans them again and again,
    and all objects of the process with them: a quarter of the time, more in a process with torch.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if enabled:
            gc.enable()
