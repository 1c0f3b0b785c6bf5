"""Load ELF object code from memory into this process, without a file and without a linker.

One MCJIT engine holds one object and frees all its memory when it is closed.  (ORC, the newer loader of LLVM, leaks
about 11 KB per object; a measuring process loads many thousands.)  LLVM aborts the process on an undefined symbol,
so all symbols are looked up here first.
"""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Callable
from functools import cache

import llvmlite.binding as llvm

from tunesmith.runtime.checker.argument_checker import CHECKERS, checker_text
from tunesmith.runtime.elf_stubs import with_space_for_stubs
from tunesmith.runtime.elf_symbols import OBJECT, ElfSymbols, read_symbols
from tunesmith.runtime.ffi import tvm_ffi
from tunesmith.runtime.generic_code import generic_object
from tunesmith.runtime.processor import check_processor
from tunesmith.runtime.thread_support import STARTED, STATE, SUPPORT, support_text
from tunesmith.runtime.threads import add_support, is_openmp_symbol, openmp_address
from tunesmith.support.errors import OtherMachineError, RunError


class LoadedObject:
    """Loaded object code.  Its addresses are valid until `close`, or until the last reference to it is dropped.

    Threads may load objects, and call the loaded code, at the same time.
    """

    __slots__ = ("_engine", "symbols")

    def __init__(self, engine: llvm.ExecutionEngine, symbols: ElfSymbols) -> None:
        self._engine = engine
        self.symbols = symbols

    def address(self, name: str) -> int:
        """The address of the function or variable `name`.

        Raises:
            RunError: the object does not define it, or has been closed.
        """
        if self._engine is None:
            raise RunError(f"{name!r} cannot be looked up in an object that has been closed: load it again")
        if name not in self.symbols.defined:
            raise RunError(f"the object defines no {name!r}. It defines: {', '.join(self.symbols.defined) or 'nothing'}")
        return int(self._engine.get_global_value_address(name))

    def close(self) -> None:
        """Free the memory.  Calling an address of the object afterwards crashes the process."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def load_object(data: bytes) -> LoadedObject:
    """Load an ELF object, compiled as position-independent code (`reloc="pic", codemodel="small"`), into this process.

    Needed symbols are resolved to the argument checker, the thread support, the OpenMP runtime of `runtime.threads`, TVM-FFI, or
    libraries loaded by the process.  Takes about a millisecond.

    Raises:
        OtherMachineError: the object is for another machine, or needs instructions that this processor lacks.
        RunError: the bytes are not an object; or the object needs an undefined symbol, or is not position-independent.
    """
    symbols = read_symbols(data)
    if symbols.kind != OBJECT:
        raise RunError("cannot load: it is not an object but a linked file. Build an object, or load the file with load_module")
    if symbols.machine != platform.machine():
        raise OtherMachineError(
            f"cannot load: it is an object for {symbols.machine}, and this is {platform.machine()}. Build an object for this machine"
        )
    check_processor(symbols.defined, "the object")
    if not symbols.movable:
        raise RunError('cannot load: the object is not position-independent. Compile it with reloc="pic"')
    _bind(symbols.needed)
    machine = _target().create_target_machine(reloc="pic", codemodel="small")
    # llvmlite's memory manager puts all sections into one block, so that 32-bit offsets of the small code model reach them.
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine, use_lmm=True)
    engine.add_object_file(llvm.ObjectFileRef.from_data(with_space_for_stubs(data)))
    engine.finalize_object()
    return LoadedObject(engine, symbols)


@cache
def checker_object(machine: str | None = None) -> bytes:
    """The argument checker that all entry points call, compiled for the generic processor of a machine, by default of this one."""
    return generic_object(checker_text(), machine, opt=1)


@cache
def thread_support_object(machine: str | None = None) -> bytes:
    """The thread-count functions called by parallel loops, for linking into an object or library of a machine, by default of this one."""
    return generic_object(support_text(), machine, opt=1)


@cache
def _target() -> llvm.Target:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


def _bind(names: tuple[str, ...]) -> None:
    """Register the address of each name with LLVM."""
    if _BOUND.issuperset(names):
        return
    with _BINDING:
        missing = [name for name in names if not _bound(name)]
    if missing:
        raise RunError(
            f"the object needs {', '.join(missing)}, which no library of this process defines. "
            "Load the library that does with ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) first"
        )


_PROCESS = ctypes.CDLL(None)
"""All symbols of the process that were loaded with RTLD_GLOBAL."""
_BOUND: set[str] = {"_GLOBAL_OFFSET_TABLE_"}
_PERMANENT: dict[str, LoadedObject] = {}
"""Symbol -> object that other objects are linked against; never closed."""
_BINDING = threading.RLock()
"""Held while names are bound: of two copies of a permanent object, LLVM would register the address of one.
llvmlite itself serialises calls into LLVM."""


def _bound(name: str) -> bool:
    if name in _BOUND:
        return True
    address: int | None
    if name in CHECKERS:
        address = _checker().address(name)
    elif name in SUPPORT:
        address = _permanent(STATE, lambda: generic_object(support_text(""), opt=1)).address(name)
    elif is_openmp_symbol(name):
        address = openmp_address(name)
    else:
        function = getattr(tvm_ffi.LIB, name, None) or getattr(_PROCESS, name, None)
        address = None if function is None else ctypes.cast(function, ctypes.c_void_p).value
    if address is None:
        return False
    llvm.add_symbol(name, address)
    _BOUND.add(name)
    return True


def _checker() -> LoadedObject:
    """The argument checker of this process, never unloaded."""
    with _BINDING:
        return _permanent(CHECKERS[0], checker_object)


def _permanent(symbol: str, make: Callable[[], bytes]) -> LoadedObject:
    """The permanent object that defines `symbol`, loaded once."""
    found = _PERMANENT.get(symbol)
    if found is None:
        found = _PERMANENT[symbol] = load_object(make())
        if symbol == STATE:
            add_support(found.address(STATE), found.address(STARTED))
    return found
