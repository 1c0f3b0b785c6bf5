"""Align sections of an object file to pages, so that LLVM's linker in memory reserves enough for them.

The linker first reserves memory for the sum of the sections' sizes, rounded up to pages, and then takes each section from it with some
slack for its alignment.  If the sum ends just below a page, the slack does not fit, and the process is aborted (an assertion of llvmlite's
memory manager).  With one section of each kind aligned to pages, what is reserved exceeds what is taken by any number of smaller sections.
"""

from __future__ import annotations

import struct

PAGE = 4096
_TABLE = struct.Struct("<40xQ10xHH")
"""In the header of the file: offset of the section table, size and number of its entries."""
_SECTION = struct.Struct("<8xQ16xQ8xQ")
"""Of a section: flags, size and alignment."""
_ALIGNMENT = 48
"""Offset of the alignment in an entry of the section table."""
_WRITABLE, _ALLOCATED, _EXECUTABLE = 1, 2, 4


def with_aligned_sections(data: bytes) -> bytes:
    """The object with its largest sections of code, of constants and of variables aligned to pages.

    Args:
        data: a valid ELF object, 64 bit, little endian (`runtime.elf_symbols`).
    """
    out = bytearray(data)
    table, size, count = _TABLE.unpack_from(data)
    largest: dict[int, tuple[int, int]] = {}
    for at in range(table, table + size * count, size):
        flags, length, _ = _SECTION.unpack_from(data, at)
        if flags & _ALLOCATED and length:
            kind = flags & (_WRITABLE | _EXECUTABLE)
            largest[kind] = max(largest.get(kind, (0, 0)), (length, at))
    for _, at in largest.values():
        *_, alignment = _SECTION.unpack_from(data, at)
        struct.pack_into("<Q", out, at + _ALIGNMENT, max(alignment, PAGE))
    return bytes(out)
