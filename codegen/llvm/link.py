"""Link ELF objects of this machine or of another one with the first linker that succeeds.

The linkers of this machine are `ld`, `cc` and the one of the package `ziglang`.  Objects of another machine need a cross linker: that of
Debian's binutils (`aarch64-linux-gnu-ld`), or LLVM's `ld.lld`, alone or of the package `ziglang`, which links all machines.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tunesmith.support.errors import BuildError

_FLAGS = ("-Bsymbolic", "--build-id=none", "--hash-style=gnu", "-z,noexecstack", "-z,nodelete", "-z,text", "-z,now", "--as-needed")
"""now: a missing symbol is an error at load time, instead of aborting the process at the first call.  nodelete: if the library could be
unloaded at exit, libgomp would be unloaded too, while its idle workers still execute it."""


def linkers(machine: str) -> dict[str, list[str]]:
    """The installed linkers for objects of a machine, best first: name for error messages, and start of the command line.

    Args:
        machine: name of the machine as in `platform.machine()`.
    """
    found = {}
    for name in _programs(machine):
        program = shutil.which(name)
        if program:
            found[name] = [program]
    if importlib.util.find_spec("ziglang") is not None:
        found["ziglang"] = [sys.executable, "-m", "ziglang", "ld.lld"]
    return found


def _programs(machine: str) -> tuple[str, str]:
    return ("ld", "cc") if machine == platform.machine() else (f"{machine}-linux-gnu-ld", "ld.lld")


def link(
    folder: Path, machine: str, flags: Sequence[str], inputs: Sequence[str], output: str, *, shown: Path, mode: str = "-shared"
) -> None:
    """Link files of a folder.

    Args:
        folder: the folder of the inputs and of the output.
        machine: the machine of the objects, named as in `platform.machine()`.
        flags: further flags.
        inputs: file names, and flags between them.
        output: file name.
        shown: the path in error messages.
        mode: "-shared" for a shared library, "-r" for a relocatable object.
    Raises:
        BuildError: no linker succeeded; the message lists every command with its output, or says what to install.
    """
    tried = []
    for name, start in linkers(machine).items():
        words = [f"-Wl,{word}" if name == "cc" and word.startswith("--") else word for word in inputs]
        command = [*start, mode, *_spelled(name, [*(_FLAGS if mode == "-shared" else ()), *flags]), "-o", output, *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode == 0:
            return
        tried.append(f"{' '.join(command)}\n    {(done.stderr or done.stdout).strip() or f'exit status {done.returncode}'}")
    if not tried:
        first, second = _programs(machine)
        here = machine == platform.machine()
        package = "binutils" if here else f"binutils-{machine.replace('_', '-')}-linux-gnu"
        raise BuildError(
            f"cannot link {shown}{'' if here else f', whose code is for {machine}'}: neither `{first}` nor `{second}` is on PATH, nor is "
            f"ziglang installed. Install one:  apt install {package}  or  pip install 'tunesmith[link]'"
        )
    raise BuildError(f"cannot link {shown}. Tried:\n  " + "\n  ".join(tried))


def _spelled(linker: str, flags: Sequence[str]) -> list[str]:
    """Linker flags in the syntax of the program: a compiler driver forwards them, and adds libraries, which is disabled here."""
    if linker == "cc":
        return ["-nostdlib", *(f"-Wl,{flag}" for flag in flags)]
    return [word for flag in flags for word in flag.split(",")]
