"""Link objects of this machine or of another one into a shared library that TVM-FFI loads without tunesmith.

A library may contain a whole model: the program and constants of an executable are included unchanged, for `runtime.module.load_module`.

The library depends on libgomp.so.1 (only if it has parallel loops) and on the libraries that an executable names, so that it loads into
any process; libtvm_ffi, which is already loaded in the process, is not listed.  Equal objects give equal bytes: the linker flags exclude
everything that differs between runs.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path

from tunesmith.codegen.cpu.c_header import c_header
from tunesmith.codegen.llvm.aot import front_beside, front_inside
from tunesmith.codegen.llvm.data_object import DataSymbol, write_data_object
from tunesmith.codegen.llvm.link import link
from tunesmith.codegen.llvm.model_entry import model_checker, model_entry
from tunesmith.runtime.checker.argument_checker import CHECKERS
from tunesmith.runtime.elf_symbols import ElfSymbols, read_symbols
from tunesmith.runtime.executor.aot_executor import AotExecutor, program_name
from tunesmith.runtime.executor.executable import HEAD_BYTES, Executable, Piece, payload_of
from tunesmith.runtime.executor.model_library import CONSTANTS, PROGRAM, library_program, parameters_path, write_parameters
from tunesmith.runtime.generic_code import generic_object
from tunesmith.runtime.object_loader import checker_object, thread_support_object
from tunesmith.runtime.thread_support import SUPPORT
from tunesmith.runtime.threads import is_openmp_symbol
from tunesmith.support import atomic_file
from tunesmith.support.errors import BuildError, RunError
from tunesmith.support.temporary_folder import temporary_folder

PARAMETERS = ("inside", "beside")
"""Where the constants of a model are stored."""
_SYSTEM = ("libm.so.6", "libc.so.6")
"""Libraries that code compiled ahead of time may need in a process that is not Python."""
_MOST_INSIDE = 1 << 30
"""Limit of constants in bytes: code addresses its data across them with 32-bit offsets."""


def export_library(
    path: str | PathLike[str],
    objects: Sequence[bytes],
    executable: Executable | None = None,
    parameters: str = "inside",
    header: str | PathLike[str] | None = None,
) -> Path:
    """Link ELF objects, compiled as position-independent code, into one shared library.

    The library is for the machine of its objects; `codegen.llvm.link` finds a linker for it.

    Args:
        path: path of the library; an existing file is replaced atomically and keeps its permissions.  Links are followed.
        objects: the objects; no two may define the same function.
        executable: a model to include in the library; its code is linked too.
        parameters: where its constants are stored, one of `PARAMETERS`.  Beside the library, they are a file with the library's name plus
            `.params`, which the library recognises by its digest, so that libraries can be small and models exchanged without weights.
        header: path of the C header, for a model compiled ahead of time.
    Returns:
        The path.
    Raises:
        BuildError: there is nothing to link, an object is invalid, no linker succeeded (the message lists every command with its
            output), the path cannot be written, or it is not a regular file.
    """
    target = _path(path)
    if parameters not in PARAMETERS:
        raise BuildError(f"parameters={parameters!r}: constants are stored {' or '.join(PARAMETERS)} the library")
    if executable is not None:
        objects = [*objects, *[o for o in (executable.data, *executable.objects) if o is not None]]
    if not objects and executable is not None and executable.device_programs:
        objects = [_stand_in([], platform.machine())]
    if not objects:
        why = "there are no objects to link" if executable is None else "the model calls no function, and so has no code"
        raise BuildError(f"cannot export {target}: {why}")
    place = _place(target, target)
    beside = _place(target, parameters_path(target)) if parameters == "beside" else None
    native = executable if executable is not None and executable.kind == AotExecutor.kind else None
    heading = _heading(target, native, header, parameters_path(target).name if parameters == "beside" else None)
    libraries = () if executable is None else executable.libraries + (_SYSTEM if native else ())
    read = [_symbols(data, f"object {i}") for i, data in enumerate(objects)]
    machine = _one_machine(target, read)
    needed = {symbol for symbols in read for symbol in symbols.needed}
    with _writing(target), temporary_folder(".tunesmith-", place.parent) as folder:
        inputs = []
        for i, data in enumerate(objects):
            inputs.append(f"object{i}.o")
            (folder / inputs[-1]).write_bytes(data)
        if needed.intersection(CHECKERS):
            inputs.append("checker.o")
            (folder / inputs[-1]).write_bytes(checker_object(machine))
        openmp = sorted(filter(is_openmp_symbol, needed | _write_thread_support(folder, needed, inputs, machine)))
        if openmp:
            # A stub gives the same library on every machine, and needs no libgomp there.
            (folder / "openmp.o").write_bytes(_stand_in(openmp, machine))
            link(folder, machine, ["-soname=libgomp.so.1"], ["openmp.o"], "libgomp.so.1", shown=target)
            inputs.append("libgomp.so.1")
        for i, name in enumerate(libraries):
            # Listed as needed even if the stub defines nothing; the loader reuses a loaded library by its name.
            (folder / f"empty{i}.o").write_bytes(_stand_in([], machine))
            link(folder, machine, [f"-soname={name}"], [f"empty{i}.o"], f"library{i}.so", shown=target)
            inputs += ["--no-as-needed", f"library{i}.so", "--as-needed"]
        if executable is not None:
            _write_model(folder, target, executable, objects[-1], parameters)
            inputs.append("model.o")
        if native is not None:
            inputs += _write_front(folder, native, parameters, machine)
        link(folder, machine, [f"-soname={target.name}"] if native else [], inputs, "library.so", shown=target)
        if beside is not None and (folder / "parameters").exists():
            atomic_file.put(folder / "parameters", beside)
        _write_heading(heading)
        atomic_file.put(folder / "library.so", place)
    return target


def export_object(path: str | PathLike[str], executable: Executable, header: str | PathLike[str] | None = None) -> Path:
    """Join a model compiled ahead of time and its parameters into one relocatable object, for programs that embed the model.

    The program links libm and libgomp if the object needs them.  Objects of several models link into one program if their names differ.

    Args:
        path: path of the object; an existing file is replaced atomically.
        executable: of kind "aot".
        header: path of the C header.
    Returns:
        The path.
    Raises:
        BuildError: the executable is of another kind, its parameters are too large, no linker succeeded, or the path cannot be written.
    """
    target = _path(path)
    if executable.kind != AotExecutor.kind or executable.data is None:
        raise BuildError(f'cannot export {target}: objects are made of models that were compiled ahead of time: executor="aot"')
    place = _place(target, target)
    heading = _heading(target, executable, header, None)
    name = program_name(executable.program)
    pieces, size = _inside(target, executable)
    with _writing(target), temporary_folder(".tunesmith-", place.parent) as folder:
        inputs = ["code.o", "front.o", "constants.o"]
        (folder / "code.o").write_bytes(executable.data)
        symbols = _symbols(executable.data, "the model")
        _write_thread_support(folder, set(symbols.needed), inputs, symbols.machine)
        (folder / "front.o").write_bytes(front_inside(name, f"{name}_constants", symbols.machine))
        with open(Path(folder, "constants.o"), "wb") as file:
            write_data_object(file, [DataSymbol(f"{name}_constants", pieces, size)], executable.data)
        link(folder, symbols.machine, [], inputs, "model.o", shown=target, mode="-r")
        _write_heading(heading)
        atomic_file.put(folder / "model.o", place)
    return target


def _path(path: str | PathLike[str]) -> Path:
    if not isinstance(path, (str, PathLike)) or isinstance(fspath(path), bytes):
        raise BuildError(f"cannot export: a path is a text or a Path, not {path!r:.100}")
    return Path(path)


def _place(target: Path, file: Path, what: str = "") -> Path:
    """The path to write a file to.  Raises BuildError if there is no folder for it, or the path is not a regular file."""
    try:
        place = atomic_file.place_of(file)
    except OSError as error:
        raise BuildError(f"cannot export {str(target)!r}: cannot write {what}{str(file)!r}: {error.strerror}. Give another path") from error
    if not place.parent.is_dir():
        raise BuildError(f"cannot export {target}: the folder {place.parent} does not exist")
    return place


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Convert an OSError, for example no space on the disk, to a BuildError."""
    try:
        yield
    except OSError as error:
        raise BuildError(f"cannot export {target}: {error.strerror or error}. Check permissions and free space") from error


def _heading(target: Path, native: Executable | None, header: str | PathLike[str] | None, beside: str | None) -> tuple[Path, str] | None:
    """Path and text of the C header, None if none was requested."""
    if header is None:
        return None
    if native is None:
        raise BuildError(f'cannot export {target} with a C header: only models compiled ahead of time have one: executor="aot"')
    path = _place(target, _path(header), "the C header ")
    return path, c_header(native.program, native.constants, beside)


def _write_heading(heading: tuple[Path, str] | None) -> None:
    if heading is not None:
        path, text = heading
        try:
            atomic_file.write_text(path, text)
        except OSError as error:
            raise BuildError(f"cannot write the C header {path}: {error.strerror}") from error


def _write_front(folder: Path, native: Executable, parameters: str, machine: str) -> list[str]:
    """Write objects with the functions that C programs and TVM-FFI call; returns their names."""
    name = program_name(native.program)
    if parameters == "inside":
        made = front_inside(name, CONSTANTS, machine)
    else:
        with open(folder / "parameters", "rb") as file:
            made = front_beside(name, file.read(HEAD_BYTES), machine)
    beside = parameters == "beside"
    objects = {"front.o": made, "entry.o": model_entry(native.program, beside, machine), "checker.o": model_checker(machine)}
    for file_name, data in objects.items():
        (folder / file_name).write_bytes(data)
    return list(objects)


def _write_thread_support(folder: Path, needed: set[str], inputs: list[str], machine: str) -> set[str]:
    """Write the object `threads.o` and append it to the inputs, if one of its symbols is needed; returns the symbols it needs."""
    if not needed.intersection(SUPPORT):
        return set()
    made = thread_support_object(machine)
    (folder / "threads.o").write_bytes(made)
    inputs.append("threads.o")
    return set(_symbols(made, "the thread support").needed)


def _inside(target: Path, executable: Executable) -> tuple[list[Piece], int]:
    """The constants for an object.  Raises BuildError if they are too large for one."""
    pieces, size = payload_of(executable.constants)
    if size > _MOST_INSIDE:
        raise BuildError(
            f"cannot export {target}: {size} bytes of constants are too many for one library, whose code addresses 2 GB. "
            'Store them in a separate file: parameters="beside"'
        )
    return pieces, size


def _write_model(folder: Path, target: Path, executable: Executable, like: bytes, parameters: str) -> None:
    """Write the object `model.o` with program and constants, or with the program only and the constants in the file `parameters`."""
    digest, constants = None, []
    if parameters == "inside":
        constants.append(DataSymbol(CONSTANTS, *_inside(target, executable)))
    else:
        with open(folder / "parameters", "wb") as file:
            digest = write_parameters(file, executable.constants)
    program = library_program(executable, digest)
    symbols = [DataSymbol(PROGRAM, [program], len(program)), *constants]
    with open(folder / "model.o", "wb") as file:
        write_data_object(file, symbols, like)


def _symbols(data: bytes, what: str) -> ElfSymbols:
    try:
        symbols = read_symbols(data, what)
    except RunError as error:
        raise BuildError(f"cannot export: {error}") from error
    if not symbols.movable:
        raise BuildError(f'cannot export: {what} is not position-independent. Compile it with reloc="pic"')
    return symbols


def _one_machine(target: Path, read: Sequence[ElfSymbols]) -> str:
    """The machine of all objects.  Raises BuildError if they are of several."""
    machines = list(dict.fromkeys(symbols.machine for symbols in read))
    if len(machines) > 1:
        raise BuildError(f"cannot export {target}: its objects are for several machines, {', '.join(machines)}. Compile all for one target")
    return machines[0]


def _stand_in(symbols: Sequence[str], machine: str) -> bytes:
    """A stub object that defines the symbols as empty functions."""
    return generic_object("\n".join(f"define void @{symbol}() {{\n  ret void\n}}" for symbol in symbols), machine)
