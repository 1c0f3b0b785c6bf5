"""Define operators that rearrange or resample NCHW images: depth_to_space, space_to_depth, resize2d."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.graph.ir.operator import INJECTIVE, GraphOperator
from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Index, Poly, mod
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.resize import resize, resize_reference
from tunesmith.ops.tensor_expression import Tensor
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


def _resize2d(x: Tensor, *, size: Sequence[Index], mode: str = "nearest", coordinate_mode: str = "half_pixel") -> Tensor:
    return resize(x, size, mode, coordinate_mode)


def _resize2d_reference(x: np.ndarray, *, size: Sequence[int], mode: str = "nearest", coordinate_mode: str = "half_pixel") -> np.ndarray:
    return resize_reference(x, size, mode, coordinate_mode)


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
