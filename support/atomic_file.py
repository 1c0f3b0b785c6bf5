"""Write files whole or not at all: into a draft beside the file, which takes its name when everything is on the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Make `path` a file of these bytes.  On an OSError it is what it was before, and nothing else is left behind."""
    with replacing(path) as file:
        file.write(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """The same of text, in UTF-8; lone surrogates, which have no place there, become escapes."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write into, that takes the place of `path` when the block ends without an error.

    Links are followed, and the file keeps its permissions.  What is no regular file, such as /dev/stdout, is written directly.

    Raises:
        OSError: the file cannot be written, for example for want of space; `path` is then what it was.
    """
    place = _resolved(path)
    if place.exists() and not place.is_file():
        with open(path, "wb") as file:
            yield file
        return
    draft = place.with_name(f".{place.name[:200]}.{secrets.token_hex(4)}.partial")
    try:
        with open(draft, "xb") as file:
            yield file
            file.flush()
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), place.stat().st_mode & 0o7777)
            os.fsync(file.fileno())
        draft.replace(place)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def place_of(path: str | os.PathLike[str]) -> Path:
    """Where a file goes that programs make: links are followed.

    Raises:
        OSError: what is there is no regular file, or the path cannot name one.
    """
    place = _resolved(path)
    if place.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", os.fspath(path))
    if os.path.lexists(place) and not place.is_file():
        raise OSError(errno.EINVAL, "what is there is no regular file, and would be lost", os.fspath(path))
    return place


def put(draft: Path, place: Path) -> None:
    """Give a file that is whole the place that `place_of` found, with the permissions of the file that it replaces.

    Raises:
        OSError: it cannot be; `place` is then what it was.
    """
    with contextlib.suppress(FileNotFoundError):
        draft.chmod(place.stat().st_mode & 0o7777)
    try:
        draft.replace(place)
    except OSError as error:
        if error.errno != errno.EXDEV:  # another file system
            raise
        with open(draft, "rb") as source, replacing(place) as file:
            shutil.copyfileobj(source, file)


def _resolved(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:  # a null, or a lone surrogate
        raise OSError(errno.EINVAL, f"{error}: no file can have this name") from error
