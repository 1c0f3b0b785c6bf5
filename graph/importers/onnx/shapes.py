"""Convert ONNX operators that move elements or compute shapes; `runtime_shapes` converts those of shapes that are not known at import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tunesmith.graph.importers.onnx import runtime_shapes
from tunesmith.graph.importers.onnx.bounds import is_natural, is_unbounded, not_above, not_below, unknown_sign
from tunesmith.graph.importers.onnx.node import (
    Converted,
    Converter,
    EmptyTensor,
    OnnxNode,
    dtype_of,
    empty,
    extents,
    is_float,
    normalised,
    rank,
    shape_of,
)
from tunesmith.graph.importers.onnx.values import Datum, UnsupportedNode, is_read, known_ints, sizes
from tunesmith.graph.ir.node import Constant
from tunesmith.ir.poly import Index, Poly, ceildiv, floordiv, less_than, maximum, minimum, poly, product
from tunesmith.support import dtype as dt

_FAR = 1 << 31
"""Slice bounds of this magnitude or more mean the first or last end of the axis."""


def _plain_int(p: Index) -> Poly | int:
    q = poly(p)
    return q if q.const is None else q.const


def _shape(node: OnnxNode) -> Converted:
    shape = shape_of(node.input(0))
    n = len(shape)
    start, end = node.attr("start", 0), node.attr("end", n)
    start, end = (min(max(v + n if v < 0 else v, 0), n) for v in (start, end))
    return sizes(list(shape[start:end]) if end > start else np.zeros(0, dtype=object))


def _size(node: OnnxNode) -> Converted:
    return sizes(np.array(product(node.input(0).type.shape), dtype=object))


def _constant(node: OnnxNode) -> Converted:
    for name, value in node.attributes.items():
        if name == "value":
            return node.b.constant(value)
        if name in ("value_float", "value_floats"):
            return node.b.constant(np.asarray(value, dtype=np.float32))
        if name in ("value_int", "value_ints"):
            return node.b.constant(np.asarray(value, dtype=np.int64))
    raise node.refuse(f"a constant with the attributes: {', '.join(node.attributes) or 'none'}")


def _constant_of_shape(node: OnnxNode) -> Converted:
    shape = node.extents(0, "shape")
    value = np.asarray(node.attr("value", np.zeros(1, dtype=np.float32))).ravel()
    if any(e == 0 for e in shape):
        return empty(shape, dt.from_numpy(value.dtype))
    return node.b.full(shape=shape, value=value[0].item(), dtype=dt.from_numpy(value.dtype))


def _reshape(node: OnnxNode) -> Converted:
    if not node.knows(1) and any(not isinstance(e, int) for e in node.scalars(1, "shape")):
        return runtime_shapes.reshape(node)
    x, requested = node.input(0), [e for e in node.scalars(1, "shape") if isinstance(e, (int, Poly))]
    old = x.type.shape
    shape: list[Index] = []
    for i, e in enumerate(requested):
        if e == 0 and not node.attr("allowzero", 0):
            if i >= len(old):
                raise node.refuse(f"a 0 at index {i} of the shape for {x.type}")
            e = old[i]
        shape.append(e)
    unknown = [i for i, e in enumerate(shape) if e == -1]
    if unknown:
        rest = product([e for e in shape if e != -1])
        shape[unknown[0]] = _plain_int(floordiv(product(old), rest))
    return node.b.reshape(x, shape=tuple(shape))


def _flatten(node: OnnxNode) -> Converted:
    x = node.input(0)
    axis = node.attr("axis", 1)
    if not -rank(x) <= axis <= rank(x):
        raise UnsupportedNode(f"axis {axis} is out of range for a tensor with {rank(x)} dimensions")
    axis = axis + rank(x) if axis < 0 else axis
    shape = x.type.shape
    return node.b.reshape(x, shape=(_plain_int(product(shape[:axis])), _plain_int(product(shape[axis:]))))


def _transpose(node: OnnxNode) -> Converted:
    x = node.input(0)
    return node.b.permute_dims(x, axes=tuple(node.attr("perm", range(rank(x))[::-1])))


def _squeeze(node: OnnxNode) -> Converted:
    x = node.input(0)
    axes = node.axes(1, 13)
    if axes is None:
        axes = tuple([i for i, e in enumerate(x.type.shape) if e.const == 1])
    if not axes:
        return x
    return node.b.squeeze(x, axes=tuple([normalised(a, rank(x)) for a in axes]))


def _unsqueeze(node: OnnxNode) -> Converted:
    x, axes = node.input(0), node.axes(1, 13)
    if axes is None:
        raise node.refuse("axes are missing")
    if not axes:
        return x
    return node.b.expand_dims(x, axes=tuple(sorted([normalised(a, rank(x) + len(axes)) for a in axes])))


def _concat(node: OnnxNode) -> Converted:
    parts = [node.input(i) for i in range(len(node.inputs))]
    axis = normalised(node.attr("axis", 1), rank(parts[0]))
    full = [p for p in parts if p.type.shape[axis] != 0] or parts[:1]
    if len(full) > 1 and (vague := next((p for p in full if isinstance(p, EmptyTensor)), None)):
        raise node.refuse(f"a tensor without elements of the shape {list(shape_of(vague))}, which is not constant")
    return full[0] if len(full) == 1 else node.b.concat(*full, axis=axis)


def _split(node: OnnxNode) -> Converted:
    x = node.input(0)
    axis = normalised(node.attr("axis", 0), rank(x))
    extent, count = x.type.shape[axis], len(node.outputs)
    if node.version >= 13 and node.has(1):
        parts = node.ints(1, "split")
    elif node.version < 13 and node.attr("split") is not None:
        parts = tuple(node.attr("split"))
    else:
        step = ceildiv(extent, count)
        parts = tuple([_plain_int(step)] * (count - 1) + [_plain_int(extent - step * (count - 1))])
    full = tuple([p for p in parts if p != 0])
    made = (x,) if len(full) == 1 and len(parts) > 1 else node.b.split(x, sizes=full, axis=axis)
    rest = iter(made if isinstance(made, tuple) else (made,))
    return tuple([_empty(x, axis) if p == 0 else next(rest) for p in parts])


def _empty(x: Datum, axis: int) -> Any:
    """An empty part of `x`."""
    return empty([0 if i == axis else e for i, e in enumerate(shape_of(x))], x.type.dtype)


def _slice(node: OnnxNode) -> Converted:
    x = node.input(0)
    if node.version >= 10:
        if not (node.knows(1) and node.knows(2)):
            return runtime_shapes.strided_slice(node)
        starts, ends = node.ints(1, "starts"), node.ints(2, "ends")
        axes = node.numbers(3, "axes") if node.has(3) else tuple(range(len(starts)))
        steps = node.numbers(4, "steps") if node.has(4) else (1,) * len(starts)
    else:
        starts, ends = tuple(node.attr("starts")), tuple(node.attr("ends"))
        axes, steps = tuple(node.attr("axes", range(len(starts)))), (1,) * len(starts)
    axes = tuple([normalised(a, rank(x)) for a in axes])
    if min(steps, default=1) > 0 and any(unknown_sign(v) for v in (*starts, *ends)):
        return runtime_shapes.strided_slice(node)
    bounds = [_bounds(node, s, e, step, x.type.shape[a], f"axis {a}") for s, e, step, a in zip(starts, ends, steps, axes, strict=True)]
    begin, end = tuple([b for b, _ in bounds]), tuple([e for _, e in bounds])
    shape = list(shape_of(x))
    for a, b, e, step in zip(axes, begin, end, steps, strict=True):
        shape[a] = _steps(b, e, step)
    if 0 in shape:
        return empty(shape, x.type.dtype)
    if isinstance(x, Constant) and all(isinstance(v, int) for v in (*begin, *end)):
        at = [slice(None)] * rank(x)
        for a, b, e, step in zip(axes, begin, end, steps, strict=True):
            assert isinstance(b, int) and isinstance(e, int)
            at[a] = slice(b, None if step < 0 and e < 0 else e, step)
        return node.b.constant(x.data[tuple(at)])
    return node.b.strided_slice(x, axes=axes, begin=begin, end=end, strides=tuple(steps))


def _steps(begin: Index, end: Index, step: int) -> Poly | int:
    """The number of elements between two bounds."""
    if isinstance(begin, int) and isinstance(end, int):
        return len(range(begin, end, step))
    return _plain_int(ceildiv(poly(end) - begin, step) if step > 0 else ceildiv(poly(begin) - end, -step))


def _bounds(node: OnnxNode, start: Index, end: Index, step: int, extent: Poly, where: str) -> tuple[Index, Index]:
    """Slice bounds clamped to the axis, as in numpy."""
    low, high = (poly(0), extent) if step > 0 else (poly(-1), extent - 1)

    def clamped(v: Index) -> Index:
        p = poly(v)
        if p.const is not None and abs(p.const) >= _FAR:
            return _plain_int(high if p.const > 0 else low)
        if not is_natural(p):
            if unknown_sign(p):
                raise UnsupportedNode(f"the sign of the bound {p} of a slice of {where} is unknown")
            p = p + extent
        if not is_natural(p - low):
            p = maximum(p, low)
        # Assume instead of clamping: the slice is combined with tensors of the dynamic size, so larger sizes are errors of the caller.
        if not is_natural(high - p) and not (high.const is not None and is_unbounded(p) and node.b.assume(less_than(p, high + 1))):
            p = minimum(p, high)
        return _plain_int(p)

    begin, stop = clamped(start), clamped(end)
    if isinstance(begin, int) and isinstance(stop, int):
        return begin, stop
    return begin, _plain_int(not_below(node.b, stop, begin) if step > 0 else not_above(node.b, stop, begin))


def _pad(node: OnnxNode) -> Converted:
    x, n = node.input(0), rank(node.input(0))
    if node.version >= 11:
        known = node.knows(1) and all(isinstance(p, int) for p in node.ints(1, "pads"))
        if not (known and isinstance(node.get(2) or node.b.constant(0), Constant)):
            return runtime_shapes.pad(node)
        pads = node.numbers(1, "pads")
        axes = [normalised(a, n) for a in node.numbers(3, "axes")] if node.has(3) else list(range(n))
        value = node.array(2, "constant_value").item() if node.has(2) else 0
    else:
        pads, axes, value = tuple(node.attr("pads")), list(range(n)), node.attr("value", 0.0)
    if len(pads) != 2 * len(axes):
        raise UnsupportedNode(f"pads has {len(pads)} elements, expected {2 * len(axes)} for {len(axes)} axes")
    before, after = [0] * n, [0] * n
    for i, a in enumerate(axes):
        before[a], after[a] = pads[i], pads[len(axes) + i]
    return padded(node, x, before, after, node.attr("mode", "constant"), value)


def padded(node: OnnxNode, x: Datum, before: Sequence[int], after: Sequence[int], mode: str = "constant", value: float = 0) -> Datum:
    """Pad `x`; negative amounts crop."""
    b, axes = node.b, range(rank(x))
    if any(p < 0 for p in (*before, *after)):
        shape = shape_of(x)
        cut = tuple([a for a in axes if before[a] < 0 or after[a] < 0])
        end = [_plain_int(poly(shape[a]) + min(after[a], 0)) for a in cut]
        x = b.strided_slice(x, axes=cut, begin=tuple([max(-before[a], 0) for a in cut]), end=tuple(end))
        before, after = [max(p, 0) for p in before], [max(p, 0) for p in after]
    if not any((*before, *after)):
        return x
    for a in axes if mode != "constant" else ():
        if before[a] or after[a]:
            x = runtime_shapes.at_least(b, x, a, max(before[a], after[a]) + 1 if mode == "reflect" else 1)
    kind = float if is_float(x) else int
    return b.pad(x, before=tuple(before), after=tuple(after), mode=mode, value=kind(value))


def _expand(node: OnnxNode) -> Converted:
    if not node.knows(1):
        return runtime_shapes.expand(node)
    x, requested = node.input(0), node.ints(1, "shape")
    old = shape_of(x)
    n = max(len(old), len(requested))
    one, other = (1,) * (n - len(old)) + tuple(old), (1,) * (n - len(requested)) + tuple(requested)
    shape = tuple([b if a == 1 else a for a, b in zip(one, other, strict=True)])
    if any(e == 0 for e in shape) and isinstance(x, Constant):
        return node.b.constant(np.broadcast_to(x.data, [e for e in shape if isinstance(e, int)]))
    for a, b, e in zip(one, other, shape, strict=True):
        if is_read(a) and b not in (1, e):
            raise node.refuse(f"the extents {a} and {b}: whether the first one is 1 is known only when the model runs")
    return x if shape == tuple(old) else node.b.broadcast_to(x, shape=shape)


def _tile(node: OnnxNode) -> Converted:
    repeats, n = node.extents(1, "repeats"), rank(node.input(0))
    if len(repeats) != n:
        raise UnsupportedNode(f"repeats has {len(repeats)} elements, expected {n}")
    return node.b.tile(node.input(0), repeats=repeats)


def _range(node: OnnxNode) -> Converted:
    first = node.input(0)
    dtype = first.type.dtype
    if not all(node.knows(i) if dt.is_int(dtype) else isinstance(node.input(i), Constant) for i in range(3)):
        return runtime_shapes.arange(node)
    bounds: list[float | Index] = []
    for i, what in enumerate(("start", "limit", "delta")):
        known = known_ints(node.input(i)) if dt.is_int(dtype) else None
        bounds.append(known[0] if known else node.array(i, what).item())
    start, stop, step = bounds
    if any(isinstance(v, Poly) for v in bounds):
        low, high, by = [poly(v) for v in bounds if not isinstance(v, float)]
        if not (is_natural(by - 1) or is_natural(-1 - by)):
            return runtime_shapes.arange(node)
        stop = _plain_int((not_below if is_natural(by) else not_above)(node.b, high, low))
        if poly(stop) == low:
            return empty((0,), dtype)
    if not any(isinstance(v, Poly) for v in bounds) and dtype != "bfloat16":
        made = np.arange(start, stop, step, dtype=dt.to_numpy(dtype))  # type: ignore[arg-type]
        if made.size < _FAR >> 15:
            return node.b.constant(made)
    return node.b.arange(start=start, stop=stop, step=step, dtype=dtype)


def _eye_like(node: OnnxNode) -> Converted:
    x = node.input(0)
    dtype = dtype_of(node.attr("dtype")) if node.attr("dtype") else x.type.dtype
    n, m = shape_of(x)
    return node.b.eye(n=n, m=m, k=node.attr("k", 0), dtype=dtype)


def _trilu(node: OnnxNode) -> Converted:
    k = node.numbers(1, "k")[0] if node.has(1) else 0
    return node.b.trilu(node.input(0), upper=bool(node.attr("upper", 1)), k=k)


def _depth_to_space(node: OnnxNode) -> Converted:
    return node.b.depth_to_space(node.input(0), block=node.attr("blocksize"), mode=node.attr("mode", "DCR"))


def _space_to_depth(node: OnnxNode) -> Converted:
    return node.b.space_to_depth(node.input(0), block=node.attr("blocksize"), mode=node.attr("mode", "DCR"))


def _column_to_image(node: OnnxNode) -> Converted:
    """Overlap-add of blocks at their positions: a scatter with constant indices."""
    x, b = node.input(0), node.b
    image, block = node.numbers(1, "image_shape"), node.numbers(2, "block_shape")
    n = len(image)
    strides, dilations, pads = (node.attr(k, d) for k, d in (("strides", [1] * n), ("dilations", [1] * n), ("pads", [0] * 2 * n)))
    for name, given, expected in (("block_shape", block, n), ("strides", strides, n), ("dilations", dilations, n), ("pads", pads, 2 * n)):
        if len(given) != expected:
            raise UnsupportedNode(f"{name} has {len(given)} elements, expected {expected} for {n} dimensions")
    if min((*image, *block, *strides, *dilations)) < 1 or min(pads) < 0:
        raise UnsupportedNode("image and block extents, strides and dilations must be at least 1, pads at least 0")
    shape = extents(x)
    if len(shape) != 3 or shape[1] % int(np.prod(block)):
        raise UnsupportedNode(f"columns {list(shape)}; the second extent must be a multiple of the block size {int(np.prod(block))}")
    channels = shape[1] // int(np.prod(block))
    wide = [image[i] + pads[i] + pads[n + i] for i in range(n)]
    steps = [(wide[i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(n)]
    if min(steps) < 1 or shape[2] != int(np.prod(steps)):
        raise UnsupportedNode(f"{shape[2]} columns, but the image has {' x '.join(map(str, steps))} block positions")
    at = np.zeros((*block, *steps), dtype=np.int64)
    for i in range(n):
        inner = np.arange(block[i]).reshape([-1 if j == i else 1 for j in range(2 * n)]) * dilations[i]
        outer = np.arange(steps[i]).reshape([-1 if j == n + i else 1 for j in range(2 * n)]) * strides[i]
        at = at * wide[i] + inner + outer
    many = shape[0] * channels
    updates = b.reshape(x, shape=(many, at.size))
    indices = b.constant(np.broadcast_to(at.reshape(1, -1), (many, at.size)))
    zeros = b.full(shape=(many, int(np.prod(wide))), value=0, dtype=x.type.dtype)
    made = b.scatter_elements(zeros, indices, updates, axis=1, reduction="add")
    made = b.reshape(made, shape=(shape[0], channels, *wide))
    axes = tuple(range(2, 2 + n))
    end = tuple([pads[i] + image[i] for i in range(n)])
    return b.strided_slice(made, axes=axes, begin=tuple(pads[:n]), end=end) if any(pads) else made


CONVERTERS: Mapping[str, Converter] = {
    "Col2Im": _column_to_image,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "EyeLike": _eye_like,
    "Flatten": _flatten,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
