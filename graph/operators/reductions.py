"""Define reductions over some or all axes: sum, prod, mean, max, min, argmax, argmin, all, any.

Stages and numpy references are those of `ops.reduction` and `ops.arg_extreme`.  The operators differ from those of `ops/`: 16-bit floats
are accumulated in float32, integers and bool have reductions, and no axes (`axes=()`) reduce nothing, where they are all axes in `ops/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tunesmith.graph.ir.operator import REDUCTION, GraphOperator
from tunesmith.graph.operators.axes import axes_of, axis_of
from tunesmith.graph.operators.element_types import BOOLS, FLOATS, NUMBERS, require
from tunesmith.graph.operators.elementwise import mapped
from tunesmith.ir.expr import cast, compare
from tunesmith.ir.poly import product
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.arg_extreme import arg_extreme, arg_extreme_reference
from tunesmith.ops.reduction import Combine, divide_by_count, reduce_reference, reduced
from tunesmith.ops.tensor_expression import Tensor

Axes = int | Sequence[int] | None


def _positions(axes: Axes, rank: int) -> tuple[int, ...]:
    """Normalised axes, sorted; None means all axes."""
    return tuple(range(rank)) if axes is None else tuple(sorted(axes_of(axes, rank)))


def _wider(dtype: str) -> str:
    """The accumulator type: float32 for 16-bit floats, which are not precise enough."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _accumulated(combine: Combine) -> Callable[..., Tensor]:
    """The expression of a sum or a product."""

    def compute(x: Tensor, *, axes: Axes = None, keepdims: bool = False) -> Tensor:
        require(NUMBERS, x)
        over, wide = _positions(axes, len(x.shape)), _wider(x.dtype)
        made = reduced(x, over, combine, "Y" if wide == x.dtype else "S", value=lambda e: cast(wide, e), keepdims=keepdims)
        return made if wide == x.dtype else mapped(made, lambda e: cast(x.dtype, e))

    return compute


def _extreme(combine: Combine) -> Callable[..., Tensor]:
    def compute(x: Tensor, *, axes: Axes = None, keepdims: bool = False) -> Tensor:
        require(NUMBERS, x)
        return reduced(x, _positions(axes, len(x.shape)), combine, keepdims=keepdims)

    return compute


def _mean(x: Tensor, *, axes: Axes = None, keepdims: bool = False) -> Tensor:
    require(FLOATS, x)
    over, wide = _positions(axes, len(x.shape)), _wider(x.dtype)
    total = reduced(x, over, te.sum, "S", value=lambda e: cast(wide, e), keepdims=keepdims)
    quotient = divide_by_count(total, product([x.shape[d] for d in over]), "Y")
    return quotient if wide == x.dtype else mapped(quotient, lambda e: cast(x.dtype, e))


def _bool_reduction(combine: Combine) -> Callable[..., Tensor]:
    """The expression of `all` or `any`: the minimum or maximum of integers 0 and 1."""

    def compute(x: Tensor, *, axes: Axes = None, keepdims: bool = False) -> Tensor:
        require(BOOLS, x)
        found = reduced(x, _positions(axes, len(x.shape)), combine, "S", value=lambda e: cast("int32", e), keepdims=keepdims)
        return mapped(found, lambda e: compare("ne", e, 0))

    return compute


def _arg_extreme(function: str) -> Callable[..., Tensor]:
    def compute(x: Tensor, *, axis: int, keepdims: bool = False) -> Tensor:
        require(NUMBERS, x)
        return arg_extreme(function, x, axis_of(axis, len(x.shape)), keepdims)

    return compute


def _numpy(name: str) -> Callable[..., np.ndarray]:
    """The numpy reference of a reduction over axes."""

    def reference(x: np.ndarray, *, axes: Axes = None, keepdims: bool = False) -> np.ndarray:
        return reduce_reference(name, x, _positions(axes, x.ndim), keepdims)

    return reference


SUM = GraphOperator(
    "sum", REDUCTION, _accumulated(te.sum), _numpy("sum"), meaning="The sum over `axes`; 16-bit floats are accumulated in float32."
)
PROD = GraphOperator(
    "prod", REDUCTION, _accumulated(te.prod), _numpy("prod"), meaning="The product over `axes`; 16-bit floats are accumulated in float32."
)
MEAN = GraphOperator("mean", REDUCTION, _mean, _numpy("mean"), meaning="The mean over `axes`; 16-bit floats are accumulated in float32.")
MAX = GraphOperator("max", REDUCTION, _extreme(te.max), _numpy("max"), meaning="The greatest element over `axes`; NaN if there is one.")
MIN = GraphOperator("min", REDUCTION, _extreme(te.min), _numpy("min"), meaning="The least element over `axes`; NaN if there is one.")
ALL = GraphOperator("all", REDUCTION, _bool_reduction(te.min), _numpy("all"), meaning="Whether all bools over `axes` are true.")
ANY = GraphOperator("any", REDUCTION, _bool_reduction(te.max), _numpy("any"), meaning="Whether a bool over `axes` is true.")
ARGMAX = GraphOperator(
    "argmax",
    REDUCTION,
    _arg_extreme("argmax"),
    partial(arg_extreme_reference, "argmax"),
    meaning="The index of the first greatest element along an axis; NaN counts as the greatest.",
)
ARGMIN = GraphOperator(
    "argmin",
    REDUCTION,
    _arg_extreme("argmin"),
    partial(arg_extreme_reference, "argmin"),
    meaning="The index of the first least element along an axis; NaN counts as the least.",
)
