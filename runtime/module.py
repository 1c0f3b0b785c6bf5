"""Load and call compiled functions: `module["name"](a, b, c)` with numpy, torch or other DLPack arrays.

A module is loaded from object bytes in memory or from a shared library on disk.  In both cases a call passes directly
from Python to the entry point through TVM-FFI; a module and its functions keep the code alive.

A library may also contain a whole model, an executable; loading it returns a model.  A file with a device program is not a
library; loading it returns a `DeviceModule`.  Loading files needs neither a compiler nor the rest of tunesmith: LLVM is imported only
to load object bytes.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from mmap import ACCESS_READ, mmap
from os import PathLike, fspath
from pathlib import Path
from sys import modules
from typing import Any, NoReturn

from numpy import ndarray

from tunesmith.runtime.arrays import passable
from tunesmith.runtime.compiled import Compiled
from tunesmith.runtime.device.module import DeviceModule
from tunesmith.runtime.device.program import MAGIC, DeviceProgram
from tunesmith.runtime.dlpack import CPU
from tunesmith.runtime.elf_symbols import LIBRARY, ElfSymbols, read_symbols
from tunesmith.runtime.executor.aot_executor import AotExecutor, native_functions
from tunesmith.runtime.executor.bound_program import Functions
from tunesmith.runtime.executor.executable import Executable
from tunesmith.runtime.executor.executor import Executor
from tunesmith.runtime.executor.graph_executor import GraphExecutor
from tunesmith.runtime.executor.model_library import PROGRAM, read_library, symbol_addresses
from tunesmith.runtime.executor.virtual_machine import VirtualMachine
from tunesmith.runtime.ffi import tvm_ffi
from tunesmith.runtime.ffi_callback import ffi_function
from tunesmith.runtime.lazy_negation import MARKABLE, is_negated, negation
from tunesmith.runtime.loaded_library import LibraryFiles, unambiguous
from tunesmith.runtime.model import LoadedModel
from tunesmith.runtime.model_function import MAIN
from tunesmith.runtime.processor import check_processor
from tunesmith.runtime.shared_libraries import load_library
from tunesmith.runtime.thread_support import STARTED, STATE
from tunesmith.runtime.threads import add_support, is_openmp_symbol, load_openmp
from tunesmith.runtime.timing import Samples, TimingPolicy, measure
from tunesmith.support.errors import OtherMachineError, RunError

_PREFIX = "__tvm_ffi_"
_RESERVED = ("_metadata_", "_doc_", "_library_bin", "_library_ctx")
"""Symbols with the prefix that are reserved by TVM-FFI."""
_PART = re.compile(r"(.+?)__(?:packed|pack_.+)")
"""Name of a part of a function, made by `lower.hoist_constant_packing`; the group is the function."""
_EXECUTORS: Mapping[str, type[GraphExecutor] | type[VirtualMachine] | type[AotExecutor]] = {
    "graph": GraphExecutor,
    "vm": VirtualMachine,
    "aot": AotExecutor,
}
"""Kind of executable -> executor class."""


class CompiledFunction:
    """A function of a module.  Call it with one array for each parameter; results are written to the output arrays.

    Thread safe; calls release the interpreter lock.
    """

    __slots__ = ("ffi", "name", "parameters")

    def __init__(self, name: str, ffi: tvm_ffi.Function) -> None:
        self.name = name
        self.ffi = ffi
        """The TVM-FFI function, which raises untranslated errors."""
        self.parameters: Sequence[tuple[str, bool]] = ()
        """Name of each parameter and whether the function writes it; empty if unknown, as for functions of a library."""

    def __call__(self, *arguments: object) -> object:
        """Run the function.

        Raises:
            RunError: an argument is invalid; the message names the argument, the expected and the actual value.
        """
        if "torch" in modules:  # inlined, because calls are short: 0.2 us per torch tensor, 0.04 us per numpy array
            for argument in arguments:
                if (kind := type(argument)) is not ndarray and MARKABLE[kind] and argument.is_neg():  # type: ignore[attr-defined]
                    raise self._negation(arguments)
        try:
            return self.ffi(*arguments)
        except Exception as error:
            again = self.passable(arguments)
            if again is None:
                raise self.refusal(arguments, error) from error
        return CompiledFunction.__call__(self, *again)

    def bind(self, *arguments: object) -> Callable[[], object]:
        """Prepare a call with these arguments, for callers that run the function many times on the same memory.

        A prepared call takes 0.1 us; an unprepared numpy array adds 0.2 us per call, a torch tensor 0.35 us.  Each call checks the
        arguments again.  GPU arrays are not prepared, because each call queries the current stream of their library.

        Raises:
            RunError: an argument cannot be passed; from the call, an argument is invalid.
        """
        function, refusal, prepared = self.ffi, self.refusal, self.prepared(*arguments).args

        def call() -> object:
            try:
                return function(*prepared)
            except Exception as error:
                raise refusal(prepared, error) from error

        return call

    def prepared(self, *arguments: object) -> partial[object]:
        """As `bind`, but the call raises untranslated TVM-FFI errors; `refusal` converts them to RunError."""
        if any(is_negated(a) for a in arguments):
            raise self._negation(arguments)
        try:
            return partial(self.ffi, *[tvm_ffi.from_dlpack(a) if _is_host_array(a) else a for a in arguments])
        except Exception as error:
            again = self.passable(arguments)
            if again is None:
                raise self.refusal(arguments, error) from error
        return self.prepared(*again)

    def passable(self, arguments: Sequence[object]) -> list[object] | None:
        """Replacement arguments for a call that DLPack rejected because of numpy arrays that are read-only or of a package's bfloat16.

        None if no argument needs a replacement, or if a read-only array may be written by the function.
        """
        try:
            found = [a if self._is_locked(i, a) else passable(a) for i, a in enumerate(arguments)]
        except Exception:  # numpy raises exceptions of any type; the error of the call names the array
            return None
        locked = any(self._is_locked(i, a) for i, a in enumerate(arguments))
        return None if locked or all(a is b for a, b in zip(found, arguments, strict=True)) else found

    def _is_locked(self, i: int, argument: object) -> bool:
        """Whether argument `i` is a read-only array for a parameter that may be written."""
        is_written = self.parameters[i][1] if i < len(self.parameters) else True
        return is_written and isinstance(argument, ndarray) and not argument.flags.writeable

    def refusal(self, arguments: Sequence[object], error: Exception) -> RunError:
        """The error as a RunError that names the argument.  DLPack refuses read-only and unsupported arrays before the function runs."""
        for i, argument in enumerate(arguments):
            if not hasattr(argument, "__dlpack__"):
                continue
            if self._is_locked(i, argument):
                return RunError(f"{self.name}: argument {i}{self._locked(i)}")
            try:
                tvm_ffi.from_dlpack(passable(argument))
            except Exception as cause:
                kind = f"{type(argument).__module__}.{type(argument).__name__}"
                dtype = getattr(argument, "dtype", "unknown")
                return RunError(f"{self.name}: argument {i}, a {kind} of dtype {dtype}, cannot be passed through DLPack: {cause}")
        return RunError(str(error))

    def _locked(self, i: int) -> str:
        if i < len(self.parameters):
            return f" ({self.parameters[i][0]}) is a read-only array, and the function writes it. Pass a writable copy"
        why = "only functions compiled in this process record which parameters they write"
        return f" is a read-only array, which DLPack cannot pass. Pass a writable copy: {why}"

    def _negation(self, arguments: Sequence[object]) -> RunError:
        i = next(i for i, a in enumerate(arguments) if is_negated(a))
        return negation(f"{self.name}: argument {i}", arguments[i])

    def __repr__(self) -> str:
        return f"<compiled function {self.name}>"


class RefusedFunction(CompiledFunction):
    """A function compiled for another machine, which can be exported, but not called."""

    __slots__ = ("reason",)

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, ffi_function(partial(_refuse, reason)))
        self.reason = reason

    def __call__(self, *arguments: object) -> object:
        """Refuse the call.  Raises OtherMachineError."""
        _refuse(self.reason)

    def prepared(self, *arguments: object) -> partial[object]:
        """Refuse to prepare a call, also that of `bind`.  Raises OtherMachineError."""
        _refuse(self.reason)


def _refuse(reason: str, *_: object) -> NoReturn:
    raise OtherMachineError(reason)


class Module(Compiled):
    """Compiled functions by name.

    Args:
        functions: the functions.
        origin: where they were loaded from, for messages.
        files: the library, if it was loaded from one.
    """

    def __init__(self, functions: dict[str, CompiledFunction], origin: str, files: LibraryFiles | None = None) -> None:
        self._functions = functions
        self._names = tuple([name for name in functions if not ((part := _PART.fullmatch(name)) and part[1] in functions)])
        self._origin = origin
        self._files = files

    @classmethod
    def from_object(cls, data: bytes) -> Module:
        """Load ELF object bytes that contain entry points (`codegen.llvm.host_entry`).

        The memory is freed when the module and all its functions are deleted.

        Raises:
            RunError: the bytes are not an object for this machine, contain no entry point, or need an undefined symbol.
        """
        from tunesmith.runtime.object_loader import load_object  # imports llvmlite, which is optional at run time

        loaded = load_object(data)
        functions = {}
        for name in _entries(loaded.symbols.defined, "the object"):
            address = loaded.address(_PREFIX + name)
            functions[name] = CompiledFunction(name, tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=loaded))
        return cls(functions, "object in memory")

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of all functions, sorted, without those that are parts of another: its packed form, and functions that pack its constants.

        `[name]` accepts those too.
        """
        return self._names

    def __getitem__(self, name: str) -> CompiledFunction:
        """The function `name`.

        Raises:
            RunError: the module has no such function.
        """
        found = self._functions.get(name) if isinstance(name, str) else None
        return found or self._functions[self.function_name(name)]

    def bind(self, *arguments: object, name: str | None = None) -> Callable[[], object]:
        """Prepare a call of a function with these arguments; see `CompiledFunction.bind`.

        Args:
            arguments: arguments of the function, in order.
            name: name of the function; optional if there is only one.
        Raises:
            RunError: there are several functions, or none of this name, or an argument cannot be passed.
        """
        return self[self.function_name(name)].bind(*arguments)

    def time(self, *arguments: object, name: str | None = None, repeats: int = 7, policy: TimingPolicy | None = None) -> Samples:
        """Time one function on these arguments; its outputs are overwritten as in any call.

        Args:
            arguments: arguments of the function, in order.
            name: name of the function; optional if there is only one.
            repeats: number of clean samples.
            policy: all timing parameters; by default `TimingPolicy(repeats=repeats)`.
        Raises:
            RunError: there are several functions, or none of this name, or an argument is invalid.
            UserError: `repeats` is not a number of samples.
        """
        policy = policy or replace(TimingPolicy(), repeats=repeats)
        call = self.bind(*arguments, name=name)
        call()
        return measure(call, policy)

    def export_library(self, path: str | PathLike[str]) -> Path:
        """Copy the library to `path`; returns the path.

        Raises:
            RunError: the library was replaced or removed after it was loaded, the functions are not of a library, or the copy cannot be
                written.
        """
        if self._files is None:
            raise RunError(f"{self!r} is not of a library: link its object code with codegen.llvm.export.export_library")
        return self._files.copy(path)

    def __repr__(self) -> str:
        return f"<module of {', '.join(self.functions)} ({self._origin})>"


def load_module(path: str | PathLike[str]) -> Compiled:
    """Load a shared library with TVM-FFI functions, exported by tunesmith or any other tool, or a saved device program.

    A library stays loaded until the process ends.  Replace a library on disk by renaming a new file over it, as `export_library` does:
    the new library is then loaded in addition to the old one.  Overwriting the file in place changes code that is already loaded.

    Returns:
        A `Module` for a library with functions, a `LoadedModel` for a library with a model, or a `DeviceModule` on the current
        device of the kind for a device program.  All of them have the calls of `Compiled`.
    Raises:
        RunError: the file does not exist, is not a shared library for this machine, or contains no TVM-FFI function; or its parameter
            file is missing or does not belong to it; or this processor lacks instructions that it was compiled for.
    """
    if not isinstance(path, (str, PathLike)) or isinstance(fspath(path), bytes):
        raise RunError(f"a library is loaded from a path, a text or a Path, not from {path!r:.200}")
    file = Path(path).absolute()
    if _begins_with(file, MAGIC):
        return DeviceModule.load(file)
    symbols = _symbols(file)
    if symbols.kind != LIBRARY:
        raise RunError(f"{file} is not a shared library. Link object code with export_library first")
    if symbols.machine != platform.machine():
        raise OtherMachineError(
            f"{file} is a library for {symbols.machine}, and this machine is {platform.machine()}. Load it there, or compile it for this "
            "machine"
        )
    check_processor(symbols.defined, str(file))
    whole = PROGRAM in symbols.defined
    names = _entries(symbols.defined, str(file), least=0 if whole else 1)
    if any(is_openmp_symbol(symbol) for symbol in symbols.needed):
        load_openmp()
    with unambiguous(file) as loaded:
        library = _load(loaded, file, symbols)
        if STATE in symbols.defined:
            address = symbol_addresses(loaded)
            add_support(address(STATE), address(STARTED))
        module = Module({name: CompiledFunction(name, library.get_function(name)) for name in names}, str(file), LibraryFiles(file))
        if not whole:
            return module
        executable, beside = read_library(file, loaded)
        native = executable.kind == AotExecutor.kind
        functions = (
            native_functions(executable.program, symbol_addresses(loaded)) if native else _by_name([module, *_on_devices(executable)])
        )
        # Libraries of earlier versions have no such function, and it does not find parameters beside a copy of the library.
        own = native and MAIN in names and (loaded == file or not beside)
        main = library.get_function(MAIN) if own else None
        return LoadedModel(_executor(executable, functions, str(file)), LibraryFiles(file, *beside), main)


def load_executable(executable: Executable) -> Executor:
    """Load an executable into this process and return its executor.

    Raises:
        RunError: its code is not for this machine, a required library is not installed, or its program is malformed.
    """
    for name in executable.libraries:
        load_library(name)
    objects = [o for o in (executable.data, *executable.objects) if o is not None]
    if executable.kind == AotExecutor.kind:
        return _executor(executable, _native(executable, objects), "the executable")
    modules = [*[Module.from_object(o) for o in objects], *_on_devices(executable)]
    return _executor(executable, _by_name(modules), "the executable")


def _native(executable: Executable, objects: Sequence[bytes]) -> Functions:
    """The functions of a model compiled ahead of time into one object."""
    from tunesmith.runtime.object_loader import load_object  # as in `Module.from_object`

    if len(objects) != 1:
        raise RunError(f"an executable of kind aot has all its code in one object, and this one has {len(objects)}. Build it again")
    return native_functions(executable.program, load_object(objects[0]).address)


def _on_devices(executable: Executable) -> list[DeviceModule]:
    """The functions of an executable that run on devices, which are accessed by the first call."""
    return [DeviceModule(DeviceProgram.from_bytes(program)) for program in executable.device_programs]


def _by_name(modules: Iterable[Compiled]) -> Functions:
    return {name: m[name] for m in modules for name in m.functions}


def _load(path: Path, file: Path, symbols: ElfSymbols) -> tvm_ffi.Module:
    """Load the library.  Dependencies that the system loader does not find are searched in installed packages."""
    try:
        return tvm_ffi.load_module(str(path))
    except Exception as error:
        reasons = [str(error)]
    for name in symbols.libraries:
        try:
            load_library(name)
        except RunError as error:
            reasons.append(str(error))
    try:
        return tvm_ffi.load_module(str(path))
    except Exception as error:
        raise RunError(f"cannot load the library {file}: {'; '.join(reasons)}") from error


def _executor(executable: Executable, functions: Functions, what: str) -> Executor:
    make = _EXECUTORS.get(executable.kind)
    if make is None:
        raise RunError(f"{what} is of the kind {executable.kind!r}, which no executor runs; there are those for {', '.join(_EXECUTORS)}")
    return make(executable.program, executable.constants, functions)


def _is_host_array(argument: Any) -> bool:
    """Whether the value is a DLPack array in host memory."""
    if not hasattr(argument, "__dlpack__"):
        return False
    return not hasattr(argument, "__dlpack_device__") or int(argument.__dlpack_device__()[0]) == CPU


def _begins_with(file: Path, start: bytes) -> bool:
    """Whether the file begins with `start`; False for unreadable files, which `_symbols` refuses."""
    try:
        with open(file, "rb") as opened:
            return opened.read(len(start)) == start
    except (OSError, ValueError):
        return False


def _symbols(file: Path) -> ElfSymbols:
    """The symbols of a file; it is memory-mapped, so that only the pages with symbols are read."""
    try:
        with open(file, "rb") as opened:
            if not file.stat().st_size:
                raise RunError(f"{file} is an empty file, not a shared library. Export it again")
            with mmap(opened.fileno(), 0, access=ACCESS_READ) as data:
                return read_symbols(data, str(file))
    except OSError as error:
        raise RunError(f"cannot read the library {file}: {error.strerror}") from error
    except ValueError as error:  # a null in the path, or a lone surrogate
        raise RunError(f"cannot read the library {str(file)!r}: {error}") from error


def _entries(symbols: Sequence[str], what: str, least: int = 1) -> list[str]:
    """Names of the functions among the symbols."""
    names = [symbol.removeprefix(_PREFIX) for symbol in symbols if symbol.startswith(_PREFIX)]
    names = [name for name in names if not name.startswith(_RESERVED)]
    if len(names) < least:
        raise RunError(f"{what} holds no function: no symbol starts with {_PREFIX}. Emit an entry point for each kernel")
    return names
