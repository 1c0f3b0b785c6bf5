"""Refuse code whose instructions this processor lacks, before it is called: an illegal instruction would end the process.

Compiled objects define a symbol whose name lists the instruction sets that they use, as `/proc/cpuinfo` spells them:
`__tunesmith_needs_v1.avx512f.avx512_vnni`.  Linking keeps all of these symbols, and reading a symbol table runs no code.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tunesmith.support.errors import OtherMachineError
from tunesmith.support.tile_permission import request_tile_permission

NEEDS = "__tunesmith_needs_v1."
"""Beginning of the symbol."""

TILES = "amx_tile"
"""The flag of the tile registers of AMX."""

EMULATED: set[str] = set()
"""Flags of `/proc/cpuinfo` that this process has by emulation: `testing/amx_emulator.py` adds and removes them.  Code that needs one is
accepted, and the kernel is not asked for permission to use it, which it cannot give."""


def needs_symbol(flags: Iterable[str]) -> str:
    """The symbol for these flags of `/proc/cpuinfo`."""
    return NEEDS + ".".join(sorted(flags))


def check_processor(symbols: Iterable[str], what: str) -> None:
    """Check the instruction sets that code needs.  Without `/proc/cpuinfo` nothing is checked.

    For code that uses tile registers (AMX), ask the kernel for the permission that a process needs.

    Args:
        symbols: the symbols that it defines.
        what: the code, for the message.
    Raises:
        OtherMachineError: this processor lacks one, or the kernel refuses the permission.
    """
    needed = {flag for s in symbols if s.startswith(NEEDS) for flag in s.removeprefix(NEEDS).split(".") if flag}
    missing = sorted(needed - _flags() - EMULATED) if needed and _flags() else []
    if missing:
        raise OtherMachineError(
            f"{what} was compiled for a processor with {', '.join(missing)}, which this machine lacks. Compile it for this machine, or for "
            'a target that both have, such as Target("llvm -mcpu=x86-64-v3 -num-cores=2")'
        )
    if TILES in needed - EMULATED and not request_tile_permission():
        raise OtherMachineError(
            f"{what} uses the tile registers of AMX, and the kernel refuses this process the permission to use them "
            "(arch_prctl ARCH_REQ_XCOMP_PERM), which needs Linux 5.16 and no sandbox that filters the call. Compile it for a target "
            'without them, such as Target("llvm -mattr=-amx-tile")'
        )


def hardware_flags() -> frozenset[str]:
    """The flags of this processor, without emulated ones; empty without `/proc/cpuinfo`."""
    return _flags()


@cache
def _flags() -> frozenset[str]:
    """The flags of the first processor in `/proc/cpuinfo`; empty if it cannot be read."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
