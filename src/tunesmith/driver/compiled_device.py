"""Compiled functions of a GPU or another device.

The device is used when a function is called, and not before: compiling, saving and exporting need no device.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.device.export import export_device_library
from tunesmith.driver.compiled import CompiledModule
from tunesmith.graph.tuning.apply_records import Coverage
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.runtime.device.module import DeviceModule
from tunesmith.runtime.device.program import DeviceProgram


class CompiledDeviceModule(DeviceModule, CompiledModule):
    """Compiled functions by name: `module["matmul"](a, b, c)` with arrays of the host, of the device, of torch or CuPy.

    `save` writes the program to a file, for all kinds of devices.

    Args:
        artifact: the program.
        coverage: the result of the record lookup, for each function looked up.
        index: index of the device among those of the target's kind; by default the current one of this thread.
    """

    def __init__(self, artifact: Artifact, coverage: tuple[Coverage, ...] = (), index: int | None = None) -> None:
        super().__init__(DeviceProgram.from_bytes(artifact.data), index)
        self.artifact = artifact
        self.coverage = coverage

    def export_library(self, path: str | PathLike[str]) -> Path:
        """Write a shared library that `load_module` loads, with or without tunesmith installed; returns the path.

        Its functions take GPU tensors and run on the current stream of torch, or on the stream set in TVM-FFI.  It is for the host of the
        target (`Target.host`), by default for any processor of this machine's architecture.

        Raises:
            BuildError: the target is not CUDA (`save` supports all targets), or the library cannot be linked or written.
        """
        target = Target.from_json(self.artifact.target)
        return export_device_library(path, self.program, target.host if target.has_host else None)


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
