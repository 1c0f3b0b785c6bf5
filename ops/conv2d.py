"""Define two-dimensional convolutions: NHWC and NCHW, strided, dilated, grouped and depthwise, with an epilogue.

Padding is a separate stage, `Pad`, which reads X where it is in range and is 0 elsewhere.  Schedules copy it, compute it at a tile, or
inline it.
"""

from __future__ import annotations

from numbers import Integral
from typing import TypeVar

import numpy as np

from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.epilogue import activate, bias_add, residual_add
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter, Value, WordParameter, flag
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError, UserError

IMAGE_LOOPS = {"NHWC": ("n", "h", "w", "c"), "NCHW": ("n", "c", "h", "w")}
"""The loops over an image in each layout."""

E = TypeVar("E", int, Poly)

Pair = int | tuple[int, int]
"""One number for both height and width, or (height, width)."""

Sides = int | tuple[int, int, int, int]
"""One number for all four sides, or (top, left, bottom, right)."""


def windows(extent: E, kernel: E, stride: int, dilation: int) -> E:
    """The number of windows of `kernel` taps along a dimension of a padded image."""
    return (extent - dilation * (kernel - 1) - 1) // stride + 1


def pad_image(x: Tensor, pad: Sides, layout: str) -> Tensor:
    """The stage Pad: `x` with `pad` rows and columns of zeros on each side, or (top, left, bottom, right) of them."""
    names = IMAGE_LOOPS[layout]
    top, left, bottom, right = _sides(pad)
    edges = {names.index("h"): (top, bottom), names.index("w"): (left, right)}
    shape = [e + sum(edges.get(d, ())) for d, e in enumerate(x.shape)]

    def element(*index: Poly) -> Expr:
        inside = [c for d, (low, high) in edges.items() for c in _within(index[d], low, high, x.shape[d])]
        at = [i - edges[d][0] if d in edges else i for d, i in enumerate(index)]
        return te.if_then_else(te.all(*inside), x[tuple(at)], 0.0)

    return te.compute(shape, element, "Pad", axes=names)


def _within(i: Poly, low: int, high: int, extent: Poly) -> list[Expr]:
    """Conditions under which index `i` of a padded dimension is in the image; an end without padding needs none."""
    return [*([i >= low] if low else []), *([i < extent + low] if high else [])]


def _pair(value: Pair) -> tuple[int, int]:
    return (value, value) if isinstance(value, (int, Integral)) else value


def _sides(pad: Sides) -> tuple[int, int, int, int]:
    return (pad, pad, pad, pad) if isinstance(pad, (int, Integral)) else pad


def conv2d(
    x: Tensor,
    w: Tensor,
    stride: Pair = 1,
    pad: Sides = 0,
    dilation: Pair = 1,
    groups: int = 1,
    layout: str = "NHWC",
    image_layout: str | None = None,
) -> Tensor:
    """A convolution (cross-correlation, as usual in deep learning): the stage C, after a stage Pad if there is padding.

    Its loops are n, h, w, c in the order of `layout`, then the reduction axes rh, rw, rc (NCHW: rc, rh, rw).

    Args:
        x: X[n, h, w, ci], or X[n, ci, h, w] for NCHW.
        w: W[kh, kw, ci / groups, co], or W[co, ci / groups, kh, kw] for NCHW.  A filter of rank 3, W[kh, kw, c] or W[c, kh, kw],
            is depthwise: one for each channel, without a reduction over channels; `groups` is ignored.
        stride: distance of output pixels in the input, in both directions or (vertical, horizontal).
        pad: rows and columns of zeros on each side, or (top, left, bottom, right).
        dilation: distance of taps in the input, in both directions or (vertical, horizontal).
        groups: an output channel reads only the input channels of its group.  With as many groups as channels of X and of the
            result, the convolution is depthwise too, and W has an extent of 1.
        layout: NHWC or NCHW, for W and the result.
        image_layout: layout of X, if it is different.
    Raises:
        ScriptError: the shapes do not fit together.
    """
    nhwc, image_layout = layout == "NHWC", image_layout or layout
    if len(x.shape) != 4 or len(w.shape) not in (3, 4):
        raise ScriptError(f"conv2d: X has 4 dimensions and W 4 (3 for depthwise), got {x!r} and {w!r}")
    n, height, width, ci = x.shape if image_layout == "NHWC" else (x.shape[0], x.shape[2], x.shape[3], x.shape[1])
    kh, kw = w.shape[:2] if nhwc else w.shape[-2:]
    co = w.shape[-1] if nhwc else w.shape[0]
    flat = len(w.shape) == 3
    if (ci != co) if flat else w.shape[2 if nhwc else 1] * groups != ci or co != co // groups * groups:
        raise ScriptError(f"conv2d: the channels of {x!r} and {w!r} do not fit together with {groups} groups")
    (sh, sw), (top, left, bottom, right), (dh, dw) = _pair(stride), _sides(pad), _pair(dilation)
    oh, ow = windows(height + (top + bottom), kh, sh, dh), windows(width + (left + right), kw, sw, dw)
    padded = pad_image(x, pad, image_layout) if top or left or bottom or right else x
    rh, rw = te.reduce_axis(kh, "rh"), te.reduce_axis(kw, "rw")

    def tap(b: Poly, h: Poly, v: Poly, channel: Poly) -> Expr:
        i, j = h * sh + rh * dh, v * sw + rw * dw
        return padded[b, i, j, channel] if image_layout == "NHWC" else padded[b, channel, i, j]

    def direct(b: Poly, h: Poly, v: Poly, c: Poly) -> Expr:
        rc = te.reduce_axis(w.shape[2 if nhwc else 1], "rc")
        channel = rc if groups == 1 else c // (co // groups) * (ci // groups) + rc
        if nhwc:
            return te.sum(tap(b, h, v, channel) * w[rh, rw, rc, c], axis=[rh, rw, rc])
        return te.sum(tap(b, h, v, channel) * w[c, rc, rh, rw], axis=[rc, rh, rw])

    def filtered(b: Poly, h: Poly, v: Poly, c: Poly) -> Expr:
        only = () if flat else (0,)
        return te.sum(tap(b, h, v, c) * (w[(rh, rw, *only, c)] if nhwc else w[(c, *only, rh, rw)]), axis=[rh, rw])

    element = filtered if flat or (groups > 1 and ci == groups and co == groups) else direct
    if nhwc:
        return te.compute((n, oh, ow, co), element, "C", axes=IMAGE_LOOPS[layout])
    return te.compute((n, co, oh, ow), lambda b, c, h, v: element(b, h, v, c), "C", axes=IMAGE_LOOPS[layout])


def _is_depthwise(ci: int, co: int, groups: int) -> bool:
    return groups > 1 and groups == ci == co


def _checked(p: dict[str, Value]) -> dict[str, Value]:
    ci, co, groups, pad, dilation = [int(p[key]) for key in ("ci", "co", "groups", "pad", "dilation")]  # type: ignore[arg-type]
    if ci % groups or co % groups:
        raise UserError(f"groups={groups} must divide ci={ci} and co={co}")
    for size, kernel in (("h", "kh"), ("w", "kw")):
        extent, reach = int(p[size]) + 2 * pad, dilation * (int(p[kernel]) - 1) + 1  # type: ignore[arg-type]
        if extent < reach:
            raise UserError(f"the kernel does not fit: {kernel} covers {reach} pixels, and {size} with padding has {extent}")
    return p


def _tensors(
    *,
    n: int,
    h: int,
    w: int,
    ci: int,
    co: int,
    kh: int,
    kw: int,
    stride: int,
    pad: int,
    dilation: int,
    groups: int,
    layout: str,
    bias: int,
    relu: int,
    residual: int,
    dtype: str,
) -> list[Tensor]:
    nhwc = layout == "NHWC"
    inner = () if _is_depthwise(ci, co, groups) else (ci // groups,)
    x = te.placeholder((n, h, w, ci) if nhwc else (n, ci, h, w), dtype, "X")
    weight = te.placeholder((kh, kw, *inner, co) if nhwc else (co, *inner, kh, kw), dtype, "W")
    inputs, out = [x, weight], conv2d(x, weight, stride, pad, dilation, groups, layout)
    if bias:
        inputs.append(te.placeholder((co,), dtype, "bias"))
        out = bias_add(out, inputs[-1], 3 if nhwc else 1)
    if residual:
        inputs.append(te.placeholder(out.shape, dtype, "residual"))
        out = residual_add(out, inputs[-1])
    return [*inputs, activate(out, "relu" if relu else "none")]


def convolved(
    x: np.ndarray, w: np.ndarray, stride: Pair = 1, pad: Sides = 0, dilation: Pair = 1, groups: int = 1, layout: str = "NHWC"
) -> np.ndarray:
    """The convolution in numpy, in float64 and NHWC; arguments are those of `conv2d`.

    It is computed tap by tap: a shifted view of the padded image times a matrix for each group.
    """
    nhwc, (sh, sw), (top, left, bottom, right), (dh, dw) = layout == "NHWC", _pair(stride), _sides(pad), _pair(dilation)
    filters = np.expand_dims(w, 2 if nhwc else 1) if w.ndim == 3 else w
    filters = (filters if nhwc else filters.transpose(2, 3, 1, 0)).astype(np.float64)
    image = np.pad((x if nhwc else x.transpose(0, 2, 3, 1)).astype(np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    (kh, kw, inner, co), (n, height, width, _ci) = filters.shape, image.shape
    groups = groups if w.ndim == 4 else co
    oh, ow = windows(height, kh, sh, dh), windows(width, kw, sw, dw)
    filters = filters.reshape(kh, kw, inner, groups, co // groups).transpose(0, 1, 3, 2, 4)
    total = np.zeros((groups, n * oh * ow, co // groups))
    for i, j in np.ndindex(kh, kw):
        view = image[:, i * dh : i * dh + (oh - 1) * sh + 1 : sh, j * dw : j * dw + (ow - 1) * sw + 1 : sw]
        total += view.reshape(n * oh * ow, groups, inner).swapaxes(0, 1) @ filters[i, j]
    return total.swapaxes(0, 1).reshape(n, oh, ow, co)


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
    **_: object,
) -> list[np.ndarray]:
    nhwc, rest = layout == "NHWC", list(more)
    out = convolved(x, w, stride, pad, dilation, groups, layout)
    if bias:
        out += rest.pop(0)
    if residual:
        out += rest[0] if nhwc else rest[0].transpose(0, 2, 3, 1)
    if relu:
        out = np.maximum(out, 0)
    return [np.ascontiguousarray((out if nhwc else out.transpose(0, 3, 1, 2)).astype(x.dtype))]


def _flops(
    *,
    n: int,
    h: int,
    w: int,
    ci: int,
    co: int,
    kh: int,
    kw: int,
    stride: int,
    pad: int,
    dilation: int,
    groups: int,
    **_: object,
) -> int:
    oh, ow = (windows(size + 2 * pad, k, stride, dilation) for size, k in ((h, kh), (w, kw)))
    return 2 * n * oh * ow * co * kh * kw * (ci // groups)


CONV2D = Operator(
    "conv2d",
    (
        *[IntParameter(name) for name in ("n", "h", "w", "ci", "co", "kh", "kw")],
        IntParameter("stride", 1),
        IntParameter("pad", 0, 0),
        IntParameter("dilation", 1),
        IntParameter("groups", 1),
        WordParameter("layout", "NHWC", ("NHWC", "NCHW")),
        flag("bias"),
        flag("relu"),
        flag("residual"),
        FLOATS,
    ),
    _tensors,
    _reference,
    _flops,
    constants=("W", "bias"),
    settle=_checked,
)
