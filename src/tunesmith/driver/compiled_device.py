"""Compiled functions of a GPU or another device.

The device is used when a function is called, and not before: compiling, saving and exporting need no device.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.device.export import export_device_library
from tunesmith.driver.compiled import CompiledModule
from tunesmith.graph.tuning.apply_records import Coverage
from tunesmith.ir.function import PrimFunc
from tunesmith.runtime.device.module import BoundCall, DeviceModule
from tunesmith.runtime.device.program import DeviceProgram
from tunesmith.runtime.timing import Samples


class CompiledDeviceModule(DeviceModule, CompiledModule):
    """Compiled functions by name: `module["matmul"](a, b, c)` with arrays of the host, of the device, of torch or CuPy.

    `save` writes the program to a file, for all kinds of devices.

    Args:
        artifact: the program.
        coverage: the result of the record lookup, for each function looked up.
        index: index of the device among those of the target's kind.
    """

    def __init__(self, artifact: Artifact, coverage: tuple[Coverage, ...] = (), index: int = 0) -> None:
        super().__init__(DeviceProgram.from_bytes(artifact.data), index)
        self.artifact = artifact
        self.coverage = coverage

    def __call__(self, *arguments: object) -> Any:
        """Call the only function.

        Raises:
            UserError: there are several functions.
            RunError: an argument does not match its parameter.
        """
        return CompiledModule.__call__(self, *arguments)

    def bind(self, *arguments: object, name: str | None = None) -> BoundCall:
        """Bind a function to its arguments, which are checked once, for repeated calls on the same device memory.

        Args:
            arguments: arguments of the function, in order: DeviceArrays, or tensors of other libraries on the device.
            name: name of the function; optional if there is only one.
        Raises:
            UserError: there are several functions, or none of this name.
            RunError: an argument does not match its parameter, or is in host memory.
        """
        return self[self.function_name(name)].bind(*arguments)

    def time(
        self,
        *arguments: object,
        name: str | None = None,
        repeats: int = 7,
        min_ms: float = 2.0,
        warmup: int = 3,
        flush_bytes: int = 0,
    ) -> Samples:
        """Time a function with device events; see `DeviceModule.time`.

        Raises:
            UserError: there are several functions, or none of this name.
            RunError: an argument does not match its parameter, or there is not enough memory for the copies.
        """
        name = self.function_name(name)
        return DeviceModule.time(self, *arguments, name=name, repeats=repeats, min_ms=min_ms, warmup=warmup, flush_bytes=flush_bytes)

    def export_library(self, path: str | PathLike[str]) -> Path:
        """Write a shared library that `load_module` loads, with or without tunesmith installed; returns the path.

        Its functions take GPU tensors and run on the current stream of torch, or on the stream set in TVM-FFI.

        Raises:
            BuildError: the target is not CUDA (`save` supports all targets), or the library cannot be linked or written.
        """
        return export_device_library(path, self.program)


def load_device(
    artifact: Artifact, coverage: tuple[Coverage, ...], remarks: tuple[str, ...], functions: Iterable[PrimFunc]
) -> CompiledDeviceModule:
    """Load functions of a device.

    Args:
        artifact: the program.
        coverage: results of record lookups.
        remarks: warnings about the programs.
        functions: the programs; the artifact holds all that calls need.
    """
    module = CompiledDeviceModule(artifact, coverage)
    module.remarks = remarks
    return module
