"""Read the symbols that an object file or shared library defines and needs from its ELF symbol table.

LLVM aborts the process when it links an object with an undefined symbol, and TVM-FFI cannot list the functions
of a library: both are checked here first.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from mmap import mmap

from tunesmith.support.errors import OtherMachineError, RunError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_DYNAMIC = struct.Struct("<qQ")
_SYMTAB, _RELA, _DYNAMIC_SECTION, _DYNSYM = 2, 4, 6, 11
_NEEDED_LIBRARY = 1
_ALLOCATED = 2
_ABSOLUTE_32 = {"x86_64": (10, 11)}
"""Relocations to absolute 32-bit addresses, R_X86_64_32 and R_X86_64_32S: they require the lowest 4 or 2 GB."""
_GLOBAL, _WEAK = 1, 2
_DEFAULT = 0

OBJECT, LIBRARY = 1, 3
"""File types: a relocatable object, and a shared library."""

MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}
"""ELF machine numbers -> names of `platform.machine()`."""


@dataclass(frozen=True, slots=True)
class ElfSymbols:
    """The symbols of one file.

    Args:
        kind: OBJECT or LIBRARY.
        machine: the target processor, as named by `platform.machine()`.
        defined: names other files can refer to, sorted.
        needed: names that another file must define, sorted; weak references, which may stay unresolved, are omitted.
        movable: the code runs at any address (always true of a library).
        libraries: names of the libraries that a library depends on (DT_NEEDED), in order; empty for an object.
    """

    kind: int
    machine: str
    defined: tuple[str, ...]
    needed: tuple[str, ...]
    movable: bool
    libraries: tuple[str, ...] = ()


def read_symbols(data: bytes | mmap, what: str = "the object") -> ElfSymbols:
    """The symbols of an ELF file (64 bit, little endian).

    Args:
        data: the whole file; large files are best memory-mapped.
        what: name of the file in error messages.
    Raises:
        OtherMachineError: the bytes are an object or library of macOS.
        RunError: the bytes are not an ELF file of this kind, or are damaged.
    """
    if data[:4] == b"\xcf\xfa\xed\xfe":
        raise OtherMachineError(f"{what} is a Mach-O file, for macOS. Compile for Linux, for example with -mtriple=aarch64-linux-gnu")
    if data[:6] != b"\x7fELF\x02\x01":
        raise RunError(f"{what} is not a 64-bit little-endian ELF file (it starts with {data[:4]!r}). Build it for this machine")
    try:
        return _read(data)
    except (struct.error, IndexError, ValueError) as error:
        raise RunError(f"{what} is damaged: its symbol table cannot be read ({error}). Build it again") from error


def _read(data: bytes | mmap) -> ElfSymbols:
    _, kind, machine, _, _, _, table, _, _, _, _, size, count, _ = _HEADER.unpack_from(data)
    sections = [_SECTION.unpack_from(data, table + i * size) for i in range(count)]
    symbol_section = _DYNSYM if kind == LIBRARY else _SYMTAB
    defined: set[str] = set()
    needed: set[str] = set()
    name_of_machine = MACHINES.get(machine, f"machine {machine}")
    absolute = _ABSOLUTE_32.get(name_of_machine, ())
    movable = True
    libraries: list[str] = []
    for _, section, _, _, offset, length, link, target, _, entry in sections:
        if section == _RELA and kind == OBJECT and sections[target][2] & _ALLOCATED:
            movable &= all(
                _RELOCATION.unpack_from(data, at)[1] & 0xFFFFFFFF not in absolute for at in range(offset, offset + length, entry)
            )
        if section == _DYNAMIC_SECTION:
            entries = [_DYNAMIC.unpack_from(data, at) for at in range(offset, offset + length, entry)]
            libraries += [_text(data, sections[link][4] + value) for tag, value in entries if tag == _NEEDED_LIBRARY]
        if section != symbol_section:
            continue
        names = sections[link][4]
        for at in range(offset, offset + length, entry):
            name, info, other, section_index, _, _ = _SYMBOL.unpack_from(data, at)
            if info >> 4 not in (_GLOBAL, _WEAK) or not name:
                continue
            text = _text(data, names + name)
            if section_index:
                if other & 3 == _DEFAULT:
                    defined.add(text)
            elif info >> 4 == _GLOBAL:
                needed.add(text)
    return ElfSymbols(kind, name_of_machine, tuple(sorted(defined)), tuple(sorted(needed)), movable, tuple(libraries))


def _text(data: bytes | mmap, start: int) -> str:
    """The zero-terminated string at an offset."""
    end = data.find(b"\0", start)
    if end < 0:
        raise ValueError("a name has no end")
    return data[start:end].decode()
