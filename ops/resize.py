"""Define the resizing of NCHW images: to the nearest pixel, or by linear interpolation in both directions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import ZERO, Index, Poly, ceildiv, maximum, minimum, mod, poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.convolution import IMAGE_LOOPS
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter, WordParameter
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError

MODES = ("nearest", "linear")
COORDINATES = ("half_pixel", "asymmetric", "align_corners")
"""How pixels of the two images correspond, as in ONNX Resize.  torch: half_pixel for bilinear, asymmetric for nearest."""


def _position(i: Poly, old: Poly, new: Poly, coordinates: str) -> tuple[Poly, Poly]:
    """The coordinate of pixel i of the resized image in the old image, as integers (numerator, denominator)."""
    if coordinates == "half_pixel":
        return (i * 2 + 1) * old - new, new * 2
    if coordinates == "asymmetric":
        return i * old, new
    return (i * (old - 1), new - 1) if new != 1 else (ZERO, poly(1))


def _nearest(i: Poly, old: Poly, new: Poly, coordinates: str) -> Poly:
    """The nearest pixel: rounded down for `asymmetric`, as in torch; else rounded to nearest, a half down, as in ONNX."""
    top, bottom = _position(i, old, new, coordinates)
    at = top // bottom if coordinates == "asymmetric" else ceildiv(top * 2 - bottom, bottom * 2)
    return minimum(maximum(at, ZERO), old - 1)


def resize(x: Tensor, size: Sequence[Index], mode: str = "nearest", coordinates: str = "half_pixel") -> Tensor:
    """One stage: an NCHW image of `size`, (height, width); positions are exact fractions of integers.

    Raises:
        ScriptError: `x` is not an image, a mode is unknown, or integers are to be interpolated.
    """
    if len(x.shape) != 4:
        raise ScriptError(f"an image must have 4 dimensions, NCHW; got {x!r}")
    n, c, height, width = x.shape
    if mode not in MODES or coordinates not in COORDINATES:
        raise ScriptError(f"unknown mode {mode!r}, {coordinates!r}; modes are {', '.join(MODES)} and {', '.join(COORDINATES)}")
    if len(size) != 2:
        raise ScriptError(f"size must be (height, width), got {size}")
    if mode == "linear" and not dt.is_float(x.dtype):
        raise ScriptError(f"only floats can be interpolated, got {x!r}")
    rows, columns = poly(size[0]), poly(size[1])

    def ends(i: Poly, old: Poly, new: Poly) -> tuple[tuple[Poly, Expr], tuple[Poly, Expr]]:
        """The two neighbours of pixel i in the old image, with their weights."""
        top, bottom = _position(i, old, new, coordinates)
        low = top // bottom
        part = te.cast(x.dtype, mod(top, bottom)) / te.cast(x.dtype, bottom)
        return (maximum(low, ZERO), 1.0 - part), (minimum(low + 1, old - 1), part)

    def interpolated(b: Poly, k: Poly, h: Poly, w: Poly) -> Expr:
        (up, weight_up), (down, weight_down) = ends(h, height, rows)
        (left, weight_left), (right, weight_right) = ends(w, width, columns)
        upper = x[b, k, up, left] * weight_left + x[b, k, up, right] * weight_right
        lower = x[b, k, down, left] * weight_left + x[b, k, down, right] * weight_right
        return upper * weight_up + lower * weight_down

    def picked(b: Poly, k: Poly, h: Poly, w: Poly) -> Expr:
        return x[b, k, _nearest(h, height, rows, coordinates), _nearest(w, width, columns, coordinates)]

    return te.compute((n, c, rows, columns), interpolated if mode == "linear" else picked, "resize2d", axes=IMAGE_LOOPS["NCHW"])


def resize_reference(x: np.ndarray, size: Sequence[int], mode: str = "nearest", coordinates: str = "half_pixel") -> np.ndarray:
    """Resizing in numpy, one direction after the other; floats are interpolated in float64 and rounded once."""

    def positions(old: int, new: int) -> tuple[np.ndarray, np.ndarray]:
        """The same as `_position`."""
        i = np.arange(new)
        if coordinates == "half_pixel":
            return (2 * i + 1) * old - new, np.full(new, 2 * new)
        return (i * old, np.full(new, new)) if coordinates == "asymmetric" else (i * (old - 1), np.full(new, max(new - 1, 1)))

    def resized(image: np.ndarray, axis: int, new: int) -> np.ndarray:
        old = image.shape[axis]
        top, bottom = positions(old, new)
        if mode == "nearest":
            at = top // bottom if coordinates == "asymmetric" else -((bottom - 2 * top) // (2 * bottom))
            return np.take(image, np.clip(at, 0, old - 1), axis)
        low, part = top // bottom, np.expand_dims((top % bottom) / bottom, [d for d in range(4) if d != axis])
        return np.take(image, np.clip(low, 0, old - 1), axis) * (1 - part) + np.take(image, np.clip(low + 1, 0, old - 1), axis) * part

    wide = x.astype(np.float64) if mode == "linear" else x
    return resized(resized(wide, 2, size[0]), 3, size[1]).astype(x.dtype)


def _tensors(*, n: int, h: int, w: int, c: int, oh: int, ow: int, mode: str, coordinates: str, dtype: str) -> list[Tensor]:
    x = te.placeholder((n, c, h, w), dtype, "X")
    return [x, resize(x, (oh, ow), mode, coordinates)]


def _reference(x: np.ndarray, /, *, oh: int, ow: int, mode: str, coordinates: str, **_: object) -> list[np.ndarray]:
    return [resize_reference(x, (oh, ow), mode, coordinates)]


def _flops(*, n: int, c: int, oh: int, ow: int, mode: str, **_: object) -> int:
    """Three interpolations of two products and a sum each; 0 for the nearest pixel, which is a copy."""
    return 9 * n * c * oh * ow if mode == "linear" else 0


RESIZE2D = Operator(
    "resize2d",
    (
        *[IntParameter(name) for name in ("n", "h", "w", "c", "oh", "ow")],
        WordParameter("mode", "nearest", MODES),
        WordParameter("coordinates", "half_pixel", COORDINATES),
        FLOATS,
    ),
    _tensors,
    _reference,
    _flops,
)
