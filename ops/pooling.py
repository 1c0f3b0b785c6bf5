"""Define maximum and average pooling over one to three dimensions.

Pooling of whole images is a reduction over their dimensions: `mean(shape=1x7x7x512,axis=1+2)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from tunesmith.ir.expr import Binary, Expr, call, const, equal, select
from tunesmith.ir.poly import ZERO, Poly, ceildiv, maximum, minimum, product
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.convolution import (
    DIMENSIONS,
    IMAGE_LOOPS,
    LAYOUTS,
    Numbers,
    Sides,
    channels_last,
    check_windows,
    extents_of,
    image_parameters,
    in_layout,
    numbers,
    sides,
    windows,
)
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter, Value, WordParameter, flag
from tunesmith.ops.reduction import Combine
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError, UserError


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
    x: Tensor, kernel: Sequence[int], stride: Numbers, pad: Sides, dilation: Numbers, ceil_mode: bool, layout: str
) -> dict[int, _Direction]:
    """The windows along each dimension of an image, by its position in the shape."""
    rank = len(kernel)
    known = LAYOUTS.get(rank, ())
    if layout not in known or len(x.shape) != rank + 2:
        raise ScriptError(f"layout {layout!r} must be {' or '.join(sorted(known))}, and {x!r} must have {rank + 2} dimensions")
    first = 1 if layout.endswith("C") else 2
    given = zip(extents_of(x.shape, layout), kernel, numbers(stride, rank), sides(pad, rank), numbers(dilation, rank), strict=True)
    return {first + d: _Direction(e, k, s, low, high, gap, ceil_mode) for d, (e, k, s, (low, high), gap) in enumerate(given)}


def _pooled(x: Tensor, along: dict[int, _Direction], combine: Combine, outside: float, layout: str, name: str) -> Tensor:
    """The stage that combines the elements of each window; `outside` is the value of elements outside the image."""
    taps = {d: te.reduce_axis(w.kernel, f"r{IMAGE_LOOPS[layout][d]}") for d, w in along.items()}

    def element(*i: Poly) -> Expr:
        at = [along[d].start(p) + taps[d] * along[d].dilation if d in along else p for d, p in enumerate(i)]
        inside = [c for d, w in along.items() for c in w.inside(i[d], taps[d])]
        value: Expr = x[tuple(at)]
        return combine(te.if_then_else(te.all(*inside), value, outside) if inside else value, list(taps.values()))

    shape = [along[d].count if d in along else e for d, e in enumerate(x.shape)]
    return te.compute(shape, element, name, axes=IMAGE_LOOPS[layout])


def max_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Numbers = 1,
    pad: Sides = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    layout: str = "NHWC",
) -> Tensor:
    """One stage: the maximum of each window; padding is ignored.

    Args:
        x: an image in `layout`.
        kernel: extents of the window; their number is that of the dimensions.
        stride: distance of windows, in all directions or in each.
        pad: padding on each side, or on the low sides and then the high sides.
        dilation: distance of the elements of a window.
        ceil_mode: the last window may exceed the padded image.
        layout: one of `LAYOUTS`.
    Raises:
        ScriptError: the layout, the image and the windows do not fit together.
    """
    lowest = -np.inf if dt.is_float(x.dtype) else int(np.iinfo(dt.to_numpy(x.dtype)).min)
    along = _directions(x, kernel, stride, pad, dilation, ceil_mode, layout)
    return _pooled(x, along, te.max, lowest, layout, f"max_pool{len(kernel)}d")


def max_pool_indices(
    x: Tensor,
    y: Tensor,
    kernel: Sequence[int],
    stride: Numbers = 1,
    pad: Sides = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    layout: str = "NHWC",
) -> Tensor:
    """The position in the image, in row-major order, of the first element of each window that is equal to its maximum or NaN.

    The stages are P, the least position as int32 (int64 for images of more elements), and its cast to int64.

    Args:
        x: an image in `layout`.
        y: `max_pool` of the image with the same windows; other arguments are those of `max_pool`.
    Raises:
        ScriptError: the layout, the image and the windows do not fit together, or `y` is not their maximum by its type.
    """
    along = _directions(x, kernel, stride, pad, dilation, ceil_mode, layout)
    taps = {d: te.reduce_axis(w.kernel, f"r{IMAGE_LOOPS[layout][d]}") for d, w in along.items()}
    shape = tuple([along[d].count if d in along else e for d, e in enumerate(x.shape)])
    if y.shape != shape or y.dtype != x.dtype:
        raise ScriptError(f"{y!r} is not the result of max_pool: its shape is {[*y.shape]}, and the windows of {x!r} have {[*shape]}")
    count = product([w.extent for w in along.values()])
    kind = "int32" if count.const is not None and count.const < 2**31 else "int64"

    def element(*i: Poly) -> Expr:
        at = [along[d].start(p) + taps[d] * along[d].dilation if d in along else p for d, p in enumerate(i)]
        inside = [c for d, w in along.items() for c in w.inside(i[d], taps[d])]
        flat = ZERO
        for d, w in along.items():
            flat = flat * w.extent + at[d]
        value: Expr = x[tuple(at)]
        found = equal(value, y[i])
        if dt.is_float(x.dtype):
            found = Binary("or", found, call("isnan", value, dtype="bool"))
        last = te.cast(kind, count - 1)  # a window without an element in the image has no other position
        place = select(found, te.cast(kind, flat), last)
        return te.min(te.if_then_else(te.all(*inside), place, last) if inside else place, list(taps.values()))

    places = te.compute(y.shape, element, "P", axes=IMAGE_LOOPS[layout])
    return te.compute(y.shape, lambda *i: te.cast("int64", places[i]), f"max_pool{len(kernel)}d_indices", axes=IMAGE_LOOPS[layout])


def avg_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Numbers = 1,
    pad: Sides = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    layout: str = "NHWC",
    count_include_pad: bool = False,
) -> Tensor:
    """The mean of each window over its elements in the image, or in the image and its padding if `count_include_pad`.

    The stages are S, the sums, and their quotients; other arguments and errors are those of `max_pool`.
    """
    if not dt.is_float(x.dtype):
        raise ScriptError(f"a mean requires floats, got {x!r}")
    along = _directions(x, kernel, stride, pad, dilation, ceil_mode, layout)
    total = _pooled(x, along, te.sum, 0, layout, "S")
    whole = not ceil_mode and (count_include_pad or not any(w.low or w.high for w in along.values()))

    def element(*i: Poly) -> Expr:
        if whole:
            return total[i] / const(prod(kernel), x.dtype)
        return total[i] / te.cast(x.dtype, product([w.elements(i[d], count_include_pad) for d, w in along.items()]))

    return te.compute(total.shape, element, f"avg_pool{len(kernel)}d", axes=IMAGE_LOOPS[layout])


def _windows(
    x: np.ndarray,
    kernel: Sequence[int],
    stride: Numbers,
    pad: Sides,
    dilation: Numbers,
    ceil_mode: bool,
    outside: float,
    beyond: float,
) -> np.ndarray:
    """All windows of an image with channels last, in its last dimensions.

    `outside` is the value of padding, `beyond` of elements after the padding.
    """
    rank = len(kernel)
    strides, dilations, edges = numbers(stride, rank), numbers(dilation, rank), sides(pad, rank)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    counts, over = [], []
    for extent, s, (low, high), r in zip(x.shape[1:-1], strides, edges, reach, strict=True):
        last = extent + low + high - r
        count = last // s + 1
        if ceil_mode and last % s and count * s < extent + low:
            count += 1
        counts.append(count)
        over.append((0, max((count - 1) * s - last, 0)))
    for width, value in ((edges, outside), (over, beyond)):
        x = np.pad(x, ((0, 0), *width, (0, 0)), constant_values=np.asarray(value).astype(x.dtype))
    views = np.lib.stride_tricks.sliding_window_view(x, reach, tuple(range(1, rank + 1)))
    starts = [slice(0, n * s, s) for n, s in zip(counts, strides, strict=True)]
    return views[(slice(None), *starts, slice(None), *[slice(None, None, d) for d in dilations])]


def max_pool_reference(
    x: np.ndarray, kernel: Sequence[int], stride: Numbers, pad: Sides, dilation: Numbers, ceil_mode: bool, layout: str
) -> np.ndarray:
    """Maximum pooling in numpy; arguments are those of `max_pool`."""
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    found = _windows(channels_last(x, layout), kernel, stride, pad, dilation, ceil_mode, lowest, lowest)
    return in_layout(found.max(tuple(range(-len(kernel), 0))), layout, x.dtype)


def max_pool_indices_reference(
    x: np.ndarray, y: np.ndarray, kernel: Sequence[int], stride: Numbers, pad: Sides, dilation: Numbers, ceil_mode: bool, layout: str
) -> np.ndarray:
    """Positions of maxima in numpy; arguments are those of `max_pool_indices`."""
    image, rank = channels_last(x, layout), len(kernel)
    count = int(np.prod(image.shape[1:-1]))
    positions = np.broadcast_to(np.arange(count).reshape(1, *image.shape[1:-1], 1), image.shape)
    window = (kernel, stride, pad, dilation, ceil_mode)
    values, places = _windows(image, *window, 0, 0), _windows(positions, *window, count - 1, count - 1)
    found = (values == channels_last(y, layout)[(..., *[None] * rank)]) | (values != values)
    return in_layout(np.where(found, places, count - 1).min(tuple(range(-rank, 0))), layout, np.dtype(np.int64))


def avg_pool_reference(
    x: np.ndarray,
    kernel: Sequence[int],
    stride: Numbers,
    pad: Sides,
    dilation: Numbers,
    ceil_mode: bool,
    layout: str,
    count_include_pad: bool,
) -> np.ndarray:
    """Average pooling in numpy: sums divided by the numbers of counted elements; arguments are those of `avg_pool`."""
    image, axes = channels_last(x.astype(np.float64), layout), tuple(range(-len(kernel), 0))
    total = _windows(image, kernel, stride, pad, dilation, ceil_mode, 0, 0).sum(axes)
    counts = _windows(np.ones(image.shape), kernel, stride, pad, dilation, ceil_mode, int(count_include_pad), 0).sum(axes)
    return in_layout(total / counts, layout, x.dtype)


def _checked(rank: int, p: dict[str, Value]) -> dict[str, Value]:
    check_windows(rank, p)
    for letter in DIMENSIONS[rank]:
        if 2 * int(p["pad"]) > int(p[f"k{letter}"]):  # type: ignore[arg-type]
            raise UserError(f"pad={p['pad']} must be at most half of k{letter}={p[f'k{letter}']}, so that no window has only padding")
    return p


def _arguments(rank: int, p: dict[str, int]) -> tuple[tuple[int, ...], int, int]:
    return tuple([p[f"k{c}"] for c in DIMENSIONS[rank]]), p["stride"], p["pad"]


def _tensors(rank: int, *, n: int, c: int, layout: str, dtype: str, count_include_pad: int | None = None, **p: int) -> list[Tensor]:
    extents = [p[letter] for letter in DIMENSIONS[rank]]
    x = te.placeholder((n, *extents, c) if layout.endswith("C") else (n, c, *extents), dtype, "X")
    kernel, stride, pad = _arguments(rank, p)
    if count_include_pad is None:
        return [x, max_pool(x, kernel, stride, pad, layout=layout)]
    return [x, avg_pool(x, kernel, stride, pad, layout=layout, count_include_pad=bool(count_include_pad))]


def _reference(
    rank: int, x: np.ndarray, /, *, n: int, c: int, layout: str, dtype: str, count_include_pad: int | None = None, **p: int
) -> list[np.ndarray]:
    window = (*_arguments(rank, p), 1, False, layout)
    return [max_pool_reference(x, *window) if count_include_pad is None else avg_pool_reference(x, *window, bool(count_include_pad))]


def _flops(rank: int, *, n: int, c: int, stride: int, pad: int, **p: int) -> int:
    """One operation for each element of each window, including those in the padding."""
    return n * c * prod([p[f"k{d}"] * windows(p[d] + 2 * pad, p[f"k{d}"], stride, 1) for d in DIMENSIONS[rank]])


def _operator(name: str, rank: int) -> Operator:
    parameters = (
        *image_parameters(rank, "c"),
        IntParameter("stride", 1),
        IntParameter("pad", 0, 0),
        *([flag("count_include_pad")] if name == "avg" else []),
        WordParameter("layout", LAYOUTS[rank][0], LAYOUTS[rank]),
        FLOATS,
    )
    return Operator(
        f"{name}_pool{rank}d",
        parameters,
        partial(_tensors, rank),
        partial(_reference, rank),
        partial(_flops, rank),
        settle=partial(_checked, rank),
    )


MAX_POOL1D, MAX_POOL2D, MAX_POOL3D = [_operator("max", rank) for rank in (1, 2, 3)]
AVG_POOL1D, AVG_POOL2D, AVG_POOL3D = [_operator("avg", rank) for rank in (1, 2, 3)]
