"""Define a convolution of capsules, which are square matrices in place of the elements (Hinton, Sabour and Frosst, 2018)."""

from __future__ import annotations

import numpy as np

from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.convolution import Numbers, Sides, check_windows, image_parameters, numbers, pad_with_zeros, sides, windows
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter, Value
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError


def capsule_convolution(x: Tensor, w: Tensor, stride: Numbers = 1, pad: Sides = 0) -> Tensor:
    """The stage C[n, h, w, i, j, co], the sum over rh, rw, k, rc of X[n, h + rh, w + rw, i, k, rc] * W[rh, rw, k, j, rc, co].

    Args:
        x: X[n, h, w, i, k, ci]; a stage Pad follows if there is padding.
        w: W[kh, kw, k, j, ci, co].
        stride: distance of output elements in the input, in both directions or (vertical, horizontal).
        pad: zeros on each side, or (top, left, bottom, right).
    Raises:
        ScriptError: the shapes do not fit together.
    """
    if len(x.shape) != 6 or len(w.shape) != 6 or x.shape[4:] != (w.shape[2], w.shape[4]):
        raise ScriptError(f"capsule_conv2d: X[n, h, w, i, k, ci] and W[kh, kw, k, j, ci, co] do not fit together, got {x!r} and {w!r}")
    (sh, sw), edges = numbers(stride, 2), sides(pad, 2)
    padded = pad_with_zeros(x, {1: edges[0], 2: edges[1]}, ("n", "h", "w", "i", "k", "c"))
    kh, kw, inner, columns, ci, co = w.shape
    axes = rh, rw, k, rc = [te.reduce_axis(e, name) for e, name in ((kh, "rh"), (kw, "rw"), (inner, "k"), (ci, "rc"))]

    def element(n: Poly, h: Poly, v: Poly, i: Poly, j: Poly, c: Poly) -> Expr:
        return te.sum(padded[n, h * sh + rh, v * sw + rw, i, k, rc] * w[rh, rw, k, j, rc, c], axis=axes)

    shape = (x.shape[0], windows(padded.shape[1], kh, sh, 1), windows(padded.shape[2], kw, sw, 1), x.shape[3], columns, co)
    return te.compute(shape, element, "C", axes=("n", "h", "w", "i", "j", "c"))


def _checked(p: dict[str, Value]) -> dict[str, Value]:
    check_windows(2, p)
    return p


def _tensors(*, n: int, h: int, w: int, ci: int, co: int, kh: int, kw: int, stride: int, pad: int, size: int, dtype: str) -> list[Tensor]:
    x, weight = te.placeholder((n, h, w, size, size, ci), dtype, "X"), te.placeholder((kh, kw, size, size, ci, co), dtype, "W")
    return [x, weight, capsule_convolution(x, weight, stride, pad)]


def _reference(x: np.ndarray, w: np.ndarray, /, *, stride: int, pad: int, **_: object) -> list[np.ndarray]:
    image = np.pad(x.astype(np.float64), [(pad, pad) if d in (1, 2) else (0, 0) for d in range(6)])
    kh, kw = w.shape[:2]
    oh, ow = [windows(e, k, stride, 1) for e, k in zip(image.shape[1:3], (kh, kw), strict=True)]
    total = np.zeros((x.shape[0], oh, ow, x.shape[3], w.shape[3], w.shape[5]))
    for i, j in np.ndindex(kh, kw):
        view = image[:, i : i + (oh - 1) * stride + 1 : stride, j : j + (ow - 1) * stride + 1 : stride]
        total += np.einsum("nhwikc,kjcd->nhwijd", view, w[i, j].astype(np.float64), optimize=True)
    return [total.astype(x.dtype)]


def _flops(*, n: int, h: int, w: int, ci: int, co: int, kh: int, kw: int, stride: int, pad: int, size: int, **_: object) -> int:
    oh, ow = (windows(extent + 2 * pad, k, stride, 1) for extent, k in ((h, kh), (w, kw)))
    return 2 * n * oh * ow * co * kh * kw * ci * size**3


CAPSULE_CONV2D = Operator(
    "capsule_conv2d",
    (*image_parameters(2, "ci", "co"), IntParameter("stride", 1), IntParameter("pad", 0, 0), IntParameter("size", 4), FLOATS),
    _tensors,
    _reference,
    _flops,
    constants=("W",),
    settle=_checked,
)
