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
    """

    command: tuple[str, ...]
    name: str


def find_compiler() -> CCompiler:
    """The C compiler of this machine: that of the environment variable CC, `cc`, `gcc`, `clang`, or zig of the package `ziglang`.

    Raises:
        BuildError: there is none, or CC names none; the message says what to install.
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
        return CCompiler((sys.executable, "-m", "ziglang", "cc"), "zig")
    raise BuildError(
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
    return CCompiler(command, "zig" if is_zig else "clang" if is_clang else "gcc")


def target_flags(target: Target, compiler: CCompiler) -> list[str]:
    """Flags for the processor of a target.

    Raises:
        BuildError: the target has another architecture than this machine, and the compiler is GCC.
    """
    arch = "aarch64" if target.mtriple.startswith(("aarch64", "arm64")) else "x86_64"
    if arch == detect_host().arch:
        return processor_flags(target, compiler.name)
    if compiler.name == "gcc":
        raise BuildError(
            f"the C compiler {shlex.join(compiler.command)} compiles for this machine only, not for {target}. Set CC to Clang, or to zig, "
            "which compiles for both:  pip install 'tunesmith[link]'"
        )
    return [f"--target={arch}-linux-gnu", *processor_flags(target, compiler.name)]


def processor_flags(target: Target, compiler: str = "gcc") -> list[str]:
    """Flags for the instruction sets of a target, as a compiler spells them: see `CCompiler.name`."""
    mcpu = target.mcpu.replace("-", "_") if compiler == "zig" else target.mcpu
    attributes = sorted(filter(None, target.mattr.split(",")), key=lambda flag: flag[0] == "-")
    if target.mtriple.startswith(("aarch64", "arm64")):
        extensions = "".join(f"+{'' if flag[0] == '+' else 'no'}{flag[1:]}" for flag in attributes)
        return [f"-mcpu={mcpu or 'generic'}{extensions}"]
    flags = [f"-march={mcpu or 'x86-64'}"]
    flags += [f"-m{'' if flag[0] == '+' else 'no-'}{flag[1:]}" for flag in attributes]
    return [*flags, "-mprefer-vector-width=512"] if target.has_feature("avx512f") else flags


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
    compiler = find_compiler()
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
