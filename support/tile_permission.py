"""Ask Linux for permission to use the tile registers of AMX, which a process needs once.

Without it the first access of a tile register ends the process by SIGILL.  The permission holds for all threads, also those that exist
already, and for forked processes, not for programs that are executed afterwards (Linux, Documentation/arch/x86/xstate.rst).
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache

ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18
"""The system call of x86-64, and its arguments: ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA."""


@cache
def request_tile_permission() -> bool:
    """Ask for the permission to use tile registers, on the first call; whether this process has it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return int(ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA)) == 0
