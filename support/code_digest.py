"""Digest the user's code of a run: the files that define its classes and functions, and the files that these import."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from os import PathLike
from pathlib import Path

from tunesmith.support.source_closure import OWN, is_installed, source_closure


def code_digests(code: Iterable[object], folder: str | PathLike[str] | None = None) -> dict[str, str]:
    """Digests of the files of user code.  Code of tunesmith, Python and installed packages, which have versions, is left out.

    Nothing is executed: imports are those of `source_closure`.  Code that was typed in a console has no file.

    Args:
        code: classes, with all their bases; functions; partial objects, with their arguments; and paths of files, for example of models.
        folder: paths in this folder are relative to it, others are absolute; by default the current folder.
    Returns:
        Digest (BLAKE2b, 128 bits, hexadecimal) by path, sorted by path.
    Raises:
        OSError: a file cannot be read.
    """
    root = Path("." if folder is None else folder).resolve()
    files = source_closure([path for part in code for path in _files(part)]).files
    names = {(p.relative_to(root) if p.is_relative_to(root) else p).as_posix(): p for p in files}
    return {name: blake2b(names[name].read_bytes(), digest_size=16).hexdigest() for name in sorted(names)}


def changed_files(before: Mapping[str, object], now: Mapping[str, str]) -> list[str]:
    """Paths in both results of `code_digests` whose digests differ."""
    return [path for path in now if before.get(path, now[path]) != now[path]]


def _files(part: object) -> Iterator[Path]:
    """The files of a part of `code_digests`."""
    if isinstance(part, partial):
        for x in (part.func, *part.args, *part.keywords.values()):
            yield from _files(x)
    elif isinstance(part, (str, PathLike)):
        path = Path(part)
        if path.is_file():
            yield path
    elif inspect.ismethod(part):
        yield from _files(part.__self__)
    elif isinstance(part, type):
        yield from (path for c in part.__mro__ for path in _source(c))
    elif inspect.isfunction(part):
        yield from _source(part)
    else:
        yield from _files(type(part))


def _source(definition: type | Callable[..., object]) -> Iterator[Path]:
    """The file of a class or function of the user."""
    top = str(getattr(definition, "__module__", "")).partition(".")[0]
    if top == OWN or top in sys.stdlib_module_names:
        return
    try:
        path = Path(inspect.getsourcefile(definition) or "")
    except (TypeError, OSError):  # built in, or typed in a console
        return
    if path.is_file() and not is_installed(path.resolve()):
        yield path
