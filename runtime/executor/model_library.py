"""Store and read a model in a shared library: the symbols of program and constants, and the parameter file.

`__tunesmith_program` is a container (`runtime.executor.executable`) with the program and the table of constants but not their bytes.
The bytes are at `__tunesmith_constants`, page-aligned, and are used in place; or in `<library>.params`, another container, whose
digest is in the program header ("parameters").  The parameter file is memory-mapped, so that processes share its pages.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import partial
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tunesmith.runtime.arrays import at_address
from tunesmith.runtime.executor.executable import (
    DEVICE_PROGRAMS,
    Executable,
    NamedArrays,
    constants_size,
    container,
    digest_of,
    kind_of,
    lengths,
    open_container,
    program_of,
    read_constants,
    split_payload,
)
from tunesmith.runtime.executor.program_data import field, text_of
from tunesmith.support.errors import RunError

PROGRAM = "__tunesmith_program"
CONSTANTS = "__tunesmith_constants"
"""Symbols of the library."""

_TOTAL = struct.Struct("<56xQ")
"""Total length of a container, in its first 64 bytes."""


def parameters_path(library: Path) -> Path:
    """Path of the parameter file of a library."""
    return library.with_name(library.name + ".params")


def library_program(executable: Executable, parameters: str | None = None) -> bytes:
    """The bytes at the symbol `PROGRAM`.

    Args:
        executable: the model.
        parameters: digest of the parameter file; None if the constants are in the library.
    """
    header = {"kind": executable.kind, "program": executable.program, "parameters": parameters, **lengths(executable.device_programs)}
    return b"".join(container(header, executable.constants, b"".join(executable.device_programs), stored=False))


def write_parameters(file: BinaryIO, constants: NamedArrays) -> str:
    """Write the parameter file and return its digest."""
    first, *rest = container({"kind": "parameters"}, constants)
    for piece in (first, *rest):
        file.write(piece)
    return digest_of(bytes(first))


def read_library(path: Path, loaded: Path | None = None) -> tuple[Executable, tuple[Path, ...]]:
    """The executable in a loaded library, without code, and the files that it needs beside the library.

    The functions are those of the library.  The constants are memory of the library or of the mapped parameter file; they must not be
    written.

    Args:
        path: path of the library; its parameters may be in a file beside it.
        loaded: path from which it was loaded, if different.
    Raises:
        RunError: the data in the library is damaged, or the parameter file is missing, damaged, or of another model.
    """
    library = ctypes.CDLL(str(loaded or path))
    address = _address(library, PROGRAM)
    data = ctypes.string_at(address, _TOTAL.unpack(ctypes.string_at(address, _TOTAL.size))[0])
    what = f"the model in {path}"
    header, tail = open_container(data, what)
    digest = field(header, "parameters", what)
    if digest is None:
        size = constants_size(header, what)
        payload = at_address(_address(library, CONSTANTS), size, library) if size else np.empty(0, np.uint8)
        constants = read_constants(header, payload, what)
    else:
        constants = _read_parameters(path, text_of(digest, what))
    beside = () if digest is None else (parameters_path(path),)
    programs = tuple(split_payload(tail, header.get(DEVICE_PROGRAMS, []), what))
    return Executable(kind_of(header, what), program_of(header, what), constants, device_programs=programs), beside


def symbol_addresses(path: Path) -> Callable[[str], int]:
    """A function that returns the address of a symbol of a loaded library, or raises RunError."""
    return partial(_address, ctypes.CDLL(str(path)))


def _read_parameters(library: Path, digest: str) -> NamedArrays:
    path = parameters_path(library)
    try:
        with open(path, "rb") as file:
            data = mmap(file.fileno(), 0, access=ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read the parameters {path}, which the library {library} needs beside it: {error}") from error
    what = f"the parameter file {path}"
    header, payload = open_container(data, what)
    if digest_of(data) != digest:
        raise RunError(
            f"{what} belongs to another library: its digest is {digest_of(data)[:16]}, and {library} was exported with {digest[:16]}"
        )
    return read_constants(header, payload, what)


def _address(library: ctypes.CDLL, symbol: str) -> int:
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(library, symbol))
    except ValueError as error:
        raise RunError(f"the library {library._name} contains only a part of a model: {error}. Export it again") from error
