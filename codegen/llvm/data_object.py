"""Data objects: bytes become an ELF object that any linker takes, so that a library can hold a model's program and weights.

The format is so small that no compiler is needed, and hundreds of megabytes pass through no text.  Each symbol has a read-only section
of its own that starts at a page, so that a process which loads the library maps its bytes and reads none of them before they are used.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from tunesmith.runtime.executor.executable import Piece

PAGE = 4096

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATABLE = 1
_PROGBITS, _SYMTAB, _STRTAB = 1, 2, 3
_ALLOCATED = 2
_GLOBAL_OBJECT = 1 << 4 | 1


@dataclass(frozen=True, slots=True)
class DataSymbol:
    """Bytes with a name.

    Attributes:
        name: of the global symbol.
        pieces: the bytes, in order.
        nbytes: how many there are.
    """

    name: str
    pieces: Sequence[Piece]
    nbytes: int


def write_data_object(file: BinaryIO, symbols: Sequence[DataSymbol], like: bytes) -> None:
    """Write a relocatable ELF object that defines the symbols.

    Args:
        file: where to, from its start.
        symbols: what it defines, at least one.
        like: an object for the same machine: processor and flags of the ABI are taken from it.
    """
    _, _, machine, _, _, _, _, flags, *_ = _HEADER.unpack_from(like)
    names = b"\0" + b"".join(s.name.encode() + b"\0" for s in symbols)
    labels = b"\0.rodata.tunesmith\0.note.GNU-stack\0.symtab\0.strtab\0"
    label = {text: labels.index(text.encode() + b"\0") for text in (".rodata.tunesmith", ".note.GNU-stack", ".symtab", ".strtab")}
    offset = PAGE
    sections = [_SECTION.pack(*[0] * 10)]
    table = [_SYMBOL.pack(*[0] * 6)]
    starts = []
    for i, s in enumerate(symbols):
        starts.append(offset)
        sections.append(_SECTION.pack(label[".rodata.tunesmith"], _PROGBITS, _ALLOCATED, 0, offset, s.nbytes, 0, 0, PAGE, 0))
        table.append(_SYMBOL.pack(names.index(b"\0" + s.name.encode() + b"\0") + 1, _GLOBAL_OBJECT, 0, i + 1, 0, s.nbytes))
        offset += -(-s.nbytes // PAGE) * PAGE
    tail = b"".join(table) + names + labels
    rows = (  # type, size, index of the names that belong to it, first global symbol, alignment, size of an entry
        (".note.GNU-stack", _PROGBITS, 0, 0, 0, 1, 0),
        (".symtab", _SYMTAB, len(b"".join(table)), len(symbols) + 3, 1, 8, _SYMBOL.size),
        (".strtab", _STRTAB, len(names), 0, 0, 1, 0),
        (".strtab", _STRTAB, len(labels), 0, 0, 1, 0),
    )
    at = offset
    for text, kind, size, link, info, align, entry in rows:
        sections.append(_SECTION.pack(label[text], kind, 0, 0, at, size, link, info, align, entry))
        at += size
    at += -at % 8
    count = len(sections)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    file.write(_HEADER.pack(ident, _RELOCATABLE, machine, 1, 0, 0, at, flags, _HEADER.size, 0, 0, _SECTION.size, count, count - 1))
    for start, s in zip(starts, symbols, strict=True):
        file.write(bytes(start - file.tell()))
        for piece in s.pieces:
            file.write(piece)
    file.write(bytes(offset - file.tell()) + tail)
    file.write(bytes(at - file.tell()) + b"".join(sections))
