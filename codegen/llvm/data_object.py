"""Write bytes as ELF data objects, so that a linker can put the program and weights of a model into a library.

The format is simple enough to write without a compiler, and the bytes are never converted to text.  Each symbol has a page-aligned
read-only section of its own, so that a process that loads the library maps the bytes and reads them on first use.
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
    """A named sequence of bytes.

    Attributes:
        name: the global symbol.
        pieces: the bytes, in order.
        nbytes: their number.
    """

    name: str
    pieces: Sequence[Piece]
    nbytes: int


def write_data_object(file: BinaryIO, symbols: Sequence[DataSymbol], like: bytes) -> None:
    """Write a relocatable ELF object that defines the symbols.

    Args:
        file: destination, written from its start.
        symbols: symbols to define, at least one.
        like: an object for the same machine, from which the processor and the ABI flags are copied.
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
    rows = (  # type, size, linked name section, first global symbol, alignment, entry size
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
