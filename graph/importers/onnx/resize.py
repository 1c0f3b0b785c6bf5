"""Convert ONNX Resize and Upsample: interpolation is separable, so each axis is a gather or a product with a constant matrix.

Simple cases (last two of four axes, linear, coordinate modes of `resize2d`) become `resize2d`, which supports symbolic sizes and
keeps the operator recognizable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tunesmith.graph.importers.onnx.node import Converted, Converter, OnnxNode, cast_to, extents, is_float, normalised, rank, shape_of
from tunesmith.graph.importers.onnx.values import Datum, Sizes
from tunesmith.graph.ir.node import Constant
from tunesmith.ir.poly import Index, Poly, poly

_SAME_IN_OURS = {
    "half_pixel": "half_pixel",
    "asymmetric": "asymmetric",
    "align_corners": "align_corners",
    "pytorch_half_pixel": "half_pixel",
}


@dataclass(frozen=True)
class _Axis:
    """Resize parameters of one axis.

    Attributes:
        axis: axis index.
        extent: input extent.
        size: output extent.
        scale: size / extent, or the scale in the model.
        start: start of the cropped region, 0 to 1 (tf_crop_and_resize).
        end: end of the cropped region.
    """

    axis: int
    extent: int
    size: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    def coordinates(self, mode: str) -> np.ndarray:
        """Input coordinate of each output element."""
        y = np.arange(self.size, dtype=np.float64)
        width = self.scale * self.extent
        last = self.extent - 1
        if mode == "align_corners":
            return np.zeros_like(y) if width == 1 else y * last / (width - 1)
        if mode == "asymmetric":
            return y / self.scale
        if mode == "tf_crop_and_resize":
            span = (self.end - self.start) * last
            inner = np.full_like(y, span / 2) if width == 1 else y * span / (width - 1)
            return inner + self.start * last
        if mode == "pytorch_half_pixel" and width == 1:
            return np.full_like(y, -0.5)
        offset = self.extent / 2 * (1 - self.size / width) if mode == "half_pixel_symmetric" else 0.0
        return offset + (y + 0.5) / self.scale - 0.5


def _nearest(x: np.ndarray, rounding: str) -> np.ndarray:
    rounded: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "round_prefer_floor": lambda v: np.ceil(v - 0.5),
        "round_prefer_ceil": lambda v: np.floor(v + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    return rounded[rounding](x).astype(np.int64)


def _linear_kernel(x: np.ndarray) -> np.ndarray:
    return np.clip(1 - np.abs(x), 0, 1)


def _cubic_kernel(a: float) -> Callable[[np.ndarray], np.ndarray]:
    """Keys' cubic convolution kernel."""

    def kernel(x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        near = (a + 2) * x**3 - (a + 3) * x**2 + 1
        far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0))

    return kernel


def _matrix(node: OnnxNode, a: _Axis, x: np.ndarray, mode: str) -> np.ndarray:
    """[size, extent]: interpolation weight of each input element for each output element."""
    cubic = mode == "cubic"
    kernel = _cubic_kernel(node.attr("cubic_coeff_a", -0.75)) if cubic else _linear_kernel
    shrink = min(a.scale, 1.0) if node.attr("antialias", 0) else 1.0
    reach = math.ceil((2 if cubic else 1) / shrink) + 1
    base = np.floor(x).astype(np.int64)
    taps = base[:, None] + np.arange(-reach, reach + 1)[None, :]
    weights = kernel((taps - x[:, None]) * shrink)
    if node.attr("exclude_outside", 0):
        weights = np.where((taps < 0) | (taps >= a.extent), 0, weights)
    if shrink < 1 or node.attr("exclude_outside", 0):
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    made = np.zeros((a.size, a.extent))
    rows = np.broadcast_to(np.arange(a.size)[:, None], taps.shape)
    np.add.at(made, (rows, np.clip(taps, 0, a.extent - 1)), weights)
    return made


def _along(node: OnnxNode, x: Datum, a: _Axis) -> Datum:
    b, n = node.b, rank(x)
    coordinates, mode = node.attr("coordinate_transformation_mode", "half_pixel"), node.attr("mode", "nearest")
    if node.version < 11:
        coordinates = "asymmetric"
    at = a.coordinates(coordinates)
    if mode == "nearest":
        rounding = "floor" if node.version < 11 else node.attr("nearest_mode", "round_prefer_floor")
        made = b.take(x, b.constant(np.clip(_nearest(at, rounding), 0, a.extent - 1)), axis=a.axis)
    else:
        matrix = b.constant(_matrix(node, a, at, mode), x.type.dtype)
        order = (*[i for i in range(n) if i != a.axis], a.axis)
        made = b.matmul(b.permute_dims(x, axes=order), b.permute_dims(matrix, axes=(1, 0)))
        made = b.permute_dims(made, axes=tuple([order.index(i) for i in range(n)]))
    outside = (at < 0) | (at > a.extent - 1)
    if coordinates == "tf_crop_and_resize" and outside.any():
        mask = b.constant(outside.reshape([-1 if i == a.axis else 1 for i in range(n)]))
        made = b.where(mask, node.like(node.attr("extrapolation_value", 0.0), made), made)
    return made


def _axes(node: OnnxNode, x: Datum) -> list[_Axis]:
    """Parameters of all resized axes; unchanged axes are omitted."""
    n = rank(x)
    chosen = [normalised(v, n) for v in node.attr("axes", range(n))]
    shape = extents(x)
    crop = node.attr("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    roi = node.array(1, "roi") if crop and node.version >= 11 and node.has(1) else None
    scales, sizes = _scales_or_sizes(node)
    if scales is not None:
        scale = {a: float(s) for a, s in zip(chosen, scales, strict=True)}
        size = {a: int(s * shape[a]) for a, s in scale.items()}
    else:
        assert sizes is not None
        size = {a: int(s) for a, s in zip(chosen, sizes, strict=True)}
        scale = {a: s / shape[a] for a, s in size.items()}
        policy = node.attr("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            one = (min if policy == "not_larger" else max)(scale.values())
            scale = dict.fromkeys(scale, one)
            size = {a: int(one * shape[a] + 0.5) for a in size}
    made = []
    for i, a in enumerate(chosen):
        start, end = (0.0, 1.0) if roi is None or not roi.size else (float(roi[i]), float(roi[len(chosen) + i]))
        if size[a] != shape[a] or not math.isclose(scale[a], 1) or (start, end) != (0.0, 1.0):
            made.append(_Axis(a, shape[a], size[a], scale[a], start, end))
    return made


def _scales_or_sizes(node: OnnxNode) -> tuple[np.ndarray | None, tuple[int, ...] | None]:
    """Scales or sizes, whichever input the node has."""
    if node.operator == "Upsample" and node.version < 9:
        return np.asarray(node.attr("scales")), None
    if node.version < 11:
        return node.array(1, "scales"), None
    scales = node.array(2, "scales") if node.has(2) else np.zeros(0)
    return (scales, None) if scales.size else (None, node.numbers(3, "sizes"))


def _symbolic(node: OnnxNode, x: Datum) -> Datum | None:
    """`resize2d` for a simple case, else None."""
    b, mode = node.b, node.attr("mode", "nearest")
    coordinates = node.attr("coordinate_transformation_mode", "half_pixel") if node.version >= 11 else "asymmetric"
    odd = ("antialias", "exclude_outside", "axes")
    plain = rank(x) == 4 and is_float(x) and coordinates in _SAME_IN_OURS and not any(node.attr(k) for k in odd)
    floor = node.version < 11 or node.attr("nearest_mode", "round_prefer_floor") == "floor"
    if not plain or node.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    if mode != "linear" and not (mode == "nearest" and coordinates == "asymmetric" and floor):
        return None
    size = _plane(node, x)
    if size is None or (coordinates == "pytorch_half_pixel" and any(poly(s).const == 1 for s in size)):
        return None
    return b.resize2d(x, size=size, mode=mode, coordinate_mode=_SAME_IN_OURS[coordinates])


def _plane(node: OnnxNode, x: Datum) -> tuple[Index, ...] | None:
    """Height and width of the result if the scales give exact integers and the other axes are unchanged; else None."""
    shape = shape_of(x)
    given = node.get(3) if node.version >= 11 else None
    if isinstance(given, (Sizes, Constant)) and len(given.type.shape) == 1 and given.type.shape[0] == 4:
        sizes = node.ints(3, "sizes")
        return sizes[2:] if sizes[:2] == shape[:2] else None
    scales, _ = _scales_or_sizes(node)
    if scales is None or len(scales) != 4 or tuple(scales[:2]) != (1, 1):
        return None
    made: list[Index] = []
    for e, s in zip(shape[2:], scales[2:], strict=True):
        if isinstance(e, Poly) and not float(s).is_integer():
            return None
        if not isinstance(e, Poly) and not float(e * s).is_integer():
            return None
        made.append(e * int(s) if isinstance(e, Poly) else int(e * s))
    return tuple(made)


def _resize(node: OnnxNode) -> Converted:
    x = node.input(0)
    made = _symbolic(node, x)
    if made is not None:
        return made
    real = x if is_float(x) or node.attr("mode", "nearest") == "nearest" else cast_to(node.b, x, "float32")
    for a in _axes(node, x):
        real = _along(node, real, a)
    return cast_to(node.b, real, x.type.dtype)


CONVERTERS: Mapping[str, Converter] = {"Resize": _resize, "Upsample": _resize}
