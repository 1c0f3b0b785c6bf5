"""Define what every system of a benchmark receives: the files of inputs and expected outputs, and the code or names of a workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tunesmith.codegen.artifact import Code
from tunesmith.codegen.params import param_specs
from tunesmith.ir.function import PrimFunc
from tunesmith.measure.evaluator.correctness import load_reference, save_reference, tolerance_of_calls
from tunesmith.measure.evaluator.guard_pages import Array
from tunesmith.measure.precision import default_precision
from tunesmith.runtime.checker.param_spec import ParamSpec


@dataclass(frozen=True, slots=True)
class Setting:
    """A workload, as every system receives it.

    Attributes:
        inputs: file of the inputs.
        reference: file of the expected outputs.
        before: file of the contents of the outputs before a checked call.
        updates: the outputs depend on their contents before the call.
        functions: the unscheduled functions with the number of their calls, whose rounding errors give the tolerance.
        operator: canonical text of an operator; empty for other workloads.
        onnx: file of an ONNX model; empty for other workloads.
        code: the compiled function, for tunesmith only.
        exported: file of the compiled model, for tunesmith only.
        note: what was compiled, for the table.
    """

    inputs: str
    reference: str
    before: str
    updates: bool
    functions: tuple[tuple[PrimFunc, float], ...]
    operator: str = ""
    onnx: str = ""
    code: Code | None = None
    exported: str = ""
    note: str = ""

    @property
    def params(self) -> list[ParamSpec]:
        """The parameters of a function."""
        ((func, _),) = self.functions
        return param_specs(func)

    @property
    def precision(self) -> str:
        """The precision of a system that computes in the dtypes of the program: that of the first float among the inputs."""
        return default_precision([p.dtype for f, _ in self.functions for p in param_specs(f) if not p.written])

    def tolerance(self, precision: str) -> float:
        """The relative bound of rounding errors of a system that computes in this precision; see `measure.evaluator.correctness`."""
        return tolerance_of_calls(self.functions, precision)


@dataclass(frozen=True, slots=True)
class Data:
    """The arrays of a workload.

    Attributes:
        inputs: the inputs, in order; bfloat16 as float32.
        reference: the expected outputs.
        before: contents of the outputs before a checked call.
        updates: the outputs depend on these contents.
    """

    inputs: Sequence[Array]
    reference: Sequence[Array]
    before: Sequence[Array]
    updates: bool = False

    def save(self, folder: Path, name: str, functions: tuple[tuple[PrimFunc, float], ...], operator: str = "", onnx: str = "") -> Setting:
        """Write the arrays to files of this name in a folder; returns the setting."""
        inputs, reference, before = [folder / f"{name}-{kind}.npz" for kind in ("inputs", "reference", "before")]
        for path, arrays in ((inputs, self.inputs), (reference, self.reference), (before, self.before)):
            save_reference(path, arrays)
        return Setting(str(inputs), str(reference), str(before), self.updates, functions, operator, onnx)

    @classmethod
    def load(cls, setting: Setting) -> Data:
        """Read the arrays of a setting."""
        inputs, reference, before = [load_reference(path) for path in (setting.inputs, setting.reference, setting.before)]
        return cls(inputs, reference, before, setting.updates)
