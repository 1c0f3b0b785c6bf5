"""Import TVM-FFI without torch.

TVM-FFI imports torch wherever it is installed, which takes a second per process, starts threads and loads another OpenMP runtime.
If torch is already imported, nothing changes; tensors are passed through DLPack in any case.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, cast


def _without_torch(name: str) -> ModuleType:
    """Import the module with torch hidden, unless torch is already imported."""
    if name in sys.modules or "torch" in sys.modules:
        return importlib.import_module(name)
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    modules["torch"] = None  # importing it now fails as if it were not installed
    try:
        return importlib.import_module(name)
    finally:
        del modules["torch"]


if TYPE_CHECKING:
    import tvm_ffi as tvm_ffi
else:
    tvm_ffi = _without_torch("tvm_ffi")
