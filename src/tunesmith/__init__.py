"""tunesmith: a search-first autoscheduler and research toolkit for tensor programs."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunesmith import debug, instruments, passes, script, te
    from tunesmith.driver.bench.bench import bench
    from tunesmith.driver.compile import build, compile
    from tunesmith.driver.compile_model import CompiledModel
    from tunesmith.driver.compiled import CompiledModule
    from tunesmith.driver.compiled_device import CompiledDeviceModule
    from tunesmith.driver.quantize import output_errors, quantize
    from tunesmith.driver.replay import replay
    from tunesmith.driver.tune import tune
    from tunesmith.driver.tune_options import Budget, Search
    from tunesmith.graph.importers.onnx.importer import from_onnx
    from tunesmith.graph.importers.torch.importer import from_torch
    from tunesmith.graph.passes.to_mixed_precision import with_precision
    from tunesmith.ir.target.target import Target
    from tunesmith.lower.pass_context import PassContext
    from tunesmith.lower.pass_infra import Pipeline
    from tunesmith.measure.records.database import Database
    from tunesmith.runtime.compiled import Compiled
    from tunesmith.runtime.module import load_module
    from tunesmith.runtime.threads import num_threads, set_num_threads
    from tunesmith.schedule.schedule import Schedule
    from tunesmith.support.errors import TunesmithError, UserError

__all__ = [
    "Budget",
    "Compiled",
    "CompiledDeviceModule",
    "CompiledModel",
    "CompiledModule",
    "Database",
    "PassContext",
    "Pipeline",
    "Schedule",
    "Search",
    "Target",
    "TunesmithError",
    "UserError",
    "bench",
    "build",
    "compile",
    "debug",
    "from_onnx",
    "from_torch",
    "instruments",
    "load_module",
    "num_threads",
    "output_errors",
    "passes",
    "quantize",
    "replay",
    "script",
    "set_num_threads",
    "te",
    "tune",
    "with_precision",
]

__version__ = "0.1.0"

_MODULES = {
    "Budget": "tunesmith.driver.tune_options",
    "Search": "tunesmith.driver.tune_options",
    "CompiledDeviceModule": "tunesmith.driver.compiled_device",
    "CompiledModel": "tunesmith.driver.compile_model",
    "Compiled": "tunesmith.runtime.compiled",
    "CompiledModule": "tunesmith.driver.compiled",
    "Database": "tunesmith.measure.records.database",
    "PassContext": "tunesmith.lower.pass_context",
    "Pipeline": "tunesmith.lower.pass_infra",
    "Schedule": "tunesmith.schedule.schedule",
    "Target": "tunesmith.ir.target.target",
    "TunesmithError": "tunesmith.support.errors",
    "UserError": "tunesmith.support.errors",
    "bench": "tunesmith.driver.bench.bench",
    "build": "tunesmith.driver.compile",
    "compile": "tunesmith.driver.compile",
    "from_onnx": "tunesmith.graph.importers.onnx.importer",
    "from_torch": "tunesmith.graph.importers.torch.importer",
    "load_module": "tunesmith.runtime.module",
    "num_threads": "tunesmith.runtime.threads",
    "output_errors": "tunesmith.driver.quantize",
    "quantize": "tunesmith.driver.quantize",
    "replay": "tunesmith.driver.replay",
    "set_num_threads": "tunesmith.runtime.threads",
    "tune": "tunesmith.driver.tune",
    "with_precision": "tunesmith.graph.passes.to_mixed_precision",
}
"""The module of each exported name, imported at the first use of the name."""


_SUBMODULES = ("debug", "instruments", "passes", "script", "te")


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return _import_module(f"tunesmith.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'tunesmith' has no attribute {name!r}")
    found: object = getattr(_import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
