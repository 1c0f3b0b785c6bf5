"""Compiled functions of the CPU, loaded into this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import cast

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.llvm.export import export_library
from tunesmith.codegen.params import written_buffers
from tunesmith.driver.compiled import CompiledModule
from tunesmith.graph.tuning.apply_records import Coverage
from tunesmith.ir.function import PrimFunc
from tunesmith.measure.evaluator.packed_call import load_call
from tunesmith.runtime.module import Module, RefusedFunction
from tunesmith.support.errors import OtherMachineError, RunError


class CompiledCpuModule(Module, CompiledModule):
    """Compiled functions of the CPU by name: `module["matmul"](a, b, c)`."""

    @classmethod
    def from_artifact(cls, artifact: Artifact, coverage: tuple[Coverage, ...] = ()) -> CompiledCpuModule:
        """Load object code into this process.  The functions of another machine can be exported; calls raise OtherMachineError.

        Raises:
            RunError: the code is no object, or needs an undefined symbol.
        """
        try:
            module = cast(CompiledCpuModule, cls.from_object(artifact.data))
        except OtherMachineError as error:
            module = cls({name: RefusedFunction(name, str(error)) for name in artifact.functions}, "object for another machine")
        module.artifact = artifact
        module.coverage = coverage
        return module

    def describe(self, functions: Iterable[PrimFunc]) -> None:
        """Declare which parameters the given functions write, so that calls accept read-only arrays for the others."""
        for f in functions:
            if f.name in self.functions:
                written = written_buffers(f)
                self[f.name].parameters = tuple([(p.name, p in written) for p in f.params])

    def bind(self, *arguments: object, name: str | None = None) -> Callable[[], object]:
        """Bind a function to its arguments, for repeated calls with the same weights.

        Constants that the schedule packs (`PrimFunc.constants`) are packed once, now; later changes of those arrays have no effect.
        Other arrays are read at each call.

        Args:
            arguments: arguments of the function, in order.
            name: name of the function; optional if there is only one.
        Raises:
            RunError: there are several functions, or none of this name; an argument does not match its parameter.
        """
        function = self.function_name(name)
        try:
            return load_call(self.artifact.code(function), self[function].passable(arguments) or arguments)
        except OtherMachineError:
            raise
        except RunError as error:  # the packed call has no information about written parameters
            raise self[function].refusal(arguments, error) from error

    def export_library(self, path: str | PathLike[str]) -> Path:
        """Write a shared library that `load_module` loads, with or without tunesmith installed; returns the path.

        Raises:
            BuildError: the library cannot be linked or written.
        """
        return export_library(path, [self.artifact.data])


def load_cpu(
    artifact: Artifact, coverage: tuple[Coverage, ...], remarks: tuple[str, ...], functions: Iterable[PrimFunc]
) -> CompiledCpuModule:
    """Load functions of the CPU.  Those of another machine can be exported, but not called.

    Args:
        artifact: the object code.
        coverage: results of record lookups.
        remarks: warnings about the programs.
        functions: the programs, which say what parameters are written.
    """
    module = CompiledCpuModule.from_artifact(artifact, coverage)
    module.remarks = remarks
    module.describe(functions)
    return module
