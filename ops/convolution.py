"""Define convolutions over one to three dimensions: channels last or first, strided, dilated, grouped and depthwise, with an epilogue.

Padding is a separate stage, `Pad`, which reads X where it is in range and is 0 elsewhere.  Schedules copy it, compute it at a tile, or
inline it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from numbers import Integral
from typing import TypeVar

import numpy as np

from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.contraction_types import CONTRACTION_TYPES, in_type, product, result_type, rounded, settle_types, types_of
from tunesmith.ops.epilogue import activate, bias_add, residual_add
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import IntParameter, Value, WordParameter, flag
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError, UserError

LAYOUTS = {1: ("NWC", "NCW"), 2: ("NHWC", "NCHW"), 3: ("NDHWC", "NCDHW")}
"""The layouts of images of one to three dimensions: channels last, and channels first."""

IMAGE_LOOPS = {layout: tuple(layout.lower()) for both in LAYOUTS.values() for layout in both}
"""The loops over an image in each layout."""

DIMENSIONS = {1: "w", 2: "hw", 3: "dhw"}
"""The letters of the dimensions of an image, which are also names of parameters."""

E = TypeVar("E", int, Poly)

Numbers = int | Sequence[int]
"""One number for all dimensions, or one for each."""

Sides = int | Sequence[int]
"""One number for all sides, or those of the low sides and then of the high sides: (top, left, bottom, right)."""


def windows(extent: E, kernel: E, stride: int, dilation: int) -> E:
    """The number of windows of `kernel` taps along a dimension of a padded image."""
    return (extent - dilation * (kernel - 1) - 1) // stride + 1


def numbers(value: Numbers, rank: int) -> tuple[int, ...]:
    """One number for each of `rank` dimensions."""
    return (int(value),) * rank if isinstance(value, Integral) else tuple(value)  # type: ignore[arg-type]


def sides(pad: Sides, rank: int) -> list[tuple[int, int]]:
    """The numbers of elements on the low and on the high side of each dimension."""
    flat = numbers(pad, 2 * rank)
    return list(zip(flat[:rank], flat[rank:], strict=True))


def extents_of(shape: Sequence[E], layout: str) -> tuple[E, ...]:
    """The extents of the dimensions of an image, without batch and channels."""
    return tuple(shape[1:-1] if layout.endswith("C") else shape[2:])


def pad_with_zeros(x: Tensor, edges: Mapping[int, tuple[int, int]], loops: Sequence[str], value: float = 0) -> Tensor:
    """The stage Pad: `x` with zeros, or another value, before and after some dimensions; `x` itself if there are none."""
    if not any(low or high for low, high in edges.values()):
        return x

    def element(*index: Poly) -> Expr:
        inside = [c for d, (low, high) in edges.items() for c in _within(index[d], low, high, x.shape[d])]
        at = [i - edges[d][0] if d in edges else i for d, i in enumerate(index)]
        return te.if_then_else(te.all(*inside), x[tuple(at)], value)

    return te.compute([e + sum(edges.get(d, ())) for d, e in enumerate(x.shape)], element, "Pad", axes=loops)


def _within(i: Poly, low: int, high: int, extent: Poly) -> list[Expr]:
    """Conditions under which index `i` of a padded dimension is in the image; an end without padding needs none."""
    return [*([i >= low] if low else []), *([i < extent + low] if high else [])]


def convolution(
    x: Tensor,
    w: Tensor,
    stride: Numbers = 1,
    pad: Sides = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    layout: str = "NHWC",
    image_layout: str | None = None,
    out_dtype: str = "",
    padding_value: float = 0,
) -> Tensor:
    """A convolution (cross-correlation, as usual in deep learning): the stage C, after a stage Pad if there is padding.

    Its loops are those of `layout`, then the reduction axes; in two dimensions n, h, w, c and rh, rw, rc (NCHW: rc, rh, rw).

    Args:
        x: X[n, h, w, ci], or X[n, ci, h, w] for NCHW.
        w: W[kh, kw, ci / groups, co], or W[co, ci / groups, kh, kw] for NCHW.  A filter without the channels of X, W[kh, kw, c] or
            W[c, kh, kw], is depthwise: one for each channel, without a reduction over channels; `groups` is ignored.
        stride: distance of output elements in the input, in all directions or in each.
        pad: zeros on each side, or on the low sides and then the high sides: (top, left, bottom, right).
        dilation: distance of taps in the input, in all directions or in each.
        groups: an output channel reads only the input channels of its group.  With as many groups as channels of X and of the
            result, the convolution is depthwise too, and W has an extent of 1.
        layout: layout of W and the result, one of `LAYOUTS`; its length gives the number of dimensions.
        image_layout: layout of X, if it is different.
        out_dtype: type of the result, to which the sums are rounded; default: the type of `x`.
        padding_value: value of the padding: the zero point of a quantised image.
    Raises:
        ScriptError: the shapes do not fit together.
    """
    rank, last, image_layout = len(layout) - 2, layout.endswith("C"), image_layout or layout
    if len(x.shape) != rank + 2 or len(w.shape) not in (rank + 1, rank + 2):
        raise ScriptError(f"conv{rank}d: X has {rank + 2} dimensions and W {rank + 2} ({rank + 1} for depthwise), got {x!r} and {w!r}")
    image_last, loops = image_layout.endswith("C"), IMAGE_LOOPS[image_layout]
    n, ci = x.shape[0], x.shape[-1 if image_last else 1]
    kernel, co = (w.shape[:rank], w.shape[-1]) if last else (w.shape[-rank:], w.shape[0])
    flat = len(w.shape) == rank + 1
    if (ci != co) if flat else w.shape[rank if last else 1] * groups != ci or co != co // groups * groups:
        raise ScriptError(f"conv{rank}d: the channels of {x!r} and {w!r} do not fit together with {groups} groups")
    strides, dilations, edges = numbers(stride, rank), numbers(dilation, rank), sides(pad, rank)
    padded = pad_with_zeros(x, {d + (1 if image_last else 2): edge for d, edge in enumerate(edges)}, loops, padding_value)
    out = [windows(e, k, s, d) for e, k, s, d in zip(extents_of(padded.shape, image_layout), kernel, strides, dilations, strict=True)]
    taps = [te.reduce_axis(k, f"r{letter}") for k, letter in zip(kernel, DIMENSIONS[rank], strict=True)]

    def tap(b: Poly, at: Sequence[Poly], channel: Poly) -> Expr:
        there = [i * s + r * d for i, s, r, d in zip(at, strides, taps, dilations, strict=True)]
        return padded[(b, *there, channel)] if image_last else padded[(b, channel, *there)]

    def direct(b: Poly, at: Sequence[Poly], c: Poly) -> Expr:
        rc = te.reduce_axis(w.shape[rank if last else 1], "rc")
        channel = rc if groups == 1 else c // (co // groups) * (ci // groups) + rc
        if last:
            return te.sum(product(tap(b, at, channel), w[(*taps, rc, c)]), axis=[*taps, rc])
        return te.sum(product(tap(b, at, channel), w[(c, rc, *taps)]), axis=[rc, *taps])

    def filtered(b: Poly, at: Sequence[Poly], c: Poly) -> Expr:
        only = () if flat else (0,)
        return te.sum(product(tap(b, at, c), w[(*taps, *only, c)] if last else w[(c, *only, *taps)]), axis=taps)

    element = filtered if flat or (groups > 1 and ci == groups and co == groups) else direct
    if last:
        sums = te.compute((n, *out, co), lambda b, *i: element(b, i[:-1], i[-1]), "C", axes=IMAGE_LOOPS[layout])
    else:
        sums = te.compute((n, co, *out), lambda b, c, *i: element(b, i, c), "C", axes=IMAGE_LOOPS[layout])
    return rounded(sums, result_type(x.dtype, out_dtype))


def check_windows(rank: int, p: Mapping[str, Value], dilation: int = 1) -> None:
    """Raise UserError if the windows of a workload are larger than the padded image."""
    for letter in DIMENSIONS[rank]:
        extent, reach = int(p[letter]) + 2 * int(p["pad"]), dilation * (int(p[f"k{letter}"]) - 1) + 1  # type: ignore[arg-type]
        if extent < reach:
            raise UserError(f"the kernel does not fit: k{letter} covers {reach} pixels, and {letter} with padding has {extent}")


def _checked(rank: int, p: dict[str, Value]) -> dict[str, Value]:
    ci, co, groups, dilation = [int(p[key]) for key in ("ci", "co", "groups", "dilation")]  # type: ignore[arg-type]
    if ci % groups or co % groups:
        raise UserError(f"groups={groups} must divide ci={ci} and co={co}")
    check_windows(rank, p, dilation)
    return settle_types(p)


def _tensors(
    rank: int,
    *,
    n: int,
    ci: int,
    co: int,
    stride: int,
    pad: int,
    dilation: int,
    groups: int,
    layout: str,
    bias: int,
    relu: int,
    residual: int,
    dtype: str,
    rhs_dtype: str,
    out_dtype: str,
    **sizes: int,
) -> list[Tensor]:
    last, t = layout.endswith("C"), types_of(dtype, rhs_dtype, out_dtype)
    extents, kernel = [sizes[c] for c in DIMENSIONS[rank]], [sizes[f"k{c}"] for c in DIMENSIONS[rank]]
    inner = () if groups > 1 and groups == ci == co else (ci // groups,)
    x = te.placeholder((n, *extents, ci) if last else (n, ci, *extents), t.lhs, "X")
    weight = te.placeholder((*kernel, *inner, co) if last else (co, *inner, *kernel), t.rhs, "W")
    inputs, out = [x, weight], convolution(x, weight, stride, pad, dilation, groups, layout, out_dtype=t.sums)
    if bias:
        inputs.append(te.placeholder((co,), t.sums, "bias"))
        out = bias_add(out, inputs[-1], -1 if last else 1)
    if residual:
        inputs.append(te.placeholder(out.shape, t.sums, "residual"))
        out = residual_add(out, inputs[-1])
    return [*inputs, rounded(activate(out, "relu" if relu else "none"), t.out)]


def channels_last(x: np.ndarray, layout: str) -> np.ndarray:
    """An array in `layout` with its channels moved to the end."""
    return x if layout.endswith("C") else np.moveaxis(x, 1, -1)


def in_layout(x: np.ndarray, layout: str, dtype: np.dtype) -> np.ndarray:
    """An array with channels last, in `layout` and of the type."""
    return np.ascontiguousarray((x if layout.endswith("C") else np.moveaxis(x, -1, 1)).astype(dtype))


def convolved(
    x: np.ndarray,
    w: np.ndarray,
    stride: Numbers = 1,
    pad: Sides = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    layout: str = "NHWC",
    padding_value: float = 0,
) -> np.ndarray:
    """The convolution in numpy, in float64 and with channels last; arguments are those of `convolution`.

    It is computed tap by tap: a shifted view of the padded image times a matrix for each group.
    """
    rank, last = len(layout) - 2, layout.endswith("C")
    strides, dilations = numbers(stride, rank), numbers(dilation, rank)
    filters = np.expand_dims(w, rank if last else 1) if w.ndim == rank + 1 else w
    filters = (filters if last else np.moveaxis(filters, (0, 1), (-1, -2))).astype(np.float64)
    image = np.pad(channels_last(x, layout).astype(np.float64), ((0, 0), *sides(pad, rank), (0, 0)), constant_values=padding_value)
    (*kernel, inner, co), (n, *extents, _ci) = filters.shape, image.shape
    groups = groups if w.ndim == rank + 2 else co
    out = [windows(e, k, s, d) for e, k, s, d in zip(extents, kernel, strides, dilations, strict=True)]
    filters = filters.reshape(*kernel, inner, groups, co // groups).swapaxes(-3, -2)
    total = np.zeros((groups, n * prod(out), co // groups))
    for tap in np.ndindex(*kernel):
        cut = [slice(i * d, i * d + (o - 1) * s + 1, s) for i, o, s, d in zip(tap, out, strides, dilations, strict=True)]
        total += image[(slice(None), *cut)].reshape(n * prod(out), groups, inner).swapaxes(0, 1) @ filters[tap]
    return total.swapaxes(0, 1).reshape(n, *out, co)


def convolved_as(
    x: np.ndarray,
    w: np.ndarray,
    stride: Numbers,
    pad: Sides,
    dilation: Numbers,
    groups: int,
    layout: str,
    out_dtype: str = "",
    padding_value: float = 0,
) -> np.ndarray:
    """The convolution in numpy, in `layout` and in the type of the result, by default that of `x`."""
    out = convolved(x, w, stride, pad, dilation, groups, layout, padding_value)
    return in_type(in_layout(out, layout, out.dtype), out_dtype or dt.from_numpy(x.dtype))


def _reference(
    x: np.ndarray,
    w: np.ndarray,
    /,
    *more: np.ndarray,
    stride: int,
    pad: int,
    dilation: int,
    groups: int,
    layout: str,
    bias: int,
    relu: int,
    residual: int,
    dtype: str,
    rhs_dtype: str,
    out_dtype: str,
    **_: object,
) -> list[np.ndarray]:
    rest = list(more)
    out = convolved(x, w, stride, pad, dilation, groups, layout)
    if bias:
        out += rest.pop(0)
    if residual:
        out += channels_last(rest[0], layout)
    if relu:
        out = np.maximum(out, 0)
    return [in_type(in_layout(out, layout, out.dtype), types_of(dtype, rhs_dtype, out_dtype).out)]


def _flops(rank: int, *, n: int, ci: int, co: int, stride: int, pad: int, dilation: int, groups: int, **p: int) -> int:
    sizes = [(p[c] + 2 * pad, p[f"k{c}"]) for c in DIMENSIONS[rank]]
    return 2 * n * co * (ci // groups) * prod([k * windows(extent, k, stride, dilation) for extent, k in sizes])


def image_parameters(rank: int, *channels: str) -> list[IntParameter]:
    """Batch, extents, channels and extents of the window."""
    letters = DIMENSIONS[rank]
    return [IntParameter(name) for name in ("n", *letters, *channels, *[f"k{c}" for c in letters])]


def _operator(rank: int) -> Operator:
    parameters = (
        *image_parameters(rank, "ci", "co"),
        IntParameter("stride", 1),
        IntParameter("pad", 0, 0),
        IntParameter("dilation", 1),
        IntParameter("groups", 1),
        WordParameter("layout", LAYOUTS[rank][0], LAYOUTS[rank]),
        flag("bias"),
        flag("relu"),
        flag("residual"),
        *CONTRACTION_TYPES,
    )
    return Operator(
        f"conv{rank}d",
        parameters,
        partial(_tensors, rank),
        _reference,
        partial(_flops, rank),
        constants=("W", "bias"),
        settle=partial(_checked, rank),
    )


CONV1D, CONV2D, CONV3D = [_operator(rank) for rank in (1, 2, 3)]
