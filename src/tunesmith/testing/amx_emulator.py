"""Emulate Intel AMX on x86-64 Linux processors without it, so that tests can run AMX code there.

Such a processor raises SIGILL for AMX instructions.  `emulated_amx` installs a handler (`amx_emulator.c`, compiled on the first use) that
decodes and executes them, in every thread of the process: bit for bit as Intel's manual describes, about ten microseconds an instruction.

    with emulated_amx() as counts:
        function(a, b, c)
        assert counts()["tdpbf16ps"] > 0

An illegal use ends the process by SIGILL or SIGSEGV, as on a processor with AMX, after one line on stderr that names the broken rule.

Not emulated: other AMX extensions (complex, TF32, FP8), addresses with segment or address-size prefixes, tiles in XSAVE areas and signal
frames, the kernel's permission, and threads that block SIGILL.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tunesmith.runtime.processor import EMULATED, hardware_flags
from tunesmith.support.errors import BuildError, RunError

FLAGS = frozenset({"amx_tile", "amx_bf16", "amx_int8"})
"""The emulated flags of `/proc/cpuinfo`."""
INSTRUCTIONS = (
    "ldtilecfg", "sttilecfg", "tilerelease", "tilezero", "tileloadd", "tileloaddt1", "tilestored",
    "tdpbssd", "tdpbsud", "tdpbusd", "tdpbuud", "tdpbf16ps", "tdpfp16ps",
)  # fmt: skip
"""The emulated instructions, in the order of their numbers in `amx_emulator.c`."""

SOURCE = Path(__file__).with_suffix(".c")
OPTIONS = "-std=gnu11 -O3 -march=native -ffp-contract=off -fno-math-errno -fno-trapping-math -shared -fPIC -pthread".split()
"""`-march=native` for fused multiply-adds in hardware; without them they are calls of libm, with the same results."""

_lock = threading.Lock()
_depth = 0
"""Entered and not yet left `emulated_amx` contexts of the process."""


def in_hardware() -> bool:
    """This processor has AMX, so that nothing is emulated.  A process still has to ask the kernel for permission to use it."""
    return FLAGS <= hardware_flags()


def available() -> bool:
    """AMX code can run here, in `emulated_amx`: on Linux for x86-64, with a C compiler or a processor with AMX.

    On a processor with AMX nothing needs emulation: `emulated_amx` does nothing there.
    """
    return sys.platform == "linux" and platform.machine() == "x86_64" and (in_hardware() or c_compiler() is not None)


def c_compiler() -> list[str] | None:
    """The command of a C compiler: `cc`, `clang` or that of the package ziglang."""
    for name in ("cc", "clang"):
        if (program := shutil.which(name)) is not None:
            return [program]
    return [sys.executable, "-m", "ziglang", "cc"] if importlib.util.find_spec("ziglang") is not None else None


class Counts:
    """Numbers of instructions that the process has emulated, in all of its threads.

    Attributes:
        emulated: instructions are emulated; on a processor with AMX they are not, and all counts are 0.
    """

    def __init__(self, library: ctypes.CDLL | None) -> None:
        self.emulated = library is not None
        self._library = library
        self.reset()

    def __call__(self) -> dict[str, int]:
        """Name of an instruction in lower case -> executions since the context was entered or `reset` was called."""
        return {name: total - self._start[name] for name, total in self._totals().items()}

    def reset(self) -> None:
        """Count from 0 again."""
        self._start = self._totals()

    def _totals(self) -> dict[str, int]:
        if self._library is None:
            return dict.fromkeys(INSTRUCTIONS, 0)
        return {name: self._library.amx_emulator_count(i) for i, name in enumerate(INSTRUCTIONS)}


@contextmanager
def emulated_amx() -> Iterator[Counts]:
    """Emulate AMX in this process, and let `check_processor` accept code that needs it.  Contexts may be nested, and entered by threads.

    The handler of SIGILL that was there before the first context is restored at the end of the last one.  Processes that are forked
    inherit the emulation; others have to enter a context of their own.  On a processor with AMX the context does nothing.

    Raises:
        RunError: this is not Linux on x86-64, or there is no C compiler.
        BuildError: the C compiler fails.
    """
    if not available():
        raise RunError("AMX is emulated on Linux for x86-64 with a C compiler: cc, clang, or the package ziglang")
    if in_hardware():
        yield Counts(None)
        return
    _enter()
    try:
        yield Counts(_library())
    finally:
        _leave()


def _enter() -> None:
    global _depth
    with _lock:
        if _depth == 0:
            _check(_library().amx_emulator_install())
            EMULATED.update(FLAGS)
        _depth += 1


def _leave() -> None:
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0:
            EMULATED.difference_update(FLAGS)
            _check(_library().amx_emulator_remove())


def _check(code: int) -> None:
    if code:
        raise RunError(f"the handler of SIGILL cannot be set: {os.strerror(ctypes.get_errno())}")


@cache
def _library() -> ctypes.CDLL:
    """The compiled handler.  It stays loaded: threads may be in it."""
    with tempfile.TemporaryDirectory(prefix="tunesmith-amx-") as folder:
        path = Path(folder) / "amx_emulator.so"
        command = [*(c_compiler() or ()), *OPTIONS, str(SOURCE), "-o", str(path), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"the AMX emulator does not compile: {' '.join(command)}\n{done.stderr}")
        library = ctypes.CDLL(str(path), use_errno=True)
    library.amx_emulator_name.restype = ctypes.c_char_p
    library.amx_emulator_count.restype = ctypes.c_ulonglong
    return library
