"""Define transposed convolutions over one to three dimensions: the gradient of a convolution with respect to its image."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np

from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly, ceildiv, minimum, mod
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.convolution import (
    DIMENSIONS,
    IMAGE_LOOPS,
    LAYOUTS,
    Numbers,
    Sides,
    channels_last,
    extents_of,
    image_parameters,
    in_layout,
    numbers,
    sides,
)
from tunesmith.ops.epilogue import activate, bias_add
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter, Value, WordParameter, flag
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError, UserError


class _Taps(NamedTuple):
    """The products summed in one row of the result: the reduction axis, filter and image row of each, and conditions that both exist."""

    axis: Poly
    tap: Poly
    pixel: Poly
    exist: list[Expr]


def _taps(i: Poly, extent: Poly, kernel: Poly, stride: int, dilation: int, low: int, name: str) -> _Taps:
    """The products summed in row i.

    Filter row k and image row p contribute to i = p * stride + k * dilation - low.  Without dilation only every stride-th filter row
    contributes, starting at (i + low) % stride, so zeros are multiplied only at the edges.
    """
    moved = i + low
    if dilation == 1:
        r = te.reduce_axis(ceildiv(kernel, stride), name)
        k, p = mod(moved, stride) + r * stride, moved // stride - r
        exists = [] if mod(kernel, stride) == 0 else [k < kernel]
    else:
        r = te.reduce_axis(kernel, name)
        k, p = r, (moved - r * dilation) // stride
        exists = [mod(moved - r * dilation, stride) < 1] if stride > 1 else []
    return _Taps(r, minimum(k, kernel - 1) if exists and dilation == 1 else k, p, [*exists, p >= 0, p < extent])


def transposed_convolution(
    x: Tensor,
    w: Tensor,
    stride: Numbers = 1,
    pad: Sides = 0,
    output_pad: Numbers = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    layout: str = "NHWC",
) -> Tensor:
    """The stage C, with the loops of `layout` and the reduction axes of a convolution.

    Args:
        x: X[n, h, w, ci], or X[n, ci, h, w] for NCHW.
        w: W[kh, kw, co / groups, ci], or W[ci, co / groups, kh, kw] for NCHW.
        stride: distance of input elements in the result, in all directions or in each.
        pad: elements removed from each side of the result, or from the low sides and then the high sides.
        output_pad: elements added to the high sides of the result.
        dilation: distance of taps in the result.
        groups: an output channel reads only the input channels of its group.
        layout: one of `LAYOUTS`; its length gives the number of dimensions.
    Raises:
        ScriptError: the shapes do not fit together.
    """
    rank, last = len(layout) - 2, layout.endswith("C")
    if len(x.shape) != rank + 2 or len(w.shape) != rank + 2 or x.dtype != w.dtype:
        raise ScriptError(f"image and filter must have {rank + 2} dimensions and one element type")
    strides, dilations, added, edges = numbers(stride, rank), numbers(dilation, rank), numbers(output_pad, rank), sides(pad, rank)
    n, ci, extents = x.shape[0], x.shape[-1 if last else 1], extents_of(x.shape, layout)
    kernel, each, wi = (w.shape[:rank], w.shape[-2], w.shape[-1]) if last else (w.shape[2:], w.shape[1], w.shape[0])
    if ci != wi or mod(ci, groups) != 0:
        raise ScriptError(f"the image has {ci} channels and the filter has {wi}; they must be equal and a multiple of the {groups} groups")
    if min(added) < 0 or any(o >= max(s, d) for o, s, d in zip(added, strides, dilations, strict=True)):
        raise ScriptError(f"output_padding {added} must be less than the strides {strides} or the dilation {dilations}")
    out = [
        (e - 1) * s - (low + high) + (k - 1) * d + 1 + o
        for e, s, (low, high), k, d, o in zip(extents, strides, edges, kernel, dilations, added, strict=True)
    ]

    def element(b: Poly, at: Sequence[Poly], c: Poly) -> Expr:
        found = [
            _taps(i, e, k, s, d, low, f"r{letter}")
            for i, e, k, s, d, (low, _), letter in zip(at, extents, kernel, strides, dilations, edges, DIMENSIONS[rank], strict=True)
        ]
        axes, taps, there = [f.axis for f in found], [f.tap for f in found], [f.pixel for f in found]
        exist = te.all(*[c for f in found for c in f.exist])
        rc = te.reduce_axis(ci // groups, "rc")
        channel, inner = (rc, c) if groups == 1 else (c // each * (ci // groups) + rc, mod(c, each))
        pixel = te.if_then_else(exist, x[(b, *there, channel)] if last else x[(b, channel, *there)], 0.0)
        return te.sum(
            pixel * (w[(*taps, inner, channel)] if last else w[(channel, inner, *taps)]), axis=[*axes, rc] if last else [rc, *axes]
        )

    if last:
        return te.compute((n, *out, each * groups), lambda b, *i: element(b, i[:-1], i[-1]), "C", axes=IMAGE_LOOPS[layout])
    return te.compute((n, each * groups, *out), lambda b, c, *i: element(b, i, c), "C", axes=IMAGE_LOOPS[layout])


def transposed_convolved(
    x: np.ndarray,
    w: np.ndarray,
    stride: Numbers = 1,
    pad: Sides = 0,
    output_pad: Numbers = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    layout: str = "NHWC",
) -> np.ndarray:
    """The transposed convolution in numpy, in float64 and with channels last: every filter tap adds a scaled image to the result."""
    rank, last = len(layout) - 2, layout.endswith("C")
    strides, dilations, added = numbers(stride, rank), numbers(dilation, rank), numbers(output_pad, rank)
    image = channels_last(x, layout).astype(np.float64)
    filters = (w if last else np.moveaxis(w, (0, 1), (-1, -2))).astype(np.float64)
    (n, *extents, ci), (*kernel, each, _) = image.shape, filters.shape
    whole = [(e - 1) * s + (k - 1) * d + 1 + o for e, s, k, d, o in zip(extents, strides, kernel, dilations, added, strict=True)]
    out = np.zeros((n, *whole, groups, each))
    parts, taps = image.reshape(n, *extents, groups, ci // groups), filters.reshape(*kernel, each, groups, ci // groups)
    for tap in np.ndindex(*kernel):
        cut = [slice(i * d, i * d + (e - 1) * s + 1, s) for i, e, s, d in zip(tap, extents, strides, dilations, strict=True)]
        out[(slice(None), *cut)] += np.einsum("n...gi,ogi->n...go", parts, taps[tap])
    kept = [slice(low, e - high) for e, (low, high) in zip(whole, sides(pad, rank), strict=True)]
    return out.reshape(n, *whole, groups * each)[(slice(None), *kept)]


def _checked(rank: int, p: dict[str, Value]) -> dict[str, Value]:
    ci, co, groups, stride, pad, added, dilation = [
        int(p[key])  # type: ignore[arg-type]
        for key in ("ci", "co", "groups", "stride", "pad", "output_pad", "dilation")
    ]
    if ci % groups or co % groups:
        raise UserError(f"groups={groups} must divide ci={ci} and co={co}")
    if added >= max(stride, dilation):
        raise UserError(f"output_pad={added} must be less than stride={stride} or dilation={dilation}")
    for letter in DIMENSIONS[rank]:
        whole = (int(p[letter]) - 1) * stride + (int(p[f"k{letter}"]) - 1) * dilation + 1 + added  # type: ignore[arg-type]
        if whole <= 2 * pad:
            raise UserError(f"nothing remains: the result has {whole} pixels along {letter}, and pad={pad} removes {2 * pad}")
    return p


def _tensors(
    rank: int,
    *,
    n: int,
    ci: int,
    co: int,
    stride: int,
    pad: int,
    output_pad: int,
    dilation: int,
    groups: int,
    layout: str,
    bias: int,
    relu: int,
    dtype: str,
    **sizes: int,
) -> list[Tensor]:
    last = layout.endswith("C")
    extents, kernel = [sizes[c] for c in DIMENSIONS[rank]], [sizes[f"k{c}"] for c in DIMENSIONS[rank]]
    x = te.placeholder((n, *extents, ci) if last else (n, ci, *extents), dtype, "X")
    w = te.placeholder((*kernel, co // groups, ci) if last else (ci, co // groups, *kernel), dtype, "W")
    inputs, out = [x, w], transposed_convolution(x, w, stride, pad, output_pad, dilation, groups, layout)
    if bias:
        inputs.append(te.placeholder((co,), dtype, "bias"))
        out = bias_add(out, inputs[-1], -1 if last else 1)
    return [*inputs, activate(out, "relu" if relu else "none")]


def _reference(
    x: np.ndarray,
    w: np.ndarray,
    /,
    *more: np.ndarray,
    stride: int,
    pad: int,
    output_pad: int,
    dilation: int,
    groups: int,
    layout: str,
    bias: int,
    relu: int,
    **_: object,
) -> list[np.ndarray]:
    out = transposed_convolved(x, w, stride, pad, output_pad, dilation, groups, layout)
    if bias:
        out = out + more[0]
    return [in_layout(np.maximum(out, 0) if relu else out, layout, x.dtype)]


def _flops(rank: int, *, n: int, ci: int, co: int, groups: int, **p: int) -> int:
    """Two for each input element and filter tap, as for the convolution of which this is the gradient."""
    return 2 * n * co * (ci // groups) * prod([p[c] * p[f"k{c}"] for c in DIMENSIONS[rank]])


def _operator(rank: int) -> Operator:
    parameters = (
        *image_parameters(rank, "ci", "co"),
        IntParameter("stride", 1),
        IntParameter("pad", 0, 0),
        IntParameter("output_pad", 0, 0),
        IntParameter("dilation", 1),
        IntParameter("groups", 1),
        WordParameter("layout", LAYOUTS[rank][0], LAYOUTS[rank]),
        flag("bias"),
        flag("relu"),
        FLOATS,
    )
    return Operator(
        f"conv{rank}d_transpose",
        parameters,
        partial(_tensors, rank),
        _reference,
        partial(_flops, rank),
        constants=("W", "bias"),
        settle=partial(_checked, rank),
    )


CONV1D_TRANSPOSE, CONV2D_TRANSPOSE, CONV3D_TRANSPOSE = [_operator(rank) for rank in (1, 2, 3)]
