"""Define operators without operands: constants, ranges, identity matrices, and sizes as tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tunesmith.graph.ir.operator import INJECTIVE, GraphOperator
from tunesmith.graph.operators.element_types import literal, scalar_type
from tunesmith.ir.expr import Expr, cast, const, equal, select
from tunesmith.ir.poly import Index, Poly, ceildiv, poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError

Number = float | Poly


def _full(*, shape: tuple[Index, ...], value: Number, dtype: str) -> Tensor:
    made = literal(value, scalar_type(dtype), "value")
    return te.compute(shape, lambda *_: made, "Y")


def _np_full(*, shape: tuple[int, ...], value: float, dtype: str) -> np.ndarray:
    return np.full(shape, value, dt.to_numpy(dtype))


def _count(start: Number, stop: Number, step: Number) -> Poly:
    """The number of elements of a range; a step that is a variable is assumed to be positive."""
    if any(isinstance(v, bool) or not isinstance(v, (int, float, Poly)) for v in (start, stop, step)):
        raise ScriptError(f"start, stop and step must be numbers or sizes, got {start!r}, {stop!r} and {step!r}")
    if step == 0:
        raise ScriptError("step must not be 0")
    if isinstance(start, float) or isinstance(stop, float) or isinstance(step, float):
        numbers = [v for v in (start, stop, step) if not isinstance(v, Poly)]
        if len(numbers) < 3 or not all(math.isfinite(v) for v in numbers):
            raise ScriptError(
                f"a range with sizes must have integers only, and numbers must be finite: got {start!r}, {stop!r} and {step!r}"
            )
        return poly(max(0, math.ceil((numbers[1] - numbers[0]) / numbers[2])))
    distance = poly(stop) - poly(start)
    if isinstance(step, int) and step < 0:
        distance, step = poly(0) - distance, -step
    count = ceildiv(distance, step)
    return count if count.const is None else poly(max(0, count.const))


def _arange(*, start: Number, stop: Number, step: Number, dtype: str) -> Tensor:
    count = _count(start, stop, step)
    kind = scalar_type(dtype)
    if kind == "bool":
        raise ScriptError("a range of bool is not supported; use a numeric type")
    if not any(isinstance(v, float) for v in (start, step)):
        return te.compute((count,), lambda i: cast(kind, poly(start) + i * poly(step)), "Y")  # type: ignore[arg-type]
    if not dt.is_float(kind):
        # Reject fractions, which truncation would turn into repeated integers.
        literal(start, kind, "start")
        literal(step, kind, "step")
    first, by = literal(start, "float64", "start"), literal(step, "float64", "step")
    return te.compute((count,), lambda i: cast(kind, first + cast("float64", i) * by), "Y")


def _np_arange(*, start: float, stop: float, step: float, dtype: str) -> np.ndarray:
    index = np.arange(_count(start, stop, step).as_int())
    return np.asarray(start + index * step).astype(dt.to_numpy(dtype))


def _eye(*, n: Index, m: Index, k: Index = 0, dtype: str) -> Tensor:
    one, zero = const(1, scalar_type(dtype)), const(0, dtype)
    return te.compute((n, m), lambda i, j: select(equal(j, i + poly(k)), one, zero), "Y")


def _np_eye(*, n: int, m: int, k: int = 0, dtype: str) -> np.ndarray:
    return np.eye(n, m, k, dt.to_numpy(dtype))


def _size_value(*, value: Index, dtype: str = "int64") -> Tensor:
    made: Expr = literal(value, scalar_type(dtype), "value")
    return te.compute((), lambda: made, "Y")


def _np_size_value(*, value: int, dtype: str = "int64") -> np.ndarray:
    return np.asarray(value, dt.to_numpy(dtype))


def _operator(name: str, compute: Any, reference: Any, meaning: str) -> GraphOperator:
    return GraphOperator(name, INJECTIVE, compute, reference, meaning=meaning)


FULL = _operator("full", _full, _np_full, "A tensor of one value.")
ARANGE = _operator("arange", _arange, _np_arange, "start, start + step, ... up to stop, which is excluded.")
EYE = _operator(
    "eye", _eye, _np_eye, "An n x m matrix with ones on diagonal k, above the main diagonal if k is positive, and zeros elsewhere."
)
SIZE_VALUE = _operator("size_value", _size_value, _np_size_value, "A scalar with the value of a size, which may be dynamic.")
