"""tunesmith: a search-first autoscheduler and research toolkit for tensor programs."""

import sys as _sys
from importlib import import_module as _import_module
from pathlib import Path as _Path
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunesmith import script, te
    from tunesmith.bench import bench
    from tunesmith.compile import CompiledModule, build, compile
    from tunesmith.compile_model import CompiledModel
    from tunesmith.compiled_device import CompiledDeviceModule
    from tunesmith.graph.onnx_import import from_onnx
    from tunesmith.graph.torch_import import from_torch
    from tunesmith.ir.target import Target
    from tunesmith.measure.database import Database
    from tunesmith.replay import replay
    from tunesmith.runtime.module import load_module
    from tunesmith.runtime.threads import num_threads, set_num_threads
    from tunesmith.schedule.schedule import Schedule
    from tunesmith.support.errors import TunesmithError, UserError
    from tunesmith.tune import tune

__all__ = [
    "CompiledDeviceModule",
    "CompiledModel",
    "CompiledModule",
    "Database",
    "Schedule",
    "Target",
    "TunesmithError",
    "UserError",
    "bench",
    "build",
    "compile",
    "from_onnx",
    "from_torch",
    "load_module",
    "num_threads",
    "replay",
    "script",
    "set_num_threads",
    "te",
    "tune",
]

__version__ = "0.1.0"

# In a source checkout the sub-packages are the folders at the repository root
# (ir/, search/, ...); in an installed wheel they sit next to this file.
_here = _Path(__file__).resolve().parent
_root = _here.parents[1]
if _here.parent.name == "src" and not (_here / "ir").exists() and (_root / "pyproject.toml").is_file():
    __path__.append(str(_root))
del _Path, _here, _root

_HOMES = {
    "CompiledDeviceModule": "tunesmith.compiled_device",
    "CompiledModel": "tunesmith.compile_model",
    "CompiledModule": "tunesmith.compile",
    "Database": "tunesmith.measure.database",
    "Schedule": "tunesmith.schedule.schedule",
    "Target": "tunesmith.ir.target",
    "TunesmithError": "tunesmith.support.errors",
    "UserError": "tunesmith.support.errors",
    "bench": "tunesmith.bench",
    "build": "tunesmith.compile",
    "compile": "tunesmith.compile",
    "from_onnx": "tunesmith.graph.onnx_import",
    "from_torch": "tunesmith.graph.torch_import",
    "load_module": "tunesmith.runtime.module",
    "num_threads": "tunesmith.runtime.threads",
    "replay": "tunesmith.replay",
    "set_num_threads": "tunesmith.runtime.threads",
    "tune": "tunesmith.tune",
}
"""Where each name comes from; its module is imported when the name is first used."""


def __getattr__(name: str) -> object:
    if name in ("script", "te"):
        return _import_module(f"tunesmith.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tunesmith' has no attribute {name!r}")
    found: object = getattr(_import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Facade(_ModuleType):
    """This module's type: a function keeps its name when the module of the same name is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, _ModuleType) and _HOMES.get(name) == value.__name__:
            value = getattr(value, name)  # the import system binds tunesmith.tune, the module, when it has been loaded
        super().__setattr__(name, value)


_sys.modules[__name__].__class__ = _Facade
