"""Object code in memory: ELF bytes become callable addresses in this process, without disk and without a linker.

One MCJIT engine holds one object and gives all its memory back when it is closed.  (ORC, the newer loader of LLVM,
keeps about 11 KB for each object for ever; a process that measures loads many thousands.)  LLVM aborts the process
over a symbol it cannot find, so every one is looked up here first.
"""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Callable
from functools import cache

import llvmlite.binding as llvm

from tunesmith.runtime.checker.argument_checker import CHECKERS, checker_text
from tunesmith.runtime.elf_symbols import OBJECT, ElfSymbols, read_symbols
from tunesmith.runtime.ffi import tvm_ffi
from tunesmith.runtime.thread_support import STARTED, STATE, SUPPORT, support_text
from tunesmith.runtime.threads import add_support, is_openmp_symbol, openmp_address
from tunesmith.support.errors import RunError


class LoadedObject:
    """Object code that has been loaded.  Its addresses are valid until `close`, or until nobody refers to it.

    Threads may load objects, and call the loaded code, at the same time.
    """

    __slots__ = ("_engine", "symbols")

    def __init__(self, engine: llvm.ExecutionEngine, symbols: ElfSymbols) -> None:
        self._engine = engine
        self.symbols = symbols

    def address(self, name: str) -> int:
        """Where the function or variable `name` stands.

        Raises:
            RunError: the object does not define it, or has been closed.
        """
        if self._engine is None:
            raise RunError(f"{name!r} is asked of an object that has been closed: load it again")
        if name not in self.symbols.defined:
            raise RunError(f"the object defines no {name!r}. It defines: {', '.join(self.symbols.defined) or 'nothing'}")
        return int(self._engine.get_global_value_address(name))

    def close(self) -> None:
        """Give the memory back.  Calling an address of the object after this crashes the process."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def load_object(data: bytes) -> LoadedObject:
    """Load an ELF object, compiled as position-independent code (`reloc="pic", codemodel="small"`), into this process.

    Symbols it needs are the argument checker, the thread support, or are taken from the OpenMP runtime of `runtime.threads`, from
    TVM-FFI, and from the libraries the process has loaded.  Takes about a millisecond.

    Raises:
        RunError: the bytes are no object for this machine, or need a symbol that is nowhere to be found.
    """
    symbols = read_symbols(data)
    if symbols.kind != OBJECT or symbols.machine != platform.machine():
        kind = "an object" if symbols.kind == OBJECT else "not an object but a linked file"
        raise RunError(
            f"cannot load: it is {kind} for {symbols.machine}, and this is {platform.machine()}. Build an object for this machine"
        )
    if not symbols.movable:
        raise RunError('cannot load: the object is not position-independent. Compile it with reloc="pic"')
    _bind(symbols.needed)
    machine = _target().create_target_machine(reloc="pic", codemodel="small")
    # llvmlite's memory manager puts all sections into one block, within reach of the 32-bit distances of the small code model.
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine, use_lmm=True)
    engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    return LoadedObject(engine, symbols)


@cache
def checker_object() -> bytes:
    """The argument checker that all entry points call, compiled for any processor of this machine's kind."""
    return _compiled(checker_text())


@cache
def thread_support_object() -> bytes:
    """The functions that parallel loops ask for threads, for an object or library to be linked."""
    return _compiled(support_text())


def _compiled(text: str) -> bytes:
    machine = _target().create_target_machine(reloc="pic", codemodel="small", opt=1)
    return bytes(machine.emit_object(llvm.parse_assembly(text)))


@cache
def _target() -> llvm.Target:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


def _bind(names: tuple[str, ...]) -> None:
    """Tell LLVM where each of the names stands."""
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
"""Everything that the process has loaded with RTLD_GLOBAL."""
_BOUND: set[str] = {"_GLOBAL_OFFSET_TABLE_"}
_KEPT: dict[str, LoadedObject] = {}
"""Objects that others are bound to, by a symbol of theirs: never closed."""
_BINDING = threading.RLock()
"""Held while names are bound: two threads must not both load an object of which LLVM remembers one address, and one stays loaded.
llvmlite itself lets one thread at a time into LLVM."""


def _bound(name: str) -> bool:
    if name in _BOUND:
        return True
    address: int | None
    if name in CHECKERS:
        address = _checker().address(name)
    elif name in SUPPORT:
        address = _kept(STATE, lambda: _compiled(support_text(""))).address(name)
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
    """The checker in this process; it stays."""
    with _BINDING:
        return _kept(CHECKERS[0], checker_object)


def _kept(symbol: str, make: Callable[[], bytes]) -> LoadedObject:
    """The object that defines `symbol`, loaded once."""
    found = _KEPT.get(symbol)
    if found is None:
        found = _KEPT[symbol] = load_object(make())
        if symbol == STATE:
            add_support(found.address(STATE), found.address(STARTED))
    return found
