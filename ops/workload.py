"""Define workloads: one operator with one set of parameters, named by a text such as `matmul(m=512,n=512,k=512)`.

Logs, tables and command lines use the text; `workload(text).text` is its canonical form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.memory import round_bfloat16
from tunesmith.ops.operator import OPERATORS, Operator
from tunesmith.ops.parameter import Value
from tunesmith.support import dtype as dt
from tunesmith.support.errors import RunError, UserError
from tunesmith.support.seeds import stream


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and type of a parameter of a workload's function."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * dt.nbytes(self.dtype)


@dataclass(frozen=True, eq=False, slots=True)
class Workload:
    """An operator with parameters, made by `workload` and `make_workload`.

    Attributes:
        operator: the operator.
        params: all parameters, in order.
        func: the unscheduled program; its parameters are the inputs and then the outputs.
        inputs: specs of the inputs, in order.
        outputs: specs of the outputs, in order.
        flops: floating point operations, by the convention of benchmark tables (`Operator.flops`).
    """

    operator: Operator
    params: Mapping[str, Value]
    func: PrimFunc
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    flops: int

    @property
    def name(self) -> str:
        """The operator's name."""
        return self.operator.name

    @property
    def text(self) -> str:
        """The canonical text form; `workload(text)` makes an equal workload."""
        return self.operator.spelled(self.params)

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs and outputs, the minimum memory traffic."""
        return sum([t.nbytes for t in (*self.inputs, *self.outputs)])

    def __str__(self) -> str:
        return self.text

    @property
    def index_extents(self) -> dict[str, int]:
        """The exclusive upper bounds of inputs of indices, by name."""
        return {name: int(self.params[parameter]) for name, parameter in self.operator.indices}  # type: ignore[arg-type]

    def random_inputs(self, seed: int = 0) -> list[np.ndarray]:
        """Random inputs, uniform in [-0.5, 0.5), or in [0.5, 1.5) if the operator needs positive values; bytes in the range of their
        type, other integers in [-1024, 1024), indices in their range; bfloat16 as float32.

        An input depends only on the seed, the text and its name.
        """
        return [self._random(t, seed) for t in self.inputs]

    def reference(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs that numpy computes from `inputs`.

        Raises:
            RunError: number, shapes or types of the inputs are not those of the workload.
        """
        self.check_inputs(inputs)
        return self.operator.in_numpy(*inputs, **self.params)

    def check_inputs(self, inputs: Sequence[np.ndarray]) -> None:
        """Check the number, shapes and types of input arrays.

        Raises:
            RunError: they are not those of the workload.
        """
        if len(inputs) != len(self.inputs):
            raise RunError(
                f"{self.text}: the workload has {len(self.inputs)} inputs ({', '.join([t.name for t in self.inputs])}), got {len(inputs)}"
            )
        for spec, array in zip(self.inputs, inputs, strict=True):
            if array.shape != spec.shape or array.dtype != dt.to_numpy(spec.dtype):
                raise RunError(
                    f"{self.text}: the input {spec.name} is {spec.dtype} of shape {spec.shape}, got {array.dtype} of shape {array.shape}"
                )

    def _random(self, spec: TensorSpec, seed: int) -> np.ndarray:
        low = 0.5 if spec.name in self.operator.positive else -0.5
        draw = stream(seed, "ops.inputs", self.text, spec.name)
        if spec.name in self.index_extents:
            return draw.integers(0, self.index_extents[spec.name], spec.shape, dt.to_numpy(spec.dtype))
        if dt.is_int(spec.dtype):
            held = np.iinfo(spec.dtype)
            return draw.integers(max(held.min, -1024), min(held.max + 1, 1024), spec.shape, spec.dtype)
        if spec.dtype == "float64":
            return draw.random(spec.shape) + low
        if spec.dtype == "bfloat16":
            return np.asarray(round_bfloat16(draw.random(spec.shape, dtype=np.float32) + np.float32(low)))
        return (draw.random(spec.shape, dtype=np.float32) + np.float32(low)).astype(dt.to_numpy(spec.dtype))


def workload(text: str) -> Workload:
    """The workload with the text `NAME(key=value,...)`; spaces are allowed around names and values.

    Raises:
        UserError: the text has another form, the operator or a parameter is unknown (the message names the nearest), a
            parameter is missing, given twice or has an invalid value.
    """
    match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", text, re.DOTALL)
    if match is None:
        if text.strip() in OPERATORS:
            raise UserError(f"{text!r} is not a workload. Spell it NAME(key=value,...). Usage: {OPERATORS.get(text.strip()).usage()}")
        hint = f"; a function of that file is {text.strip()}:NAME" if text.strip().endswith(".py") else ""
        raise UserError(f"{text!r} is not a workload. Spell it NAME(key=value,...), for example matmul(m=512,n=512,k=512){hint}")
    name, inside = match.groups()
    operator = OPERATORS.get(name)
    given: dict[str, object] = {}
    for part in inside.split(",") if inside.strip() else []:
        key, equals, value = [x.strip() for x in part.partition("=")]
        if not equals or not key:
            raise UserError(f"{text!r}: {part.strip()!r} is not of the form key=value. Usage: {operator.usage()}")
        if "=" in value:
            raise UserError(f"{text!r}: {part.strip()!r} is more than one parameter. Separate parameters by commas: {operator.usage()}")
        if key in given:
            raise UserError(f"{text!r}: the parameter {key} is given twice")
        given[key] = value
    return make_workload(operator, given)


def make_workload(operator: Operator | str, params: Mapping[str, object]) -> Workload:
    """The workload of an operator, given itself or by name, with parameters as texts or values; errors as in `workload`."""
    op = OPERATORS.get(operator) if isinstance(operator, str) else operator
    bound = op.bind(params)
    tensors = op.arguments(**bound)
    func = op.function(tensors)
    specs = [_spec(p) for p in func.params if isinstance(p, Buffer)]
    inputs = tuple([s for s, t in zip(specs, tensors, strict=True) if t.is_input])
    outputs = tuple([s for s, t in zip(specs, tensors, strict=True) if not t.is_input])
    return Workload(op, bound, func, inputs, outputs, op.operations(**bound))


def _spec(buffer: Buffer) -> TensorSpec:
    return TensorSpec(buffer.name, tuple([e.as_int() for e in buffer.shape]), buffer.dtype)
