"""Define operators over windows of elements: pooling, local response normalisation, cumulative sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunesmith.graph.ir.operator import FUSABLE, GraphOperator
from tunesmith.graph.operators.axes import axis_of
from tunesmith.ir.expr import Expr, call, const, select
from tunesmith.ir.poly import ZERO, Poly, ceildiv, maximum, minimum
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.conv2d import IMAGE_LOOPS
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError


@dataclass(frozen=True)
class _Direction:
    """The windows along one dimension of an image."""

    extent: Poly
    kernel: int
    stride: int
    low: int
    high: int
    dilation: int
    ceil_mode: bool

    @property
    def count(self) -> Poly:
        """Number of windows: with `ceil_mode` the last window may exceed the padded image, but must not start after the image."""
        last = self.extent + (self.low + self.high - self.dilation * (self.kernel - 1) - 1)
        if not self.ceil_mode:
            return last // self.stride + 1
        return minimum(ceildiv(last, self.stride) + 1, ceildiv(self.extent + self.low, self.stride))

    def start(self, i: Poly) -> Poly:
        """The start of window i in image coordinates."""
        return i * self.stride - self.low

    def inside(self, i: Poly, r: Poly) -> list[Expr]:
        """Conditions that element r of window i is in the image, without those that hold for the constant extents."""
        at = self.start(i) + r * self.dilation
        beyond = ((self.count - 1) * self.stride + ((self.kernel - 1) * self.dilation - self.low) - self.extent).const
        return [*([at >= 0] if self.low else []), *([at < self.extent] if beyond is None or beyond >= 0 else [])]

    def elements(self, i: Poly, padding_counts: bool) -> Poly:
        """The number of elements of window i in the image, or in the image and its padding."""
        end = self.extent + (self.high if padding_counts else 0)
        upto = minimum(ceildiv(end - self.start(i), self.dilation), self.kernel)
        return upto if padding_counts else upto - maximum(ceildiv(-self.start(i), self.dilation), ZERO)


def _directions(
    x: Tensor, kernel: Sequence[int], strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool, layout: str
) -> tuple[int, int, _Direction, _Direction]:
    """The dimensions of height and width, and their windows."""
    if layout not in IMAGE_LOOPS or len(x.shape) != 4:
        raise ScriptError(f"layout {layout!r} must be NCHW or NHWC, and {x!r} must have 4 dimensions")
    if not len(kernel) == len(strides) == len(dilation) == 2 or len(padding) != 4:
        raise ScriptError(
            f"kernel {kernel}, strides {strides} and dilation {dilation} must be (vertical, horizontal),"
            f" padding {padding} must be (top, left, bottom, right)"
        )
    if min(*kernel, *strides, *dilation) < 1 or min(padding) < 0:
        raise ScriptError(
            f"kernel {kernel}, strides {strides} and dilation {dilation} must be positive, padding {padding} must not be negative"
        )
    h, w = IMAGE_LOOPS[layout].index("h"), IMAGE_LOOPS[layout].index("w")
    made = [_Direction(x.shape[d], kernel[k], strides[k], padding[k], padding[k + 2], dilation[k], ceil_mode) for k, d in enumerate((h, w))]
    return h, w, made[0], made[1]


def _pooled(x: Tensor, h: int, w: int, rows: _Direction, columns: _Direction, op: str, outside: float, layout: str, name: str) -> Tensor:
    """The stage of the sum or the maximum of each window; `outside` is the value of elements outside the image."""
    rh, rw = te.reduce_axis(rows.kernel, "rh"), te.reduce_axis(columns.kernel, "rw")
    shape = list(x.shape)
    shape[h], shape[w] = rows.count, columns.count

    def element(*i: Poly) -> Expr:
        at = list(i)
        at[h], at[w] = rows.start(i[h]) + rh * rows.dilation, columns.start(i[w]) + rw * columns.dilation
        inside = [*rows.inside(i[h], rh), *columns.inside(i[w], rw)]
        value: Expr = x[tuple(at)]
        value = te.if_then_else(te.all(*inside), value, outside) if inside else value
        return te.sum(value, axis=[rh, rw]) if op == "sum" else te.max(value, axis=[rh, rw])

    return te.compute(shape, element, name, axes=IMAGE_LOOPS[layout])


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
    h, w, rows, columns = _directions(x, kernel, strides, padding, dilation, ceil_mode, layout)
    lowest = -np.inf if dt.is_float(x.dtype) else int(np.iinfo(dt.to_numpy(x.dtype)).min)
    return _pooled(x, h, w, rows, columns, "max", lowest, layout, "max_pool2d")


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
    if not dt.is_float(x.dtype):
        raise ScriptError(f"a mean requires floats, got {x!r}")
    h, w, rows, columns = _directions(x, kernel, strides, padding, dilation, ceil_mode, layout)
    total = _pooled(x, h, w, rows, columns, "sum", 0, layout, "S")
    whole = not ceil_mode and (count_include_pad or not any(padding))

    def element(*i: Poly) -> Expr:
        if whole:
            return total[i] / const(rows.kernel * columns.kernel, x.dtype)
        return total[i] / te.cast(x.dtype, rows.elements(i[h], count_include_pad) * columns.elements(i[w], count_include_pad))

    return te.compute(total.shape, element, "avg_pool2d", axes=IMAGE_LOOPS[layout])


def _windows(
    x: np.ndarray,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    layout: str,
    outside: float,
    beyond: float,
) -> np.ndarray:
    """All windows in the last two dimensions, in NCHW; `outside` is the value of padding, `beyond` of elements after the padding."""
    image = x if layout == "NCHW" else x.transpose(0, 3, 1, 2)
    reach = [dilation[d] * (kernel[d] - 1) + 1 for d in range(2)]
    counts, over = [], []
    for d in range(2):
        extent = image.shape[2 + d]
        last = extent + padding[d] + padding[d + 2] - reach[d]
        count = last // strides[d] + 1
        if ceil_mode and last % strides[d] and count * strides[d] < extent + padding[d]:
            count += 1
        counts.append(count)
        over.append((0, max((count - 1) * strides[d] - last, 0)))
    for width, value in ((((padding[0], padding[2]), (padding[1], padding[3])), outside), (over, beyond)):
        image = np.pad(image, ((0, 0), (0, 0), *width), constant_values=np.asarray(value).astype(image.dtype))
    views = np.lib.stride_tricks.sliding_window_view(image, reach, (2, 3))
    return views[:, :, : counts[0] * strides[0] : strides[0], : counts[1] * strides[1] : strides[1], :: dilation[0], :: dilation[1]]


def _to_layout(x: np.ndarray, layout: str, dtype: np.dtype) -> np.ndarray:
    return (x if layout == "NCHW" else x.transpose(0, 2, 3, 1)).astype(dtype)


def _max_pool2d_reference(x: np.ndarray, *, layout: str, **window: Any) -> np.ndarray:
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    return _to_layout(_windows(x, layout=layout, outside=lowest, beyond=lowest, **window).max((-2, -1)), layout, x.dtype)


def _avg_pool2d_reference(x: np.ndarray, *, layout: str, count_include_pad: bool, **window: Any) -> np.ndarray:
    """Sums divided by the numbers of counted elements."""
    total = _windows(x.astype(np.float64), layout=layout, outside=0, beyond=0, **window).sum((-2, -1))
    counts = _windows(np.ones(x.shape), layout=layout, outside=int(count_include_pad), beyond=0, **window).sum((-2, -1))
    return _to_layout(total / counts, layout, x.dtype)


MAX_POOL2D = GraphOperator(
    "max_pool2d", FUSABLE, _max_pool2d, _max_pool2d_reference, meaning="The maximum of each window; padding is ignored."
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
    a = axis_of(axis, len(x.shape))
    if x.dtype == "bool":
        raise ScriptError("bool elements cannot be added; cast them to an integer type")
    names = te.default_loops(len(x.shape))
    r = te.reduce_axis(x.shape[a], "r")

    def element(*i: Poly) -> Expr:
        distance = i[a] - r if reverse else r - i[a]
        included = distance < 0 if exclusive else distance <= 0
        return te.sum(select(included, x[(*i[:a], r, *i[a + 1 :])], const(0, x.dtype)), axis=r)

    return te.compute(x.shape, element, "cumsum", axes=names)


def _cumsum_reference(x: np.ndarray, *, axis: int, exclusive: bool = False, reverse: bool = False) -> np.ndarray:
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x
    wide = np.flip(wide, axis) if reverse else wide
    total = np.cumsum(wide, axis, dtype=wide.dtype)
    if exclusive:
        total = total - wide
    return (np.flip(total, axis) if reverse else total).astype(x.dtype)


CUMSUM = GraphOperator(
    "cumsum",
    FUSABLE,
    _cumsum,
    _cumsum_reference,
    wide=True,
    meaning=(
        "Cumulative sums along an axis, from its end if `reverse`, without the element itself if `exclusive`. All sums "
        "are computed independently of each other, so the time is quadratic in the extent."
    ),
)
