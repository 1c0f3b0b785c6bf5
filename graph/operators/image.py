"""Define operators that rearrange or resample NCHW images: depth_to_space, space_to_depth, resize2d."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.graph.ir.operator import INJECTIVE, GraphOperator
from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import ZERO, Index, Poly, ceildiv, maximum, minimum, mod, poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError

_LOOPS = ("n", "c", "h", "w")
BLOCK_MODES = ("DCR", "CRD")
"""Channel order of the smaller image: the slower index is the position in the block (DCR) or the channel (CRD)."""


def _image(x: Tensor) -> tuple[Poly, Poly, Poly, Poly]:
    if len(x.shape) != 4:
        raise ScriptError(f"an image must have 4 dimensions, NCHW; got {x!r}")
    return x.shape[0], x.shape[1], x.shape[2], x.shape[3]


def _check_block(x: Tensor, block: int, mode: str, divided: Sequence[Poly], by: int) -> None:
    if mode not in BLOCK_MODES:
        raise ScriptError(f"unknown mode {mode!r}; modes are {', '.join(BLOCK_MODES)}")
    if block < 1 or any(mod(e, by) != 0 for e in divided):
        raise ScriptError(
            f"{x!r} cannot be divided into blocks of {block} x {block}: {', '.join(map(repr, divided))} must be multiples of {by}"
        )


def _depth_to_space(x: Tensor, *, block: int, mode: str = "DCR") -> Tensor:
    n, c, height, width = _image(x)
    _check_block(x, block, mode, [c], block * block)
    fewer = c // (block * block)

    def element(b: Poly, k: Poly, h: Poly, w: Poly) -> Expr:
        offset = mod(h, block) * block + mod(w, block)
        return x[b, offset * fewer + k if mode == "DCR" else k * (block * block) + offset, h // block, w // block]

    return te.compute((n, fewer, height * block, width * block), element, "depth_to_space", axes=_LOOPS)


def _depth_to_space_reference(x: np.ndarray, *, block: int, mode: str = "DCR") -> np.ndarray:
    n, c, h, w = x.shape
    fewer = c // block**2
    if mode == "DCR":
        cut = x.reshape(n, block, block, fewer, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        cut = x.reshape(n, fewer, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return cut.reshape(n, fewer, h * block, w * block)


DEPTH_TO_SPACE = GraphOperator(
    "depth_to_space",
    INJECTIVE,
    _depth_to_space,
    _depth_to_space_reference,
    meaning="Move block * block channels to block x block pixels; ONNX DepthToSpace, torch.pixel_shuffle for the mode CRD.",
)


def _space_to_depth(x: Tensor, *, block: int, mode: str = "DCR") -> Tensor:
    n, c, height, width = _image(x)
    _check_block(x, block, mode, [height, width], block)

    def element(b: Poly, k: Poly, h: Poly, w: Poly) -> Expr:
        offset, channel = (k // c, mod(k, c)) if mode == "DCR" else (mod(k, block * block), k // (block * block))
        return x[b, channel, h * block + offset // block, w * block + mod(offset, block)]

    return te.compute((n, c * (block * block), height // block, width // block), element, "space_to_depth", axes=_LOOPS)


def _space_to_depth_reference(x: np.ndarray, *, block: int, mode: str = "DCR") -> np.ndarray:
    n, c, h, w = x.shape
    cut = x.reshape(n, c, h // block, block, w // block, block)
    cut = cut.transpose(0, 3, 5, 1, 2, 4) if mode == "DCR" else cut.transpose(0, 1, 3, 5, 2, 4)
    return cut.reshape(n, c * block**2, h // block, w // block)


SPACE_TO_DEPTH = GraphOperator(
    "space_to_depth", INJECTIVE, _space_to_depth, _space_to_depth_reference, meaning="The inverse of depth_to_space."
)

RESIZE_MODES = ("nearest", "linear")
COORDINATE_MODES = ("half_pixel", "asymmetric", "align_corners")


def _position(i: Poly, old: Poly, new: Poly, mode: str) -> tuple[Poly, Poly]:
    """The coordinate of pixel i of the resized image in the old image, as integers (numerator, denominator)."""
    if mode == "half_pixel":
        return (i * 2 + 1) * old - new, new * 2
    if mode == "asymmetric":
        return i * old, new
    return (i * (old - 1), new - 1) if new != 1 else (ZERO, poly(1))


def _nearest(i: Poly, old: Poly, new: Poly, mode: str) -> Poly:
    """The nearest pixel: rounded down for `asymmetric`, as in torch; else rounded to nearest, a half down, as in ONNX."""
    top, bottom = _position(i, old, new, mode)
    at = top // bottom if mode == "asymmetric" else ceildiv(top * 2 - bottom, bottom * 2)
    return minimum(maximum(at, ZERO), old - 1)


def _resize2d(x: Tensor, *, size: Sequence[Index], mode: str = "nearest", coordinate_mode: str = "half_pixel") -> Tensor:
    n, c, height, width = _image(x)
    if mode not in RESIZE_MODES or coordinate_mode not in COORDINATE_MODES:
        raise ScriptError(
            f"unknown mode {mode!r}, {coordinate_mode!r}; modes are {', '.join(RESIZE_MODES)} and {', '.join(COORDINATE_MODES)}"
        )
    if len(size) != 2:
        raise ScriptError(f"size must be (height, width), got {size}")
    if mode == "linear" and not dt.is_float(x.dtype):
        raise ScriptError(f"only floats can be interpolated, got {x!r}")
    rows, columns = poly(size[0]), poly(size[1])

    def ends(i: Poly, old: Poly, new: Poly) -> tuple[tuple[Poly, Expr], tuple[Poly, Expr]]:
        """The two neighbours of pixel i in the old image, with their weights."""
        top, bottom = _position(i, old, new, coordinate_mode)
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
        return x[b, k, _nearest(h, height, rows, coordinate_mode), _nearest(w, width, columns, coordinate_mode)]

    return te.compute((n, c, rows, columns), interpolated if mode == "linear" else picked, "resize2d", axes=_LOOPS)


def _resize2d_reference(x: np.ndarray, *, size: Sequence[int], mode: str = "nearest", coordinate_mode: str = "half_pixel") -> np.ndarray:
    def positions(old: int, new: int) -> tuple[np.ndarray, np.ndarray]:
        """The same as `_position`."""
        i = np.arange(new)
        if coordinate_mode == "half_pixel":
            return (2 * i + 1) * old - new, np.full(new, 2 * new)
        return (i * old, np.full(new, new)) if coordinate_mode == "asymmetric" else (i * (old - 1), np.full(new, max(new - 1, 1)))

    def resized(image: np.ndarray, axis: int, new: int) -> np.ndarray:
        old = image.shape[axis]
        top, bottom = positions(old, new)
        if mode == "nearest":
            at = top // bottom if coordinate_mode == "asymmetric" else -((bottom - 2 * top) // (2 * bottom))
            return np.take(image, np.clip(at, 0, old - 1), axis)
        low, part = top // bottom, np.expand_dims((top % bottom) / bottom, [d for d in range(4) if d != axis])
        return np.take(image, np.clip(low, 0, old - 1), axis) * (1 - part) + np.take(image, np.clip(low + 1, 0, old - 1), axis) * part

    wide = x.astype(np.float64) if mode == "linear" else x
    return resized(resized(wide, 2, size[0]), 3, size[1]).astype(x.dtype)


RESIZE2D = GraphOperator(
    "resize2d",
    INJECTIVE,
    _resize2d,
    _resize2d_reference,
    meaning=(
        "Resize an NCHW image. Nearest: the nearest pixel, a half rounded down, or rounded down for `asymmetric`; "
        "linear: interpolation of the four nearest pixels. Coordinates as in ONNX Resize; positions are exact fractions "
        "of integers."
    ),
)
