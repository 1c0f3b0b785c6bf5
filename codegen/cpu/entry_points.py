"""Name the entry points of functions, and describe their arguments as DLPack does."""

from __future__ import annotations

import re

from tunesmith.support import dtype as dtypes
from tunesmith.support.errors import BuildError

ENTRY_PREFIX = "__tvm_ffi_"
"""TVM-FFI exports the function `f` of a library as the symbol `__tvm_ffi_f`."""

_DLPACK_CODE = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}


def begin_entry(name: str, declared: set[str]) -> str:
    """The symbol of the entry point of a function, added to `declared`.  Raises BuildError as `emit_entry` does."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise BuildError(f"{name!r} cannot name an exported function: use letters, digits and underscores")
    entry = ENTRY_PREFIX + name
    if entry in declared:
        raise BuildError(f"two functions of one module are called {name!r}: rename one of them")
    declared.add(entry)
    return entry


def dlpack_dtype(dtype: str) -> int:
    """A scalar type as the 32 bits of a `DLDataType`: code, bits << 8, lanes << 16."""
    scalar = dtypes.element(dtype)
    return _DLPACK_CODE[scalar.rstrip("0123456789")] | dtypes.bits(scalar) << 8 | 1 << 16
