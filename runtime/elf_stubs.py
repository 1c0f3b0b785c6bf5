"""Add empty sections to an object file, so that LLVM's linker in memory reserves enough for its stubs and their addresses.

The linker first reserves memory for the sum of the sections, and then takes each section from it, with slack for its alignment, with stubs
for calls of other libraries, and with a table of the addresses that they jump to.  Stubs and table are not counted in what is reserved: if
they end beyond the last page, or no section of their kind exists, the process is aborted (an assertion of llvmlite's memory manager).  A
section that nothing refers to is counted, but never loaded.
"""

from __future__ import annotations

import struct

STUB = 32
"""Upper limit of the bytes of a stub, 6 on x86-64 and 20 on aarch64, with its alignment; and of its address."""
SLACK = 128
"""Upper limit of the bytes that the alignment of a section takes in addition."""
_TABLE = struct.Struct("<40xQ10xHH")
"""In the header of the file: offset of the section table, size and number of its entries."""
_START, _COUNT = 40, 60
_SECTION = struct.Struct("<IIQQQQIIQQ")
"""Name, type, flags, address, offset, size, link, section that relocations apply to, alignment, and size of an entry."""
_RELOCATIONS, _NO_BITS = 4, 8
_WRITABLE, _ALLOCATED, _EXECUTABLE = 1, 2, 4


def with_space_for_stubs(data: bytes) -> bytes:
    """The object with one more section of code, of constants and of variables, each as large as all stubs may be.

    Args:
        data: a valid ELF object, 64 bit, little endian (`runtime.elf_symbols`).
    """
    start, size, count = _TABLE.unpack_from(data)
    sections = [_SECTION.unpack_from(data, start + n * size) for n in range(count)]
    space = SLACK * count + sum(STUB * (length // each) for _, kind, _, _, _, length, _, _, _, each in sections if kind == _RELOCATIONS)
    added = [_SECTION.pack(0, _NO_BITS, flags | _ALLOCATED, 0, 0, space, 0, 0, 1, 0) for flags in (_EXECUTABLE, 0, _WRITABLE)]
    padding = bytes(-len(data) % 8)
    out = bytearray(b"".join([data, padding, data[start : start + size * count], *added]))
    struct.pack_into("<Q", out, _START, len(data) + len(padding))
    struct.pack_into("<H", out, _COUNT, count + len(added))
    return bytes(out)
