"""Find and load shared libraries called by external code generators; loaded once, never unloaded.

A name is a file name (`libopenblas.so.0`) or a path.  File names are searched on the path of the system loader, and then in the library
folders of installed packages, which the system loader does not search.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tunesmith.support.errors import RunError

_NODELETE = getattr(os, "RTLD_NODELETE", 0)


def load_library(name: str) -> ctypes.CDLL:
    """The library, loaded so that its symbols are visible to code loaded later (RTLD_GLOBAL).

    Args:
        name: a path if it contains a slash, else a file name.
    Raises:
        RunError: the library is not found; the message lists the paths tried.
    """
    tried = []
    for candidate in candidates(name):
        try:
            return ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL | _NODELETE)
        except OSError as error:
            tried.append(f"{candidate}: {error}")
    lines = "\n  ".join(tried)
    raise RunError(f"cannot load the shared library {name}. Install it, or put its folder into LD_LIBRARY_PATH. Tried:\n  {lines}")


def candidates(name: str) -> Iterator[str]:
    """Paths that `load_library` tries: the name, then files of that name in the `lib` folders of Python's prefix and of packages."""
    yield name
    if "/" in name:
        return
    folders = [Path(sys.prefix, "lib")]
    for entry in map(Path, sys.path):
        folders += [f for pattern in ("*/lib", "*.libs") for f in sorted(entry.glob(pattern)) if entry.is_dir()]
    yield from dict.fromkeys(str(folder / name) for folder in folders if (folder / name).is_file())
