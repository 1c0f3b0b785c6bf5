"""Define grid_sample: pixels of an image at fractional coordinates, which are data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.graph.ir.operator import FUSABLE, GraphOperator
from tunesmith.graph.operators.element_types import FLOATS, require
from tunesmith.ir.expr import Expr, call, cast, const, maximum, minimum, select
from tunesmith.ir.poly import Index, Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.formulas import both, mod
from tunesmith.ops.reduction import number
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError

_TAPS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}
"""Pixels that each mode reads along an axis, from the one at or before the coordinate."""
_PADDINGS = ("zeros", "border", "reflection")
_KEYS = -0.75
"""The parameter of Keys' cubic convolution kernel ("Cubic convolution interpolation", 1981), as in torch and ONNX."""


def _check(x: Tensor, grid: Tensor, mode: str, padding: str) -> int:
    """The number of spatial axes."""
    require(FLOATS, x, grid)
    if mode not in _TAPS:
        raise ScriptError(f"unknown mode {mode!r}; modes are {', '.join(_TAPS)}")
    if padding not in _PADDINGS:
        raise ScriptError(f"unknown padding {padding!r}; paddings are {', '.join(_PADDINGS)}")
    axes = len(x.shape) - 2
    if axes < 1 or len(grid.shape) != len(x.shape) or grid.shape[0] != x.shape[0] or grid.shape[-1] != axes:
        raise ScriptError(
            f"images of shape (n, c, *spatial) need a grid of shape (n, *points, number of spatial axes), with as many axes of points; "
            f"got {x!r} and {grid!r}"
        )
    return axes


def _reflected(at: Expr, extent: Poly, aligned: bool) -> Expr:
    """A coordinate reflected at the borders: the centres of the outer pixels if aligned, otherwise their edges."""
    low, span = (0.0, number(extent - 1, at.dtype)) if aligned else (-0.5, number(extent, at.dtype))
    folded = span - call("abs", span - mod(at - low, maximum(span * 2, 1.0)))
    return folded + low


def _cubic(t: Expr, tap: int) -> Expr:
    """The weight of a tap for a coordinate `t` after the pixel of tap 0."""
    a, d = _KEYS, t - tap if tap <= 0 else const(float(tap), t.dtype) - t
    if tap in (0, 1):
        return ((a + 2) * d - (a + 3)) * d * d + 1.0
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a


def _weight(at: Expr, mode: str, tap: int) -> Expr:
    t = at - call("floor", at)
    return _cubic(t, tap) if mode == "cubic" else t if tap else 1.0 - t


def _grid_sample(x: Tensor, grid: Tensor, *, mode: str = "linear", padding: str = "zeros", align_corners: bool = False) -> Tensor:
    axes = _check(x, grid, mode, padding)
    n, points, taps = x.shape[0], grid.shape[1:-1], _TAPS[mode]
    loops = te.default_loops(axes + 2)

    def stages(d: int) -> tuple[Tensor, Tensor | None]:
        """The indices of the taps along spatial axis d, and their weights unless all are 1: shape (n, taps, *points)."""
        extent, name = x.shape[2 + d], "zyx"[3 - axes + d] if axes <= 3 else str(d)

        def coordinate(*i: Poly) -> Expr:
            # The columns of the grid are x, y, z: the last spatial axis first.
            unit = (grid[(*i, axes - 1 - d)] + 1.0) * 0.5
            at = unit * number(extent - 1, x.dtype) if align_corners else unit * number(extent, x.dtype) - 0.5
            return call("round", at) if mode == "nearest" else at

        places = te.compute((n, *points), coordinate, f"place_{name}", axes=[loops[0], *loops[2:]])

        def pixel(b: Poly, tap: Poly, *p: Poly) -> Expr:
            return call("floor", places[(b, *p)]) + number(tap + taps[0], x.dtype)

        def index(*i: Poly) -> Expr:
            at = pixel(*i)
            at = _reflected(at, extent, align_corners) if padding == "reflection" else at
            inside = minimum(select(at > 0.0, at, 0.0), number(extent - 1, x.dtype))  # 0 for NaN
            return cast("int64", inside)

        def weight(b: Poly, tap: Poly, *p: Poly) -> Expr:
            made: Expr = const(1.0, x.dtype)
            if mode != "nearest":
                weights = [_weight(places[(b, *p)], mode, t) for t in taps]
                made = weights[-1]
                for position in range(len(taps) - 2, -1, -1):
                    made = select(tap < position + 1, weights[position], made)
            if padding != "zeros":
                return made
            at = pixel(b, tap, *p)
            return select(both(at >= 0.0, at <= number(extent - 1, x.dtype)), made, 0.0)

        shape: tuple[Index, ...] = (n, len(taps), *points)
        indices = te.compute(shape, index, f"index_{name}", axes=loops)
        weighted = mode != "nearest" or padding == "zeros"
        return indices, te.compute(shape, weight, f"weight_{name}", axes=loops) if weighted else None

    along = [stages(d) for d in range(axes)]

    def element(b: Poly, c: Poly, *p: Poly) -> Expr:
        def summed(found: Sequence[Poly]) -> Expr:
            d = len(found)
            if d == axes:
                return x[(b, c, *found)]
            indices, weights = along[d]
            total: Expr | None = None
            for tap in range(len(taps)):
                part = te.lookup(indices[(b, tap, *p)], x.shape[2 + d], lambda v: summed([*found, v]))
                part = part if weights is None else part * weights[(b, tap, *p)]
                total = part if total is None else total + part
            assert total is not None
            return total

        return summed(())

    return te.compute((n, x.shape[1], *points), element, "grid_sample", axes=loops)


def _reference(x: np.ndarray, grid: np.ndarray, *, mode: str, padding: str, align_corners: bool) -> np.ndarray:
    spatial, images, points = x.shape[2:], x.astype(np.float64), grid.shape[1:-1]
    total = np.zeros((x.shape[0], x.shape[1], *points))
    axes = []
    for d, extent in enumerate(spatial):
        # The coordinate decides the pixels, so it is computed in the type of the program.
        unit = (grid[..., len(spatial) - 1 - d] + grid.dtype.type(1)) * grid.dtype.type(0.5)
        at = unit * grid.dtype.type(extent - 1) if align_corners else unit * grid.dtype.type(extent) - grid.dtype.type(0.5)
        axes.append([_reference_tap(at, extent, mode, padding, align_corners, tap) for tap in _TAPS[mode]])
    batch = np.arange(x.shape[0]).reshape(-1, *[1] * len(points))
    for choice in np.ndindex(*[len(taps) for taps in axes]):
        chosen = [axes[d][tap] for d, tap in enumerate(choice)]
        pixels = np.moveaxis(images[(batch, slice(None), *[index for index, _ in chosen])], -1, 1)
        total += pixels * np.prod([weight for _, weight in chosen], axis=0)[:, None]
    return total.astype(x.dtype)


def _reference_tap(at: np.ndarray, extent: int, mode: str, padding: str, aligned: bool, tap: int) -> tuple[np.ndarray, np.ndarray]:
    """The pixels of a tap and their weights, along one axis."""
    base = np.rint(at) if mode == "nearest" else np.floor(at)
    pixel = (base + tap).astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.abs(at - base - tap).astype(np.float64)
    weight = {
        "nearest": np.ones_like(distance),
        "linear": 1 - distance,
        "cubic": np.where(
            distance <= 1,
            ((_KEYS + 2) * distance - (_KEYS + 3)) * distance**2 + 1,
            _KEYS * (((distance - 5) * distance + 8) * distance - 4),
        ),
    }[mode]
    if padding == "zeros":
        weight = np.where((pixel >= 0) & (pixel <= extent - 1), weight, 0)
    if padding == "reflection":
        low, high = (0.0, extent - 1.0) if aligned else (-0.5, extent - 0.5)
        while (outside := (pixel < low) | (pixel > high)).any() and high > low:
            pixel = np.where(pixel < low, 2 * low - pixel, np.where(outside, 2 * high - pixel, pixel))
    return np.minimum(np.where(pixel > 0, pixel, 0), extent - 1).astype(np.int64), weight  # 0 for NaN


GRID_SAMPLE = GraphOperator(
    "grid_sample",
    FUSABLE,
    _grid_sample,
    _reference,
    wide=True,
    meaning=(
        "Pixels of images `x` (n, c, *spatial) at the coordinates of a grid (n, *points, axes), from -1 to 1, the last axis first; modes "
        "nearest, linear, cubic, paddings zeros, border, reflection, as in ONNX GridSample and torch.nn.functional.grid_sample."
    ),
)
