"""Executable: what an executor runs, as data: a program, the constants it reads, and object code of the functions it calls.

Nothing in it is more than JSON and bytes.  Equal executables give equal bytes, and bytes from anywhere are refused with RunError
unless they are whole: their digest is checked, and every number in them before it is used.

One container serves for executables, for what an exported library holds, and for files of parameters beside a library:

    0   16 bytes   "tunesmith-data-1"
    16  32 bytes   SHA-256 of all that follows
    48   8 bytes   length of the header, little-endian
    56   8 bytes   length of everything
    64  header     JSON, ASCII: whatever its kind needs, and "constants": [{"name", "dtype", "shape", "offset"}]
    ..  payload    at the next multiple of 64: constants at their offsets, multiples of 64 too, row-major, little-endian; then object code
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import Any

import numpy as np

from tunesmith.runtime.arrays import aligned, nbytes, placed, storage_dtype
from tunesmith.runtime.executor.program_data import dtype_of, field, int_of, list_of, shape_of, text_of
from tunesmith.support.errors import RunError

KINDS = ("graph", "vm", "aot")
VERSION = 1
"""Of the container and of what programs hold."""

_MAGIC = b"tunesmith-data-1"
_HEAD = struct.Struct("<16s32sQQ")
HEAD_BYTES = _HEAD.size
"""What tells one container from another: digest, and sizes."""
_HASHED = 48
_ZEROS = bytes(64)

Piece = bytes | memoryview
Data = bytes | memoryview | mmap
NamedArrays = tuple[tuple[str, np.ndarray], ...]


@dataclass(frozen=True, eq=False, slots=True)
class Executable:
    """A compiled model.

    Attributes:
        kind: which executor runs it, one of `KINDS`.
        program: JSON data with the key "version"; its form is told by the executor of the kind.
        constants: names, for people, and arrays, which the program counts from 0; those of bfloat16 as uint16.
        data: object code of the functions that the program calls; None if it lies elsewhere, or none is called.
        objects: further object code, of external code generators.
        libraries: shared libraries that `objects` need: file names or paths (`runtime.shared_libraries`).
    """

    kind: str
    program: dict[str, Any]
    constants: NamedArrays = ()
    data: bytes | None = None
    objects: tuple[bytes, ...] = ()
    libraries: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """The executable as bytes; equal ones give equal bytes."""
        code = b"" if self.data is None else self.data
        header = {
            "kind": self.kind,
            "program": self.program,
            "code": None if self.data is None else len(code),
            "objects": [len(o) for o in self.objects],
            "libraries": list(self.libraries),
        }
        return b"".join(container(header, self.constants, b"".join((code, *self.objects))))

    @classmethod
    def from_bytes(cls, data: bytes, what: str = "the executable") -> Executable:
        """The executable that `to_bytes` wrote; its constants are views of `data`.

        Raises:
            RunError: the bytes are damaged, or not an executable.
        """
        header, payload = open_container(data, what)
        constants = read_constants(header, payload, what)
        sizes = [field(header, "code", what), *list_of(field(header, "objects", what), f"{what}: objects")]
        codes: list[bytes | None] = []
        start = constants_size(header, what)
        for i, size in enumerate(sizes):
            if i == 0 and size is None:
                codes.append(None)
                continue
            end = start + int_of(size, f"{what}: length of the code", 0, payload.nbytes - start)
            codes.append(payload[start:end].tobytes())
            start = end
        libraries = tuple([text_of(n, f"{what}: a library") for n in list_of(field(header, "libraries", what), f"{what}: libraries")])
        objects = tuple([c for c in codes[1:] if c is not None])
        return cls(kind_of(header, what), program_of(header, what), constants, codes[0], objects, libraries)

    @property
    def digest(self) -> str:
        """Of all of it: the same in every process."""
        return hashlib.sha256(self.to_bytes()).hexdigest()[:16]

    def __repr__(self) -> str:
        size = sum(a.nbytes for _, a in self.constants)
        return f"<executable {self.kind}: {len(self.constants)} constants of {size} bytes, {len(self.data or b'')} bytes of code>"


def container(header: dict[str, Any], constants: NamedArrays, tail: bytes = b"", stored: bool = True) -> Iterator[Piece]:
    """The container with this header, piece by piece, so that constants are not copied.

    Args:
        header: JSON data; "version" and "constants" are added.
        constants: what the table of constants names.
        tail: bytes behind the constants.
        stored: whether the constants are in the payload, or elsewhere.
    """
    payload = [*_padded(constants), tail] if stored else []
    text = json.dumps({**header, "version": VERSION, "constants": table(constants)}, sort_keys=True, separators=(",", ":")).encode()
    total = aligned(_HEAD.size + len(text)) + sum(memoryview(p).nbytes for p in payload)
    pieces: list[Piece] = [_HEAD.pack(b"", b"", len(text), total)[_HASHED:], text, _ZEROS[: aligned(len(text)) - len(text)], *payload]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    yield _MAGIC + digest.digest()
    yield from pieces


def table(constants: NamedArrays) -> list[dict[str, Any]]:
    """Where each constant stands in a payload."""
    rows: list[dict[str, Any]] = []
    offset = 0
    for name, array in constants:
        rows.append({"name": name, "dtype": storage_dtype(array.dtype.name).name, "shape": list(array.shape), "offset": offset})
        offset += aligned(array.nbytes)
    return rows


def payload_of(constants: NamedArrays) -> tuple[list[Piece], int]:
    """The bytes of constants as `table` places them, piece by piece, and their number."""
    return _padded(constants), sum(aligned(a.nbytes) for _, a in constants)


def _padded(constants: NamedArrays) -> list[Piece]:
    pieces: list[Piece] = []
    for _, array in constants:
        whole = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        if whole.nbytes:
            pieces.append(whole.reshape(-1).view(np.uint8).data)
        pieces.append(_ZEROS[: aligned(whole.nbytes) - whole.nbytes])
    return pieces


def open_container(data: Data, what: str, verify: bool = True) -> tuple[dict[str, Any], np.ndarray]:
    """Header and payload, a view of the data.

    Args:
        data: the container, with nothing before it and nothing after it.
        what: how an error message calls it.
        verify: compare the digest.
    Raises:
        RunError: the data are no container, or damaged.
    """
    memory = np.frombuffer(data, np.uint8)
    if memory.nbytes < _HEAD.size or memory[:16].tobytes() != _MAGIC:
        raise RunError(f"{what} is not data that tunesmith wrote: it does not start with {_MAGIC.decode()!r}, or is torn")
    _, digest, length, total = _HEAD.unpack(memory[: _HEAD.size].tobytes())
    if total != memory.nbytes:
        raise RunError(f"{what} is torn: it should have {total} bytes, and has {memory.nbytes}. Write it again")
    if verify and hashlib.sha256(memory[_HASHED:].data).digest() != digest:
        raise RunError(f"{what} is damaged: its bytes do not have the digest that it names. Write it again")
    if length > total - _HEAD.size:
        raise RunError(f"{what} is damaged: its header ends behind its end. Write it again")
    header = decode(memory[_HEAD.size : _HEAD.size + length].tobytes(), what)
    if header.get("version") != VERSION:
        raise RunError(f"{what} is of version {header.get('version')!r}, and this tunesmith reads version {VERSION}. Build it again")
    return header, memory[aligned(_HEAD.size + length) :]


def digest_of(data: Data) -> str:
    """The digest that a container names, in hexadecimal."""
    return bytes(memoryview(data)[16:_HASHED]).hex()


def container_size(head: bytes) -> int:
    """Bytes of a container that starts with these, `HEAD_BYTES` or more."""
    return int(_HEAD.unpack_from(head)[3])


def payload_offset(head: bytes) -> int:
    """Where the payload of a container starts that starts with these bytes, `HEAD_BYTES` or more."""
    return aligned(_HEAD.size + int(_HEAD.unpack_from(head)[2]))


def decode(text: bytes, what: str) -> dict[str, Any]:
    """A JSON object.  RunError if the text is none."""
    try:
        found = json.loads(text.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{what} is damaged: its header is not JSON ({error}). Build it again") from error
    if not isinstance(found, dict):
        raise RunError(f"{what} is damaged: its header is not a JSON object. Build it again")
    return found


def kind_of(header: dict[str, Any], what: str) -> str:
    """The kind of executable that a header names."""
    kind = text_of(field(header, "kind", what), f"{what}: kind")
    if kind not in KINDS:
        raise RunError(f"{what} is of the kind {kind!r}; known are {', '.join(KINDS)}")
    return kind


def program_of(header: dict[str, Any], what: str) -> dict[str, Any]:
    """The program of a header, unchecked but for its version."""
    program = field(header, "program", what)
    if not isinstance(program, dict) or program.get("version") != VERSION:
        raise RunError(f"{what} holds no program of version {VERSION}. Build it again with this tunesmith")
    return program


def read_constants(header: dict[str, Any], payload: np.ndarray, what: str) -> NamedArrays:
    """The constants as views of the payload.  RunError if one does not lie in it."""
    found = []
    for i, row in enumerate(_rows(header, what)):
        where = f"{what}: constant {i}"
        offset = int_of(field(row, "offset", where), f"{where}: offset", 0, payload.nbytes)
        dtype, shape = dtype_of(field(row, "dtype", where), where), shape_of(field(row, "shape", where), where)
        try:
            array = placed(payload, offset, dtype, shape)
        except RunError as error:
            raise RunError(f"{where}: {error}") from error
        found.append((text_of(field(row, "name", where), where), array))
    return tuple(found)


def constants_size(header: dict[str, Any], what: str) -> int:
    """Bytes of the constants, padding included."""
    size = 0
    for i, row in enumerate(_rows(header, what)):
        where = f"{what}: constant {i}"
        offset = int_of(field(row, "offset", where), f"{where}: offset", 0)
        size = max(size, offset + aligned(nbytes(dtype_of(field(row, "dtype", where), where), shape_of(field(row, "shape", where), where))))
    return size


def _rows(header: dict[str, Any], what: str) -> Sequence[Any]:
    return list_of(field(header, "constants", what), f"{what}: constants")
