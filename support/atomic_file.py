"""Write files atomically: to a draft in the same folder, renamed over the target after all data is on the disk."""

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
    """Write the bytes to `path` atomically.  After an OSError the old file is unchanged and no draft is left behind."""
    with replacing(path) as file:
        file.write(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write the text in UTF-8, atomically; lone surrogates, which UTF-8 cannot encode, become escapes."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a draft for writing that replaces `path` when the block ends without an error.

    Links are followed, and the permissions of the old file are kept.  A path that is not a regular file, such as /dev/stdout, is
    written directly.

    Raises:
        OSError: the file cannot be written, for example because the disk is full; `path` is then unchanged.
    """
    place = _resolved(path)
    # Of the path itself: that of a pipe in /proc resolves to `pipe:[N]`, which does not exist.
    if os.path.exists(path) and not os.path.isfile(path):
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
    """The target path for a file that another program writes; links are followed.

    Raises:
        OSError: the path exists and is not a regular file, or is not a valid file name.
    """
    place = _resolved(path)
    if place.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", os.fspath(path))
    if (os.path.exists(path) or os.path.lexists(place)) and not place.is_file():
        raise OSError(errno.EINVAL, "it exists, is no regular file, and would be lost", os.fspath(path))
    return place


def put(draft: Path, place: Path) -> None:
    """Move a complete file to the path returned by `place_of`, with the permissions of the file that it replaces.

    Raises:
        OSError: the file cannot be moved; `place` is then unchanged.
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
