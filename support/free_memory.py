"""Return freed memory to the operating system."""

from __future__ import annotations

import ctypes
import sys


def return_free_memory() -> None:
    """Return memory that the C library keeps for later allocations.

    glibc keeps the pages between objects that are still alive: after a search that made millions of expressions, gigabytes.  Does nothing
    with other C libraries.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
