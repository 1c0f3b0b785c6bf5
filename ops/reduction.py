"""Define sums, products, means, maxima and minima of a tensor over some or all axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly, product
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, AxesParameter, ShapeParameter, Value
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError, UserError

Combine = Callable[[Expr, list[Poly]], Expr]
"""A reduction of `te`: of a formula, over axes."""

REDUCE: dict[str, Combine] = {"sum": te.sum, "prod": te.prod, "max": te.max, "min": te.min}
"""The reductions that are one stage."""


def reduced(
    x: Tensor,
    axes: Sequence[int],
    combine: Combine,
    name: str = "Y",
    *,
    value: Callable[[Expr], Expr] = lambda e: e,
    keepdims: bool = False,
) -> Tensor:
    """The stage that combines `value` of the elements over `axes`, sorted positions from 0; () reduces nothing.

    The other axes remain, in order; `keepdims` keeps the reduced ones too, with extent 1.
    """
    rank = len(x.shape)
    loops = te.default_loops(rank)
    over = {d: te.reduce_axis(x.shape[d], loops[d]) for d in axes}
    remaining = [d for d in range(rank) if keepdims or d not in over]

    def element(*index: Poly) -> Expr:
        at = {**dict(zip(remaining, index, strict=True)), **over}
        found = value(x[tuple([at[d] for d in range(rank)])])
        return combine(found, list(over.values())) if over else found

    shape = [1 if d in over else x.shape[d] for d in remaining]
    return te.compute(shape, element, name, axes=[f"{loops[d]}_one" if d in over else loops[d] for d in remaining])


def reduce(function: str, x: Tensor, axes: tuple[int, ...], name: str = "Y") -> Tensor:
    """One stage: the sum, prod, max or min over `axes` (positions from 0; () means all); the other axes remain, in order.

    Raises:
        ScriptError: the function is unknown, or an axis is out of range or listed twice.
    """
    rank = len(x.shape)
    if function not in REDUCE:
        raise ScriptError(f"reduce {name}: unknown function {function!r}; known are {', '.join(sorted(REDUCE))}")
    if any(not 0 <= a < rank for a in axes) or len(set(axes)) != len(axes):
        raise ScriptError(f"reduce {name}: {axes} are not different axes of {x!r}")
    return reduced(x, sorted(axes or range(rank)), REDUCE[function], name)


def divide_by_count(x: Tensor, count: Poly, name: str) -> Tensor:
    """The second stage of a mean: x / count."""
    return te.compute(x.shape, lambda *index: x[index] / number(count, x.dtype), name, axes=[v.name for v in x.axes])


def number(size: Poly, dtype: str) -> Expr:
    """A size as a value of the type."""
    return te.const(size.const, dtype) if size.const is not None else te.cast(dtype, size)


def settle_axis(params: dict[str, Value], shape: Sequence[int] = ()) -> dict[str, Value]:
    """The parameters, with `axis` counted from 0, and the last axis stored as -1; `shape` if it is no parameter."""
    extents, axis = shape or params["shape"], params["axis"]
    assert isinstance(extents, Sequence) and isinstance(axis, int)
    if not -len(extents) <= axis < len(extents):
        raise UserError(f"parameter axis: {axis} is not an axis of {'x'.join(map(str, extents))}")
    position = axis % len(extents)
    return {**params, "axis": -1 if position == len(extents) - 1 else position}


def settle_axes(params: dict[str, Value]) -> dict[str, Value]:
    """The parameters, with axes counted from 0 and sorted; all axes are stored as () (spelled `all`)."""
    shape, axis = params["shape"], params["axis"]
    assert isinstance(shape, tuple) and isinstance(axis, tuple)
    rank = len(shape)
    positions = sorted([a + rank if a < 0 else a for a in axis])
    if any(not 0 <= a < rank for a in positions) or len(set(positions)) != len(positions):
        raise UserError(f"parameter axis: {'+'.join(map(str, axis))} are not different axes of {'x'.join(map(str, shape))}")
    return {**params, "axis": () if len(positions) == rank else tuple(positions)}


def _mean(x: Tensor, axis: tuple[int, ...]) -> Tensor:
    total = reduce("sum", x, axis, "S")
    return divide_by_count(total, product([x.shape[d] for d in axis or range(len(x.shape))]), "Y")


def accumulator(x: np.ndarray) -> np.dtype:
    """The type in which numpy references accumulate: float64 for floats, and the type itself for integers."""
    return np.dtype(np.float64) if x.dtype.kind == "f" else x.dtype


def reduce_reference(function: str, x: np.ndarray, axes: tuple[int, ...] | None, keepdims: bool = False) -> np.ndarray:
    """A reduction of numpy by name over `axes`, None for all; sums, products and means are rounded once (see `accumulator`)."""
    wide: dict[str, Any] = {"dtype": accumulator(x)} if function in ("sum", "prod", "mean") else {}
    if not x.size and function in ("max", "min"):  # over no elements: the identity, as compiled
        low, high = (-np.inf, np.inf) if x.dtype.kind not in "iub" else (False, True) if x.dtype == bool else _ends(x.dtype)
        wide = {"initial": low if function == "max" else high}
    with np.errstate(all="ignore"):
        return np.asarray(getattr(np, function)(x, axis=axes, keepdims=keepdims, **wide)).astype(x.dtype)


def _ends(dtype: np.dtype) -> tuple[int, int]:
    """The least and the greatest number of an integer type."""
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def _operator(function: str) -> Operator:
    def tensors(*, shape: tuple[int, ...], axis: tuple[int, ...], dtype: str) -> list[Tensor]:
        x = te.placeholder(shape, dtype, "X")
        return [x, _mean(x, axis) if function == "mean" else reduce(function, x, axis)]

    def reference(x: np.ndarray, /, *, axis: tuple[int, ...], **_: object) -> list[np.ndarray]:
        return [reduce_reference(function, x, axis or None)]

    def flops(*, shape: tuple[int, ...], **_: object) -> int:
        return math.prod(shape)

    parameters = (ShapeParameter("shape"), AxesParameter("axis", ()), FLOATS)
    positive = ("X",) if function == "prod" else ()
    return Operator(function, parameters, tensors, reference, flops, positive=positive, settle=settle_axes)


SUM, PROD, MEAN, MAX, MIN = [_operator(f) for f in ("sum", "prod", "mean", "max", "min")]
