"""Run code for another machine under QEMU: C programs, and functions of exported libraries.

Debian has all parts: `apt install qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross`, or with `riscv64` in place of both names.

    machine = EmulatedMachine("aarch64", folder)
    c = machine.call(library, "matmul", [a, b, c])[2]

A function is called by `emulated_machine.c` with the calling convention of TVM-FFI, whose functions for errors that program defines.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError, RunError

SOURCE = Path(__file__).with_suffix(".c")
PROCESSORS = {"aarch64": "max", "riscv64": "rv64,Zfh=true,v=true,vlen=512,vext_spec=v1.0"}
"""QEMU's processor by machine; with the extensions that tests generate code for."""
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
SECONDS = 300
"""Time limit of a program."""


class EmulatedMachine:
    """A machine that programs are compiled for and emulated.

    Args:
        name: as in `platform.machine()`: a name of `PROCESSORS`.
        folder: an existing folder for the program that calls functions, and for their arguments.
    Raises:
        BuildError: no emulator or cross compiler is installed; `missing` gives the reason.
    """

    def __init__(self, name: str, folder: Path) -> None:
        reason = missing(name)
        if reason is not None:
            raise BuildError(reason)
        self.name = name
        self.folder = folder.resolve()

    def compile_c(self, program: Path, source: Path, *arguments: str) -> Path:
        """Compile and link a C program; returns its path.

        Args:
            program: the file to write.
            source: the C file.
            arguments: further arguments of the compiler: flags, objects and libraries.
        Raises:
            BuildError: the compiler fails.
        """
        words = [f"{self.name}-linux-gnu-gcc", "-std=c99", "-O1", str(source), "-o", str(program), *arguments]
        done = subprocess.run(words, cwd=program.parent, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"cannot compile {source}: {done.stderr.strip()}")
        return program

    def run(self, program: Path, *arguments: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program; the result has its status and output.

        Args:
            program: the program.
            arguments: its arguments.
            folder: its current folder, by default that of the program.
        """
        root = f"/usr/{self.name}-linux-gnu"
        words = [f"qemu-{self.name}", "-cpu", PROCESSORS[self.name], "-L", root, str(program), *map(str, arguments)]
        return subprocess.run(words, cwd=folder or program.parent, capture_output=True, text=True, check=False, timeout=SECONDS)

    def call(self, library: Path, function: str, arrays: Sequence[np.ndarray], sizes: Sequence[int] = ()) -> list[np.ndarray]:
        """Call a function of an exported library; returns all arguments as the function left them.

        Args:
            library: path of the library.
            function: name of the function.
            arrays: the arguments, contiguous.
            sizes: values of its sizes.
        Raises:
            RunError: the function raises an error, writes outside of an argument, or the library cannot be loaded.
        """
        folder = self.folder
        (folder / "input").write_bytes(_arguments(arrays, sizes))
        done = self.run(self._caller, library.resolve(), f"__tvm_ffi_{function}", "input", "output")
        if done.returncode:
            raise RunError(f"{function} on an emulated {self.name}: {done.stderr.strip() or f'exit status {done.returncode}'}")
        data, at, found = (folder / "output").read_bytes(), 0, []
        for a in arrays:
            found.append(np.frombuffer(data, a.dtype, a.size, at).reshape(a.shape).copy())
            at += a.nbytes
        return found

    @cached_property
    def _caller(self) -> Path:
        return self.compile_c(self.folder / "call", SOURCE, "-rdynamic", "-ldl")


def missing(name: str) -> str | None:
    """Why programs of a machine cannot be run here, with what to install; None if they can.

    Args:
        name: as in `platform.machine()`.
    """
    if name not in PROCESSORS:
        return f"{name} is not emulated; there are {', '.join(PROCESSORS)}"
    absent = [program for program in (f"qemu-{name}", f"{name}-linux-gnu-gcc") if shutil.which(program) is None]
    library = {"aarch64": "arm64"}.get(name, name)
    if not absent:
        return None
    return f"{' and '.join(absent)} not found: apt install qemu-user gcc-{name}-linux-gnu libc6-dev-{library}-cross"


def _arguments(arrays: Sequence[np.ndarray], sizes: Sequence[int]) -> bytes:
    """The file that `emulated_machine.c` reads."""
    parts = [struct.pack("<qq", len(arrays), len(sizes))]
    for a in arrays:
        scalar = str(a.dtype)
        code = next(c for prefix, c in sorted(_CODES.items(), reverse=True) if scalar.startswith(prefix))
        parts.append(struct.pack(f"<{4 + a.ndim}q", code, 8 if scalar == "bool" else dt.bits(scalar), a.ndim, a.nbytes, *a.shape))
        parts.append(np.ascontiguousarray(a).tobytes())
    return b"".join([*parts, struct.pack(f"<{len(sizes)}q", *sizes)])
