"""Convert ONNX operators that sample images at fractional coordinates, as weighted sums of pixels (taps) along each axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tunesmith.graph.importers.onnx.nn import Window, add_bias
from tunesmith.graph.importers.onnx.node import Converted, Converter, OnnxNode, cast_to, extents
from tunesmith.graph.importers.onnx.values import Datum, UnsupportedNode


@dataclass(frozen=True, eq=False)
class _Tap:
    """One pixel along one axis for each sampling point.

    Attributes:
        at: pixel index, int64, inside the axis.
        weight: interpolation weight in the image's element type.
    """

    at: Datum
    weight: Datum


def _taps(node: OnnxNode, at: Datum, extent: int) -> list[_Tap]:
    """The two pixels around each coordinate, with linear weights; pixels outside have weight 0."""
    b = node.b
    base = b.floor(at)
    t = b.subtract(at, base)
    taps = []
    for i, weight in enumerate((b.subtract(node.like(1, t), t), t)):
        pixel = b.add(base, node.like(i, base))
        inside = b.logical_and(b.greater_equal(pixel, node.like(0, at)), b.less_equal(pixel, node.like(extent - 1, at)))
        index = b.cast(b.clip(pixel, min=0.0, max=float(extent - 1)), dtype="int64")
        taps.append(_Tap(index, b.multiply(weight, cast_to(b, inside, at.type.dtype))))
    return taps


def _weighted_taps(node: OnnxNode, image: Datum, spatial: tuple[int, ...], axes: list[list[_Tap]]) -> list[Datum]:
    """The weighted pixels of all tap combinations, [n, c, p] each: an image [n, c, pixels] at points [n, p]."""
    b = node.b
    n, channels, _ = extents(image)
    points = extents(axes[0][0].at)[-1]
    parts = []
    for choice in np.ndindex(*[len(taps) for taps in axes]):
        index: Datum | None = None
        weight: Datum | None = None
        for taps, i, extent in zip(axes, choice, spatial, strict=True):
            tap = taps[i]
            index = tap.at if index is None else b.add(b.multiply(index, node.like(extent, tap.at)), tap.at)
            weight = tap.weight if weight is None else b.multiply(weight, tap.weight)
        assert index is not None and weight is not None
        wide = b.broadcast_to(b.expand_dims(index, axes=(1,)), shape=(n, channels, points))
        part = b.gather_elements(image, wide, axis=2)
        parts.append(b.multiply(part, b.expand_dims(weight, axes=(1,))))
    return parts


def _combined(node: OnnxNode, operator: str, parts: list[Datum]) -> Datum:
    """The sum or the maximum of tensors, in order."""
    made = parts[0]
    for part in parts[1:]:
        made = node.b.call(operator, made, part)
    return made


def _sum_of_taps(node: OnnxNode, image: Datum, spatial: tuple[int, ...], axes: list[list[_Tap]]) -> Datum:
    """Sample an image [n, c, pixels] at points [n, p]: the sum over all tap combinations, [n, c, p]."""
    return _combined(node, "add", _weighted_taps(node, image, spatial, axes))


_MODES = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic", "nearest": "nearest"}


def _grid_sample(node: OnnxNode) -> Converted:
    x = node.input(0)
    return node.b.grid_sample(
        x,
        cast_to(node.b, node.input(1), x.type.dtype),
        mode=_MODES[node.attr("mode", "linear")],
        padding=node.attr("padding_mode", "zeros"),
        align_corners=bool(node.attr("align_corners", 0)),
    )


def _roi_align(node: OnnxNode) -> Converted:
    """Average of a grid of points per bin of each region, or the greatest weighted pixel; sampling_ratio must be given."""
    x, rois, b = node.input(0), node.input(1), node.b
    ratio = node.attr("sampling_ratio", 0)
    if ratio < 1:
        raise UnsupportedNode("sampling_ratio 0, with which the number of points depends on the regions")
    _, channels, height, width = extents(x)
    regions = extents(rois, "the regions")[0]
    half = node.version >= 16 and node.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    bins = (node.attr("output_height", 1), node.attr("output_width", 1))
    image = b.take(x, cast_to(b, node.input(2), "int64"), axis=0)
    image = b.reshape(image, shape=(regions, channels, height * width))
    points = (regions, bins[0] * ratio, bins[1] * ratio)
    axes = []
    for i, (extent, bin_count) in enumerate(((height, bins[0]), (width, bins[1]))):
        at = _bin_points(node, rois, 1 - i, bin_count, ratio, half)
        shape = (regions, points[1], 1) if i == 0 else (regions, 1, points[2])
        at = b.broadcast_to(b.reshape(at, shape=shape), shape=points)
        at = b.reshape(at, shape=(regions, points[1] * points[2]))
        axes.append(_inner_taps(node, at, extent))
    mean = node.attr("mode", "avg") == "avg"
    made = _combined(node, "add" if mean else "maximum", _weighted_taps(node, image, (height, width), axes))
    made = b.reshape(made, shape=(regions, channels, bins[0], ratio, bins[1], ratio))
    return b.mean(made, axes=(3, 5)) if mean else b.max(made, axes=(3, 5))


def _bin_points(node: OnnxNode, rois: Datum, column: int, bins: int, ratio: int, half: bool) -> Datum:
    """Point coordinates along one axis, [regions, bins * ratio]."""
    b = node.b
    scale = node.attr("spatial_scale", 1.0)
    start, end = (
        b.multiply(b.strided_slice(rois, axes=(1,), begin=(c,), end=(c + 1,)), node.like(scale, rois)) for c in (column, column + 2)
    )
    if half:
        start, end = (b.subtract(v, node.like(0.5, v)) for v in (start, end))
    span = b.subtract(end, start)
    if not half:
        span = b.maximum(span, node.like(1, span))
    steps = (np.arange(bins * ratio) + 0.5) / (bins * ratio)
    return b.add(start, b.multiply(span, b.constant(steps[None, :], rois.type.dtype)))


def _inner_taps(node: OnnxNode, at: Datum, extent: int) -> list[_Tap]:
    """Two taps per point; weights are 0 for points more than a pixel outside."""
    b = node.b
    inside = b.logical_and(b.greater_equal(at, node.like(-1, at)), b.less_equal(at, node.like(extent, at)))
    inside = cast_to(b, inside, at.type.dtype)
    at = b.clip(at, min=0.0, max=float(extent - 1))
    base = b.floor(at)
    t = b.subtract(at, base)
    taps = []
    for i, weight in enumerate((b.subtract(node.like(1, t), t), t)):
        index = b.clip(b.add(base, node.like(i, base)), min=0.0, max=float(extent - 1))
        taps.append(_Tap(b.cast(index, dtype="int64"), b.multiply(weight, inside)))
    return taps


def _deform_conv(node: OnnxNode) -> Converted:
    """Deformable convolution (Dai et al., 2017; Zhu et al., 2019): every tap is sampled at its offset, then a product with the filter."""
    x, w, b = node.input(0), node.input(1), node.b
    (n, channels, *spatial), (filters, each, *kernel) = extents(x), extents(w, "the filter")
    if len(spatial) != 2:
        raise UnsupportedNode(f"a deformable convolution over {len(spatial)} dimensions")
    groups, offset_groups = node.attr("group", 1), node.attr("offset_group", 1)
    window = Window.of(node, kernel, tuple(spatial))
    out = extents(node.input(2), "the offsets")[2:]
    taps, points = kernel[0] * kernel[1], kernel[0] * kernel[1] * out[0] * out[1]
    offsets = b.reshape(node.input(2), shape=(n * offset_groups, taps, 2, *out))
    axes = []
    for i, extent in enumerate(spatial):
        starts = np.arange(out[i]) * window.strides[i] - window.before[i]
        steps = np.arange(kernel[i]) * window.dilations[i]
        grid = (starts[None, None, :, None] + steps[:, None, None, None]) if i == 0 else (starts + steps[None, :, None, None])
        base = np.broadcast_to(grid, (*kernel, *out)).reshape(1, taps, 1, *out)
        part = b.strided_slice(offsets, axes=(2,), begin=(i,), end=(i + 1,))
        at = b.reshape(b.add(part, b.constant(base, x.type.dtype)), shape=(n * offset_groups, points))
        axes.append(_taps(node, at, extent))
    image = b.reshape(x, shape=(n * offset_groups, channels // offset_groups, spatial[0] * spatial[1]))
    sampled = _sum_of_taps(node, image, tuple(spatial), axes)
    if node.has(4):
        sampled = b.multiply(sampled, b.reshape(node.input(4), shape=(n * offset_groups, 1, points)))
    columns = b.reshape(sampled, shape=(n, groups, each * taps, out[0] * out[1]))
    product = b.matmul(b.reshape(w, shape=(groups, filters // groups, each * taps)), columns)
    return add_bias(node, b.reshape(product, shape=(n, filters, *out)), node.get(3))


CONVERTERS: Mapping[str, Converter] = {"DeformConv": _deform_conv, "GridSample": _grid_sample, "RoiAlign": _roi_align}
