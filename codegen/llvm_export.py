"""Linking: object bytes become a shared library that TVM-FFI loads without tunesmith.

A library may hold a whole model: an executable's program and constants go in as they are, for `runtime.module.load_module` to find.

The library names libgomp.so.1 as what it needs (only if it has parallel loops), so that it loads into any process;
libtvm_ffi, whose process it is loaded into, is not named.  Equal objects give equal bytes: the linker is told to
leave out whatever tells one run from another.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

import llvmlite.binding as llvm

from tunesmith.codegen.data_object import DataSymbol, write_data_object
from tunesmith.runtime.argument_checker import CHECKERS
from tunesmith.runtime.elf_symbols import read_symbols
from tunesmith.runtime.executable import Executable, payload_of
from tunesmith.runtime.library import CONSTANTS, PROGRAM, library_program, parameters_path, write_parameters
from tunesmith.runtime.object_loader import checker_object
from tunesmith.runtime.threads import is_openmp_symbol
from tunesmith.support.errors import BuildError, RunError

_FLAGS = ("-Bsymbolic", "--build-id=none", "--hash-style=gnu", "-z,noexecstack", "-z,nodelete", "-z,text", "-z,now", "--as-needed")
"""now: a symbol that is missing is an error of loading, not the end of the process at the first call.  nodelete: if the
library could be unloaded at exit, libgomp would go with it while its idle workers still run in it."""
PARAMETERS = ("inside", "beside")
"""Where the constants of a model go."""
_MOST_INSIDE = 1 << 30
"""Bytes of constants: code reaches its data by 32-bit distances across them."""


def export_library(
    path: str | PathLike[str], objects: Sequence[bytes], executable: Executable | None = None, parameters: str = "inside"
) -> Path:
    """Link ELF objects, compiled as position-independent code, into one shared library.

    Tried in turn: `ld`, `cc`, and the linker inside the package `ziglang`.

    Args:
        path: where the library goes; a file there is replaced as a whole, never half-written.
        objects: the objects; two may not define the same function.
        executable: a model that the library shall hold; its code is linked too.
        parameters: where its constants go, one of `PARAMETERS`.  Beside the library they are a file, its name with `.params` behind, which
            the library recognises by its digest, so that libraries can be small and models exchanged without their weights.
    Returns:
        The path.
    Raises:
        BuildError: there is nothing to link, an object is not one, or no linker succeeded: the message holds every
            command that was tried with what it said.
    """
    target = Path(fspath(path))
    if parameters not in PARAMETERS:
        raise BuildError(f"parameters={parameters!r}: constants go {' or '.join(PARAMETERS)} the library")
    if executable is not None and executable.data is not None:
        objects = [*objects, executable.data]
    if not objects:
        raise BuildError(f"cannot export {target}: there are no objects to link")
    if not target.parent.is_dir():
        raise BuildError(f"cannot export {target}: the folder {target.parent} does not exist")
    needed = {symbol for i, data in enumerate(objects) for symbol in _needed(data, f"object {i}")}
    with tempfile.TemporaryDirectory(prefix=".tunesmith-", dir=target.parent) as folder:
        inputs = []
        for i, data in enumerate(objects):
            inputs.append(f"object{i}.o")
            Path(folder, inputs[-1]).write_bytes(data)
        if needed.intersection(CHECKERS):
            inputs.append("checker.o")
            Path(folder, inputs[-1]).write_bytes(checker_object())
        openmp = sorted(filter(is_openmp_symbol, needed))
        if openmp:
            # Linking against an empty stand-in gives the same library wherever it is built, and needs no libgomp there.
            Path(folder, "openmp.o").write_bytes(_stand_in(openmp))
            _link(target, Path(folder), ["-soname=libgomp.so.1"], ["openmp.o"], "libgomp.so.1")
            inputs.append("libgomp.so.1")
        if executable is not None:
            _write_model(Path(folder), target, executable, objects[-1], parameters)
            inputs.append("model.o")
        _link(target, Path(folder), [], inputs, "library.so")
        if Path(folder, "parameters").exists():
            os.replace(Path(folder, "parameters"), parameters_path(target))
        os.replace(Path(folder, "library.so"), target)
    return target


def _write_model(folder: Path, target: Path, executable: Executable, like: bytes, parameters: str) -> None:
    """The object `model.o` with program and constants, or with the program alone, and the constants in the file `parameters`."""
    inside = parameters == "inside"
    pieces, size = payload_of(executable.constants)
    if inside and size > _MOST_INSIDE:
        raise BuildError(
            f"cannot export {target}: {size} bytes of constants are too many for one library, whose code reaches 2 GB. "
            'Put them into a file of their own: parameters="beside"'
        )
    digest = None
    if not inside:
        with open(folder / "parameters", "wb") as file:
            digest = write_parameters(file, executable.constants)
    program = library_program(executable, digest)
    symbols = [DataSymbol(PROGRAM, [program], len(program)), *([DataSymbol(CONSTANTS, pieces, size)] if inside else [])]
    with open(folder / "model.o", "wb") as file:
        write_data_object(file, symbols, like)


def linkers() -> dict[str, list[str]]:
    """The linkers of this machine, best first: what an error message calls each, and the start of its command line."""
    found = {}
    for name in ("ld", "cc"):
        program = shutil.which(name)
        if program:
            found[name] = [program]
    if importlib.util.find_spec("ziglang") is not None:
        found["ziglang"] = [sys.executable, "-m", "ziglang", "ld.lld"]
    return found


def _needed(data: bytes, what: str) -> tuple[str, ...]:
    try:
        symbols = read_symbols(data, what)
    except RunError as error:
        raise BuildError(f"cannot export: {error}") from error
    if not symbols.movable:
        raise BuildError(f'cannot export: {what} is not position-independent. Compile it with reloc="pic"')
    return symbols.needed


def _stand_in(symbols: Sequence[str]) -> bytes:
    """An object that defines the symbols and does nothing."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = "\n".join(f"define void @{symbol}() {{\n  ret void\n}}" for symbol in symbols)
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small")
    return bytes(machine.emit_object(llvm.parse_assembly(text)))


def _link(target: Path, folder: Path, flags: list[str], inputs: list[str], output: str) -> None:
    """Run the first linker that succeeds."""
    tried = []
    for name, start in linkers().items():
        command = [*start, "-shared", *_spelled(name, [*_FLAGS, *flags]), "-o", output, *inputs]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode == 0:
            return
        tried.append(f"{' '.join(command)}\n    {(done.stderr or done.stdout).strip() or f'exit status {done.returncode}'}")
    if not tried:
        raise BuildError(
            f"cannot link {target}: neither `ld` nor `cc` is on PATH, nor is ziglang installed. "
            "Install one:  apt install binutils  or  pip install 'tunesmith[link]'"
        )
    raise BuildError(f"cannot link {target}. Tried:\n  " + "\n  ".join(tried))


def _spelled(linker: str, flags: Sequence[str]) -> list[str]:
    """Linker flags as the program takes them: a compiler driver passes them on, and adds libraries that are left out here."""
    if linker == "cc":
        return ["-nostdlib", *(f"-Wl,{flag}" for flag in flags)]
    return [word for flag in flags for word in flag.split(",")]
