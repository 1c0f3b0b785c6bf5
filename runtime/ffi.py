"""TVM-FFI, imported without torch: on its own it imports torch wherever that is installed, which takes every process a second, starts
threads and loads another OpenMP runtime.  Who has imported torch already loses nothing, and tensors pass through DLPack in any case.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, cast


def _without_torch(name: str) -> ModuleType:
    """The module, which finds no torch while it is imported unless it is there already."""
    if name in sys.modules or "torch" in sys.modules:
        return importlib.import_module(name)
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    modules["torch"] = None  # an import of it now fails as if it was not installed
    try:
        return importlib.import_module(name)
    finally:
        del modules["torch"]


if TYPE_CHECKING:
    import tvm_ffi as tvm_ffi
else:
    tvm_ffi = _without_torch("tvm_ffi")
