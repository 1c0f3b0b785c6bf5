"""Serialise compiled models: a program, its constants, and the object code of the functions that it calls.

An executable consists of JSON and bytes.  Equal executables have equal bytes.  Damaged or malformed bytes of any origin are refused with
RunError: the digest is checked, and every number is validated before it is used.

One container format is used for executables, for the model data of an exported library, and for parameter files beside a library:

    0   16 bytes   "tunesmith-data-1"
    16  32 bytes   SHA-256 of all that follows
    48   8 bytes   length of the header, little-endian
    56   8 bytes   total length
    64  header     JSON, ASCII: fields of its kind, and "constants": [{"name", "dtype", "shape", "offset"}]
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
"""Version of the container and of the program format."""

_MAGIC = b"tunesmith-data-1"
_HEAD = struct.Struct("<16s32sQQ")
HEAD_BYTES = _HEAD.size
"""Size of the head, which contains the digest and the lengths."""
_HASHED = 48
_ZEROS = bytes(64)

Piece = bytes | memoryview
Data = bytes | memoryview | mmap
NamedArrays = tuple[tuple[str, np.ndarray], ...]


@dataclass(frozen=True, eq=False, slots=True)
class Executable:
    """A compiled model.

    Attributes:
        kind: kind of its executor, one of `KINDS`.
        program: JSON data with the key "version"; the format is documented at the executor of the kind.
        constants: names, for display, and arrays, which the program numbers from 0; bfloat16 is stored as uint16.
        data: object code of the functions that the program calls; None if it is stored elsewhere, or none is called.
        objects: further object code, of external code generators.
        libraries: shared libraries that `objects` need: file names or paths (`runtime.shared_libraries`).
        device_programs: the functions that run on devices, one serialised `runtime.device.program.DeviceProgram` for each kind.
    """

    kind: str
    program: dict[str, Any]
    constants: NamedArrays = ()
    data: bytes | None = None
    objects: tuple[bytes, ...] = ()
    libraries: tuple[str, ...] = ()
    device_programs: tuple[bytes, ...] = ()

    def to_bytes(self) -> bytes:
        """The executable as bytes; equal executables give equal bytes."""
        code = b"" if self.data is None else self.data
        header = {
            "kind": self.kind,
            "program": self.program,
            "code": None if self.data is None else len(code),
            "objects": [len(o) for o in self.objects],
            "libraries": list(self.libraries),
            **lengths(self.device_programs),
        }
        return b"".join(container(header, self.constants, b"".join((code, *self.objects, *self.device_programs))))

    @classmethod
    def from_bytes(cls, data: bytes, what: str = "the executable") -> Executable:
        """Deserialise the bytes of `to_bytes`; the constants are views of `data`.

        Raises:
            RunError: the bytes are damaged, or not an executable.
        """
        header, payload = open_container(data, what)
        constants = read_constants(header, payload, what)
        size, objects = field(header, "code", what), list_of(field(header, "objects", what), f"{what}: objects")
        sizes = [*([] if size is None else [size]), *objects]
        codes = split_payload(
            payload[constants_size(header, what) :], [*sizes, *list_of(header.get(DEVICE_PROGRAMS, []), f"{what}: device programs")], what
        )
        libraries = tuple([text_of(n, f"{what}: a library") for n in list_of(field(header, "libraries", what), f"{what}: libraries")])
        code = None if size is None else codes.pop(0)
        programs = tuple(codes[len(objects) :])
        return cls(kind_of(header, what), program_of(header, what), constants, code, tuple(codes[: len(objects)]), libraries, programs)

    @property
    def digest(self) -> str:
        """Digest of the whole executable; the same in every process."""
        return hashlib.sha256(self.to_bytes()).hexdigest()[:16]

    def __repr__(self) -> str:
        size = sum(a.nbytes for _, a in self.constants)
        return f"<executable {self.kind}: {len(self.constants)} constants of {size} bytes, {len(self.data or b'')} bytes of code>"


DEVICE_PROGRAMS = "device_programs"
"""Key of the header with the lengths of the device programs."""


def lengths(programs: Sequence[bytes]) -> dict[str, Any]:
    """The entry of the header for device programs; absent if there are none."""
    return {DEVICE_PROGRAMS: [len(p) for p in programs]} if programs else {}


def split_payload(payload: np.ndarray, sizes: object, what: str) -> list[bytes]:
    """The consecutive pieces of these sizes at the start of a payload.  RunError if they exceed it."""
    found, start = [], 0
    for size in list_of(sizes, f"{what}: lengths of the code"):
        end = start + int_of(size, f"{what}: length of the code", 0, payload.nbytes - start)
        found.append(payload[start:end].tobytes())
        start = end
    return found


def container(header: dict[str, Any], constants: NamedArrays, tail: bytes = b"", stored: bool = True) -> Iterator[Piece]:
    """Generate the container with this header in pieces, so that constants are not copied.

    Args:
        header: JSON data; "version" and "constants" are added.
        constants: the constants listed in the header.
        tail: bytes after the constants.
        stored: whether the payload contains the constants.
    """
    payload = [*(_padded(constants) if stored else ()), tail]
    text = json.dumps({**header, "version": VERSION, "constants": table(constants)}, sort_keys=True, separators=(",", ":")).encode()
    total = aligned(_HEAD.size + len(text)) + sum(memoryview(p).nbytes for p in payload)
    pieces: list[Piece] = [_HEAD.pack(b"", b"", len(text), total)[_HASHED:], text, _ZEROS[: aligned(len(text)) - len(text)], *payload]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    yield _MAGIC + digest.digest()
    yield from pieces


def table(constants: NamedArrays) -> list[dict[str, Any]]:
    """Name, type, shape and payload offset of each constant."""
    rows: list[dict[str, Any]] = []
    offset = 0
    for name, array in constants:
        rows.append({"name": name, "dtype": storage_dtype(array.dtype.name).name, "shape": list(array.shape), "offset": offset})
        offset += aligned(array.nbytes)
    return rows


def payload_of(constants: NamedArrays) -> tuple[list[Piece], int]:
    """The bytes of the constants in the layout of `table`, in pieces, and their total size."""
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
        data: exactly the bytes of the container.
        what: name of the container in error messages.
        verify: check the digest.
    Raises:
        RunError: the data is not a container, or is damaged.
    """
    memory = np.frombuffer(data, np.uint8)
    if memory.nbytes < _HEAD.size or memory[:16].tobytes() != _MAGIC:
        raise RunError(f"{what} is not data that tunesmith wrote: it does not start with {_MAGIC.decode()!r}, or is torn")
    _, digest, length, total = _HEAD.unpack(memory[: _HEAD.size].tobytes())
    if total != memory.nbytes:
        raise RunError(f"{what} is torn: it should have {total} bytes, and has {memory.nbytes}. Write it again")
    if verify and hashlib.sha256(memory[_HASHED:].data).digest() != digest:
        raise RunError(f"{what} is damaged: its bytes do not match its digest. Write it again")
    if length > total - _HEAD.size:
        raise RunError(f"{what} is damaged: its header extends beyond its end. Write it again")
    header = decode(memory[_HEAD.size : _HEAD.size + length].tobytes(), what)
    if header.get("version") != VERSION:
        raise RunError(f"{what} is of version {header.get('version')!r}, and this tunesmith reads version {VERSION}. Build it again")
    return header, memory[aligned(_HEAD.size + length) :]


def digest_of(data: Data) -> str:
    """The digest stored in a container, in hexadecimal."""
    return bytes(memoryview(data)[16:_HASHED]).hex()


def container_size(head: bytes) -> int:
    """Total size of a container, from its first `HEAD_BYTES` or more bytes."""
    return int(_HEAD.unpack_from(head)[3])


def payload_offset(head: bytes) -> int:
    """Offset of the payload of a container, from its first `HEAD_BYTES` or more bytes."""
    return aligned(_HEAD.size + int(_HEAD.unpack_from(head)[2]))


def decode(text: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object.  RunError if the text is not one."""
    try:
        found = json.loads(text.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{what} is damaged: its header is not JSON ({error}). Build it again") from error
    if not isinstance(found, dict):
        raise RunError(f"{what} is damaged: its header is not a JSON object. Build it again")
    return found


def kind_of(header: dict[str, Any], what: str) -> str:
    """The kind of executable in a header."""
    kind = text_of(field(header, "kind", what), f"{what}: kind")
    if kind not in KINDS:
        raise RunError(f"{what} is of the kind {kind!r}; known are {', '.join(KINDS)}")
    return kind


def program_of(header: dict[str, Any], what: str) -> dict[str, Any]:
    """The program in a header; only its version is checked."""
    program = field(header, "program", what)
    if not isinstance(program, dict) or program.get("version") != VERSION:
        raise RunError(f"{what} holds no program of version {VERSION}. Build it again with this tunesmith")
    return program


def read_constants(header: dict[str, Any], payload: np.ndarray, what: str) -> NamedArrays:
    """The constants as views of the payload.  RunError if one exceeds it."""
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
    """Size of the constants in bytes, including padding."""
    size = 0
    for i, row in enumerate(_rows(header, what)):
        where = f"{what}: constant {i}"
        offset = int_of(field(row, "offset", where), f"{where}: offset", 0)
        size = max(size, offset + aligned(nbytes(dtype_of(field(row, "dtype", where), where), shape_of(field(row, "shape", where), where))))
    return size


def _rows(header: dict[str, Any], what: str) -> Sequence[Any]:
    return list_of(field(header, "constants", what), f"{what}: constants")
