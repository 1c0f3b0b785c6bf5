"""Define operators over windows of elements: pooling, local response normalisation, cumulative sums, unfold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunesmith.graph.ir.operator import FUSABLE, INJECTIVE, GraphOperator
from tunesmith.graph.operators.axes import axis_of
from tunesmith.ir.expr import Expr, call
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.cumulative import cumulative, cumulative_reference
from tunesmith.ops.pooling import avg_pool, avg_pool_reference, max_pool, max_pool_indices, max_pool_indices_reference, max_pool_reference
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError


def _check(kernel: Sequence[int], strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> None:
    """Raise ScriptError for invalid attributes of windows."""
    if not len(kernel) == len(strides) == len(dilation) == 2 or len(padding) != 4:
        raise ScriptError(
            f"kernel {kernel}, strides {strides} and dilation {dilation} must be (vertical, horizontal),"
            f" padding {padding} must be (top, left, bottom, right)"
        )
    if min(*kernel, *strides, *dilation) < 1 or min(padding) < 0:
        raise ScriptError(
            f"kernel {kernel}, strides {strides} and dilation {dilation} must be positive, padding {padding} must not be negative"
        )


def _max_pool2d(
    x: Tensor,
    *,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
    layout: str = "NCHW",
) -> Tensor:
    _check(kernel, strides, padding, dilation)
    return max_pool(x, kernel, strides, padding, dilation, ceil_mode, layout)


def _max_pool2d_indices(
    x: Tensor,
    y: Tensor,
    *,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
    layout: str = "NCHW",
) -> Tensor:
    _check(kernel, strides, padding, dilation)
    return max_pool_indices(x, y, kernel, strides, padding, dilation, ceil_mode, layout)


def _avg_pool2d(
    x: Tensor,
    *,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
    layout: str = "NCHW",
    count_include_pad: bool = False,
) -> Tensor:
    _check(kernel, strides, padding, dilation)
    return avg_pool(x, kernel, strides, padding, dilation, ceil_mode, layout, count_include_pad)


def _max_pool2d_reference(
    x: np.ndarray, *, kernel: Any, strides: Any, padding: Any, dilation: Any, ceil_mode: bool, layout: str
) -> np.ndarray:
    return max_pool_reference(x, kernel, strides, padding, dilation, ceil_mode, layout)


def _max_pool2d_indices_reference(
    x: np.ndarray, y: np.ndarray, *, kernel: Any, strides: Any, padding: Any, dilation: Any, ceil_mode: bool, layout: str
) -> np.ndarray:
    return max_pool_indices_reference(x, y, kernel, strides, padding, dilation, ceil_mode, layout)


def _avg_pool2d_reference(
    x: np.ndarray, *, kernel: Any, strides: Any, padding: Any, dilation: Any, ceil_mode: bool, layout: str, count_include_pad: bool
) -> np.ndarray:
    return avg_pool_reference(x, kernel, strides, padding, dilation, ceil_mode, layout, count_include_pad)


MAX_POOL2D = GraphOperator(
    "max_pool2d", FUSABLE, _max_pool2d, _max_pool2d_reference, meaning="The maximum of each window; padding is ignored."
)

MAX_POOL2D_INDICES = GraphOperator(
    "max_pool2d_indices",
    FUSABLE,
    _max_pool2d_indices,
    _max_pool2d_indices_reference,
    meaning="The position in the image of the first element of each window that is equal to y, its maximum; NaN counts as the greatest.",
)

AVG_POOL2D = GraphOperator(
    "avg_pool2d",
    FUSABLE,
    _avg_pool2d,
    _avg_pool2d_reference,
    wide=True,
    meaning="The mean of each window over its elements in the image, or in the image and its padding if `count_include_pad`.",
)


def _lrn(x: Tensor, *, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    if len(x.shape) < 2 or not dt.is_float(x.dtype):
        raise ScriptError(f"{x!r} must have batch and channel axes and a floating point type")
    if size < 1 or bias <= 0:
        raise ScriptError(f"size {size} and bias {bias} must be positive")
    low, r = (size - 1) // 2, te.reduce_axis(size, "r")

    def squares(*i: Poly) -> Expr:
        c = i[1] + r - low
        value = x[(i[0], c, *i[2:])]
        inside = te.all(*([c >= 0] if low else []), *([c < x.shape[1]] if size > 1 else []))
        return te.sum(te.if_then_else(inside, value * value, 0.0), axis=r)

    total = te.compute(x.shape, squares, "S", axes=te.default_loops(len(x.shape)))
    # The base is positive, so the power is an exponential.
    return te.compute(x.shape, lambda *i: x[i] * call("exp", call("log", total[i] * (alpha / size) + bias) * -beta), "lrn")


def _lrn_reference(x: np.ndarray, *, size: int, alpha: float, beta: float, bias: float) -> np.ndarray:
    wide = x.astype(np.float64)
    squares = np.pad(wide * wide, [((size - 1) // 2, size // 2) if d == 1 else (0, 0) for d in range(x.ndim)])
    total = np.lib.stride_tricks.sliding_window_view(squares, size, 1).sum(-1)
    return (wide / (bias + alpha / size * total) ** beta).astype(x.dtype)


LRN = GraphOperator(
    "lrn",
    FUSABLE,
    _lrn,
    _lrn_reference,
    wide=True,
    meaning="x / (bias + alpha / size * sum of squares over `size` neighbouring channels) ** beta (Krizhevsky et al., 2012), as in ONNX.",
)


def _cumsum(x: Tensor, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    return cumulative("cumsum", x, axis_of(axis, len(x.shape)), exclusive=exclusive, reverse=reverse)


def _cumsum_reference(x: np.ndarray, *, axis: int, exclusive: bool = False, reverse: bool = False) -> np.ndarray:
    return cumulative_reference("cumsum", x, axis % x.ndim, exclusive=exclusive, reverse=reverse)


CUMSUM = GraphOperator(
    "cumsum",
    FUSABLE,
    _cumsum,
    _cumsum_reference,
    wide=True,
    meaning="Cumulative sums along an axis, from its end if `reverse`, without the element itself if `exclusive`.",
)


def _unfold(x: Tensor, *, axis: int, size: int, step: int = 1, dilation: int = 1) -> Tensor:
    a = axis_of(axis, len(x.shape))
    if min(size, step, dilation) < 1:
        raise ScriptError(f"size {size}, step {step} and dilation {dilation} must be positive")
    reach = dilation * (size - 1) + 1
    extent = x.shape[a].const
    if extent is not None and extent < reach:
        raise ScriptError(f"a window of {reach} elements does not fit in axis {a} of {x!r}")
    shape = [(e - reach) // step + 1 if d == a else e for d, e in enumerate(x.shape)]
    return te.compute((*shape, size), lambda *i: x[(*i[:a], i[a] * step + i[-1] * dilation, *i[a + 1 : -1])], "unfold")


def _unfold_reference(x: np.ndarray, *, axis: int, size: int, step: int = 1, dilation: int = 1) -> np.ndarray:
    views = np.lib.stride_tricks.sliding_window_view(x, dilation * (size - 1) + 1, axis)[..., ::dilation]
    return views[(slice(None),) * (axis % x.ndim) + (slice(None, None, step),)]


UNFOLD = GraphOperator(
    "unfold",
    INJECTIVE,
    _unfold,
    _unfold_reference,
    meaning="The windows of `size` elements along an axis, at distances of `step`, as a new last axis; torch.Tensor.unfold.",
)
