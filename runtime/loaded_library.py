"""Detect that the file of a loaded library was replaced, and copy it elsewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from tunesmith.support import atomic_file
from tunesmith.support.errors import RunError
from tunesmith.support.temporary_folder import temporary_folder

Identity = tuple[int, int, int]
"""Device, inode and modification time of a file."""

_loaded: dict[str, Identity] = {}
"""Path -> identity of the file loaded from it."""


class LibraryFiles:
    """The file of a library, as loaded, and files that it needs beside it.

    Args:
        library: path of the library.
        beside: paths of other files, whose names begin with that of the library.
    """

    def __init__(self, library: Path, *beside: Path) -> None:
        self._library = library
        self._identities = {file: _identity(file) for file in (library, *beside)}

    def copy(self, path: str | PathLike[str]) -> Path:
        """Copy the files to `path` and names that begin with it; returns the path.

        Raises:
            RunError: a file was replaced or removed after the library was loaded, or a copy cannot be written.
        """
        if not isinstance(path, (str, PathLike)) or isinstance(os.fspath(path), bytes):
            raise RunError(f"a library is written to a path, a text or a Path, not to {path!r:.200}")
        target = Path(path)
        try:
            if any(_identity(file) != loaded for file, loaded in self._identities.items()):
                raise RunError(f"cannot copy {self._library}: the file was replaced after it was loaded. Load it again with load_module")
            for file in reversed(self._identities):
                place = target.with_name(target.name + file.name.removeprefix(self._library.name))
                with open(file, "rb") as source, atomic_file.replacing(atomic_file.place_of(place)) as copy:
                    shutil.copyfileobj(source, copy)
        except (OSError, ValueError) as error:  # ValueError: a null in the path
            raise RunError(f"cannot copy the library {self._library} to {str(target)!r}: {error}") from error
        return target


@contextlib.contextmanager
def unambiguous(file: Path) -> Iterator[Path]:
    """The path from which to load a library.

    The system loader identifies libraries by path, and would return the old library after the file was replaced: a replaced file is
    loaded from a copy.
    """
    now = _identity(file)
    if _loaded.setdefault(str(file), now) == now:
        yield file
        return
    with temporary_folder() as folder:
        yield Path(shutil.copy(file, folder / f"{now[-1]}-{file.name}"))


def _identity(file: Path) -> Identity:
    found = file.stat()
    return found.st_dev, found.st_ino, found.st_mtime_ns
