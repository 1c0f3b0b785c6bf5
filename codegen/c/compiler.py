"""Find a C compiler, translate targets to its flags, and compile C text to object code."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tunesmith.ir.target.architectures import architecture
from tunesmith.ir.target.detect import detect_host
from tunesmith.ir.target.target import Target
from tunesmith.support.errors import BuildError
from tunesmith.support.temporary_folder import temporary_folder

LANGUAGE = ("-std=c11", "-O2", "-fno-tree-slp-vectorize", "-ftree-vectorize", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
"""Flags for the language and its meaning.  Products are rounded before they are added, unless the program says fma; loops over the lanes
of a vector become vector instructions, and other code is vectorized by the schedule alone."""
_OBJECT = ("-fPIC", "-fno-asynchronous-unwind-tables", "-fno-stack-protector", "-fno-ident", "-Wno-psabi", "-fno-strict-aliasing", "-w")
_CANDIDATES = ("cc", "gcc", "clang")
_SECONDS = 600


@dataclass(frozen=True, slots=True)
class CCompiler:
    """A C compiler.

    Attributes:
        command: start of the command line.
        name: gcc, clang, or zig, which is Clang with other names of processors.
        machine: the architecture that it compiles for without further flags; empty if it does not say so.
    """

    command: tuple[str, ...]
    name: str
    machine: str = ""


class NoCompilerError(BuildError):
    """There is no C compiler for a target."""


_ZIG = CCompiler((sys.executable, "-m", "ziglang", "cc"), "zig")
_MACROS = {"__x86_64__": "x86_64", "__aarch64__": "aarch64", "__riscv": "riscv64"}
"""Macros by which a compiler names the architecture that it compiles for."""


def find_compiler() -> CCompiler:
    """The C compiler of this machine: that of the environment variable CC, `cc`, `gcc`, `clang`, or zig of the package `ziglang`.

    Raises:
        NoCompilerError: there is none; the message says what to install.
        BuildError: CC names none, or the compiler is too old.
    """
    return _found(os.environ.get("CC", ""), os.environ.get("PATH", ""))


@cache
def _found(named: str, path: str) -> CCompiler:
    del path  # a part of the key: it decides what is found
    if named:
        words = shlex.split(named)
        if not words or shutil.which(words[0]) is None:
            raise BuildError(f"the environment variable CC is {named!r}, which is no program on PATH. Set it to a C compiler, or unset it")
        return _described(tuple(words))
    for name in _CANDIDATES:
        program = shutil.which(name)
        if program is not None:
            return _described((program,))
    if importlib.util.find_spec("ziglang") is not None:
        return _ZIG
    raise NoCompilerError(
        f"no C compiler found: the environment variable CC is not set, {', '.join(_CANDIDATES)} are not on PATH, and the package ziglang "
        "is not installed. Install one:  apt install gcc  (12 or newer)  or  pip install 'tunesmith[link]'"
    )


def _described(command: tuple[str, ...]) -> CCompiler:
    """The compiler that a command runs.  Raises BuildError if it is none, or too old for the vector extensions that are used."""
    try:
        done = subprocess.run(
            [*command, "-dM", "-E", "-x", "c", "-"], input="", capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"the C compiler {shlex.join(command)} cannot be run: {error}. Set CC to another one") from error
    macros = dict(re.findall(r"#define (\w+) (.*)", done.stdout))
    is_clang = "__clang__" in macros
    version = int(macros.get("__clang_major__" if is_clang else "__GNUC__", "0"))
    if done.returncode or version < 12:
        what = f"{'Clang' if is_clang else 'GCC'} {version}" if version else "neither GCC nor Clang"
        raise BuildError(
            f"the C compiler {shlex.join(command)} is {what}; the vector extensions need version 12 of GCC or Clang. Set CC to another one"
        )
    is_zig = "ziglang" in command or Path(command[0]).name == "zig"
    machine = next((arch for macro, arch in _MACROS.items() if macro in macros), "")
    return CCompiler(command, "zig" if is_zig else "clang" if is_clang else "gcc", machine)


def compiler_for(target: Target) -> CCompiler:
    """The C compiler for the architecture of a target: that of `find_compiler`, else `<architecture>-linux-gnu-gcc`, else zig.

    Raises:
        NoCompilerError: there is none; the message says what to install.
    """
    arch = architecture(target.mtriple)
    try:
        compiler = find_compiler()
        if compiler.name != "gcc" or arch == (compiler.machine or detect_host().arch):
            return compiler
        reason = f"the C compiler {shlex.join(compiler.command)} compiles for {compiler.machine or 'this machine'} only"
    except NoCompilerError as error:
        if arch == detect_host().arch:
            raise
        reason = str(error).split(". Install one:")[0]
    cross = f"{arch}-linux-gnu-gcc"
    if shutil.which(cross) is not None:
        return _found(cross, os.environ.get("PATH", ""))
    if importlib.util.find_spec("ziglang") is not None:
        return _ZIG
    raise NoCompilerError(
        f"cannot compile for {target}: {reason}, and there is no {cross}. Install one, or set CC to Clang:  apt install "
        f"gcc-{arch.replace('_', '-')}-linux-gnu  or  pip install 'tunesmith[link]'"
    )


def target_flags(target: Target, compiler: CCompiler) -> list[str]:
    """Flags for the architecture and the processor of a target."""
    arch, flags = architecture(target.mtriple), processor_flags(target, compiler.name)
    return flags if compiler.name == "gcc" or arch == (compiler.machine or detect_host().arch) else [f"--target={arch}-linux-gnu", *flags]


def processor_flags(target: Target, compiler: str = "gcc") -> list[str]:
    """Flags for the instruction sets of a target, as a compiler spells them: see `CCompiler.name`."""
    mcpu = target.mcpu.replace("-", "_") if compiler == "zig" else target.mcpu
    attributes = sorted(filter(None, target.mattr.split(",")), key=lambda flag: flag[0] == "-")
    arch = architecture(target.mtriple)
    if arch == "aarch64":
        extensions = "".join(f"+{'' if flag[0] == '+' else 'no'}{flag[1:]}" for flag in attributes)
        return [f"-mcpu={mcpu or 'generic'}{extensions}"]
    if arch == "riscv64":
        return _riscv_flags(target, compiler)
    flags = [f"-march={mcpu or 'x86-64'}"]
    flags += [f"-m{'' if flag[0] == '+' else 'no-'}{flag[1:]}" for flag in attributes]
    return [*flags, "-mprefer-vector-width=512"] if target.has_feature("avx512f") else flags


def _riscv_flags(target: Target, compiler: str) -> list[str]:
    """The instruction sets of a RISC-V processor by their names, since compilers know few processors."""
    letters = "".join(f for f in "mafdcv" if f in target.features)
    words = sorted(f for f in target.features if len(f) > 1)
    if compiler == "zig":
        return [f"-mcpu={'+'.join(['baseline_rv64', *letters, *words])}"]
    return [f"-march={'_'.join([f'rv64i{letters}', *words])}", "-mabi=lp64d"]


def compile_c(text: str, target: Target, what: str) -> bytes:
    """Relocatable object bytes of a C file, position-independent.

    Args:
        text: the file.
        target: target of the code.
        what: names of the functions, for messages.
    Raises:
        BuildError: there is no compiler, or it refuses the text or the target.
    """
    return _run(text, target, what, "-c")


def compile_c_assembly(text: str, target: Target, what: str) -> str:
    """The assembly that `compile_c` would encode, for display."""
    return _run(text, target, what, "-S").decode()


def _run(text: str, target: Target, what: str, mode: str) -> bytes:
    compiler = compiler_for(target)
    with temporary_folder("tunesmith-c-") as folder:
        command = [*compiler.command, *LANGUAGE, *_OBJECT, *target_flags(target, compiler), mode, "-x", "c", "-", "-o", "out"]
        try:
            done = subprocess.run(command, cwd=folder, input=text.encode(), capture_output=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"{what}: the C compiler failed: {error}") from error
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            shown = [line for line in lines if "error" in line][:5] or lines[:5]
            raise BuildError(f"{what}: {shlex.join(command)} failed for {target}:\n  " + "\n  ".join(shown))
        return (folder / "out").read_bytes()
