"""Define sums, means, maxima and minima of a tensor over some or all axes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly, product
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, AxesParameter, ShapeParameter, Value
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError, UserError

_REDUCE: dict[str, Callable[[Expr, list[Poly]], Expr]] = {"sum": te.sum, "max": te.max, "min": te.min}


def reduce(function: str, x: Tensor, axes: tuple[int, ...], name: str = "Y") -> Tensor:
    """One stage: the sum, max or min over `axes` (positions from 0; () means all); the other axes remain, in order.

    Raises:
        ScriptError: the function is unknown, or an axis is out of range or listed twice.
    """
    rank = len(x.shape)
    if function not in _REDUCE:
        raise ScriptError(f"reduce {name}: unknown function {function!r}; known are {', '.join(sorted(_REDUCE))}")
    if any(not 0 <= a < rank for a in axes) or len(set(axes)) != len(axes):
        raise ScriptError(f"reduce {name}: {axes} are not different axes of {x!r}")
    loops = list("ijkl"[:rank]) if rank <= 4 else [f"i{d}" for d in range(rank)]
    reduced = {d: te.reduce_axis(x.shape[d], loops[d]) for d in sorted(axes or range(rank))}
    remaining = [d for d in range(rank) if d not in reduced]

    def element(*index: Poly) -> Expr:
        at = {**reduced, **dict(zip(remaining, index, strict=True))}
        return _REDUCE[function](x[tuple([at[d] for d in range(rank)])], list(reduced.values()))

    return te.compute([x.shape[d] for d in remaining], element, name, axes=[loops[d] for d in remaining])


def divide_by_count(x: Tensor, count: Poly, name: str) -> Tensor:
    """The second stage of a mean: x / count."""
    return te.compute(x.shape, lambda *index: x[index] / number(count, x.dtype), name, axes=[v.name for v in x.axes])


def number(size: Poly, dtype: str) -> Expr:
    """A size as a value of the type."""
    return te.const(size.const, dtype) if size.const is not None else te.cast(dtype, size)


def _normalised(params: dict[str, Value]) -> dict[str, Value]:
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


_NUMPY: dict[str, Callable[..., np.ndarray]] = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}


def _operator(function: str) -> Operator:
    def tensors(*, shape: tuple[int, ...], axis: tuple[int, ...], dtype: str) -> list[Tensor]:
        x = te.placeholder(shape, dtype, "X")
        return [x, _mean(x, axis) if function == "mean" else reduce(function, x, axis)]

    def reference(x: np.ndarray, /, *, axis: tuple[int, ...], **_: object) -> list[np.ndarray]:
        return [np.asarray(_NUMPY[function](x.astype(np.float64), axis=axis or None)).astype(x.dtype)]

    def flops(*, shape: tuple[int, ...], **_: object) -> int:
        return math.prod(shape)

    return Operator(function, (ShapeParameter("shape"), AxesParameter("axis", ()), FLOATS), tensors, reference, flops, settle=_normalised)


SUM, MEAN, MAX, MIN = [_operator(f) for f in ("sum", "mean", "max", "min")]
