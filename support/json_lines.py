"""Append to and read journals of JSON lines: safe with many writers, after crashes, and on untrusted input.

Writers take a lock file beside the journal and append whole lines with one write.  A line torn by a crash is
closed by the next append, so that only this line is lost; no byte of the file is ever removed.  Reading yields
every line as plain data or as a `BadLine` with the reason: journals of any origin can be opened, because nothing
in them is executed.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np
from filelock import FileLock, Timeout

from tunesmith.support.errors import RecordError

MAX_LINE_BYTES = 16 << 20
"""Longer lines are skipped without being read into memory."""
MAX_DEPTH = 100
"""Deeper nesting is refused, so that recursion over the data is safe."""

_SKIP_BYTES = 1 << 20
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as int8: one level down, one level up
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
_NEITHER = bytes(set(range(256)) - set(b'[{]}"'))  # neither brackets nor quotes


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not plain JSON data.

    Attributes:
        reason: what is wrong, a clause without a full stop.
        excerpt: its first bytes, made printable, for a message.
    """

    reason: str
    excerpt: str


def append(path: str | os.PathLike[str], objects: Iterable[object], *, sync: bool = False, lock_seconds: float = 60.0) -> None:
    """Append one line per object, all or none of them; the file and its folder are created if missing.

    Args:
        path: the journal.
        objects: JSON data (dict, list, str, int, finite float, bool, None).
        sync: wait until the lines are on the disk (survives a power failure, not only a crash of the process).
        lock_seconds: how long to wait for other writers.

    Raises:
        RecordError: an object is not JSON data, the journal cannot be written, or another process holds the lock.
            The journal is then unchanged.
    """
    path = Path(path)
    check_journal(path)
    block = b"".join(_encode(path, number, value) for number, value in enumerate(objects))
    if not block:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path, lock_seconds):
            _write(path, block, sync)
    except OSError as error:
        raise RecordError(
            f"cannot append to {path}: {error.strerror or error}. Check the path, its permissions and the free space"
        ) from error


def check_journal(path: str | os.PathLike[str]) -> None:
    """Refuse a path that cannot be a journal: devices and pipes store nothing that could be read back, and may never end.

    Raises:
        RecordError: the path exists and is not a regular file, is not a valid file name, or names a Python file.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise RecordError(f"{path!r:.200} cannot be a log: expected the path of a file")
    _refuse_python(path)
    try:
        mode = os.stat(path).st_mode
    except OSError:  # the path does not exist, or the read or write that follows reports the error
        return
    except ValueError as error:
        raise RecordError(f"{path!r:.200} cannot be a log: {error}. Give the path of a file") from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a folder fails by itself
        raise RecordError(f"{os.fspath(path)} cannot be a log, because it is no regular file. Give the path of a file, or of a new one")


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether the journal exists.

    Raises:
        RecordError: the path is not a valid file name.
    """
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RecordError(f"{os.fspath(path)} cannot be a log: {error.strerror or error}. Check the path and its permissions") from error
    return True


@contextmanager
def locked(path: str | os.PathLike[str], lock_seconds: float = 60.0) -> Iterator[None]:
    """Block all writers of a journal.  Must not be held while appending to the same journal.

    Raises:
        RecordError: another process holds the lock.
    """
    check_journal(path)
    lock = FileLock(f"{os.fspath(path)}.lock", timeout=lock_seconds)
    try:
        os.close(os.open(lock.lock_file, os.O_RDWR | os.O_CREAT, 0o666))  # otherwise the lock would retry until the timeout
        lock.acquire()
    except Timeout as error:
        raise RecordError(
            f"cannot append to {path}: another process has held {path}.lock for {lock_seconds:g} s. Wait for it, or stop it"
        ) from error
    except OSError as error:
        raise RecordError(f"cannot lock {path}: {error.strerror or error}. Check the path and its permissions") from error
    try:
        yield
    finally:
        lock.release()


def write(path: str | os.PathLike[str], lines: Iterable[bytes], *, replace: bool = False) -> None:
    """Write a journal atomically: readers of the path see either all of the lines or the previous content.

    Args:
        path: the journal.
        lines: lines as another journal stores them, without line ends.
        replace: replace an existing journal.  The caller must have held its lock since before reading it.

    Raises:
        RecordError: the journal exists already, or cannot be written.
    """
    path = Path(path)
    check_journal(path)
    draft = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with open(draft, "wb") as file:
            for line in lines:
                file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if not replace:
            path.touch(exist_ok=False)  # fails if another process has created it meanwhile
        draft.replace(path)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror or error}. Check the path and its permissions") from error
    finally:
        draft.unlink(missing_ok=True)


def read(
    path: str | os.PathLike[str], *, max_line_bytes: int = MAX_LINE_BYTES, decode: Callable[[bytes], object] | None = None
) -> Iterator[tuple[int, object]]:
    """Every line that is not blank, as `(line number from 1, data or BadLine)`, in order, one line in memory at a time.

    Reading takes no lock: a line that is being written may be reported as torn.

    Args:
        path: the journal.
        max_line_bytes: longer lines are bad.
        decode: converts the text of a line to data or to a BadLine; by default `parse`.

    Raises:
        RecordError: the file does not exist or cannot be read.
    """
    return ((number, value) for number, _, _, value in spans(path, max_line_bytes=max_line_bytes, decode=decode))


Span = tuple[int, int, bytes, object]
"""A line: its number from 1, the offset of its text in the file, the text without surrounding blanks, the data or BadLine."""


def spans(
    path: str | os.PathLike[str], *, max_line_bytes: int = MAX_LINE_BYTES, decode: Callable[[bytes], object] | None = None
) -> Iterator[Span]:
    """As `read`, with the text of each line and its offset; the text of a line that is too long is empty.

    Raises:
        RecordError: the file does not exist or cannot be read.
    """
    return _lines(open_journal(path), max_line_bytes, decode or parse)


def open_journal(path: str | os.PathLike[str]) -> BinaryIO:
    """Open the journal, to read lines at the offsets that `spans` yields.  RecordError if it does not exist or cannot be read."""
    if not isinstance(path, (str, os.PathLike)):  # open() would take an int as a file descriptor
        raise RecordError(f"cannot read {path!r:.200}: expected the path of a file")
    _refuse_python(path)
    try:
        return open(path, "rb")  # closed by the caller
    except OSError as error:
        raise RecordError(f"cannot read {os.fspath(path)}: {error.strerror or error}. Check the path") from error
    except ValueError as error:  # a null in the path, or a lone surrogate
        raise RecordError(f"cannot read {path!r:.200}: {error}. Check the path") from error


def _refuse_python(path: str | os.PathLike[str]) -> None:
    """Refuse a Python file: it holds no valid line, and was probably meant to name a workload defined in it."""
    name = os.fspath(path)
    if isinstance(name, str) and name.endswith(".py"):
        raise RecordError(
            f"{name} is a Python file, not a log. To name a workload in the file, write {name}:NAME, where NAME is a function of it"
        )


def parse(line: bytes, *, max_line_bytes: int = MAX_LINE_BYTES) -> object:
    """The data of one line, or a BadLine.  Never raises."""
    if len(line) > max_line_bytes:
        return _bad(line, f"longer than {max_line_bytes} bytes")
    if _too_deep(line):
        return _bad(line, f"nested deeper than {MAX_DEPTH}")
    try:
        return _DECODER.decode(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return _bad(line, f"not UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        return _bad(line, f"not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError, MemoryError) as error:
        return _bad(line, f"not plain data: {error}")


def _encode(path: Path, number: int, value: object) -> bytes:
    try:
        # ASCII, so that lone surrogates in error messages can be written and no editor breaks a line at U+2028.
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"object {number} for {path} is not JSON data: {error}. Nothing was written") from error


def _write(path: Path, block: bytes, sync: bool) -> None:
    """Append `block` in one piece; on failure truncate the file to its previous size."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        if size:
            os.lseek(descriptor, size - 1, os.SEEK_SET)
            if os.read(descriptor, 1) != b"\n":
                block = b"\n" + block  # closes a torn line
        try:
            rest = memoryview(block)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if sync:
                os.fsync(descriptor)
        except BaseException:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def _lines(file: BinaryIO, limit: int, decode: Callable[[bytes], object]) -> Iterator[Span]:
    with file:
        number = start = 0
        while line := file.readline(limit + 2):
            number += 1
            offset, start = start, start + len(line)
            ended = line.endswith(b"\n")
            if not ended and len(line) > limit:
                while more := file.readline(_SKIP_BYTES):
                    start += len(more)
                    if more.endswith(b"\n"):
                        break
                yield number, offset, b"", _bad(line, f"longer than {limit} bytes")
                continue
            if not (text := line.strip()):
                continue
            value = _bad(text, f"longer than {limit} bytes") if len(text) > limit else decode(text)
            if not ended and isinstance(value, BadLine):
                value = _bad(text, f"torn: the file ends within it ({value.reason})")
            yield number, offset + len(line) - len(line.lstrip()), text, value


def _too_deep(line: bytes) -> bool:
    """Whether brackets outside of strings nest deeper than allowed; vectorised over all bytes, because it runs on every long line."""
    marks = line.translate(None, _NEITHER)
    if len(marks) <= MAX_DEPTH:
        return False
    # Without escapes, quotes that remain here belong to a string that contains brackets: only then strings must be located.
    outside = marks.replace(b'""', b"")
    if b"\\" in line or b'"' in outside:
        outside = b"".join(line.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]).translate(None, _NOT_BRACKETS)
    steps = np.frombuffer(outside.translate(_STEPS), dtype=np.int8)
    return bool(np.cumsum(steps, dtype=np.int64).max(initial=0) > MAX_DEPTH)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} does not fit a float64")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _bad(line: bytes, reason: str) -> BadLine:
    return BadLine(reason, line[:80].decode("utf-8", "backslashreplace"))
