"""Convert ONNX operators whose shapes are computed by the model: from tensors, whose elements are read as sizes when the model runs.

A number that ONNX does not allow there is read as a negative size, which is an error: compiled code must not access memory outside of a
tensor, and a model must not compute with shapes other than those that it asks for.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.graph.importers.onnx.node import Converted, OnnxNode, cast_to, is_float, normalised, rank, shape_of
from tunesmith.graph.importers.onnx.values import Datum, FoldingBuilder, UnsupportedNode, is_read, sizes
from tunesmith.graph.ir.node import Constant
from tunesmith.ir.poly import Index, Poly, less_than, poly, product


def _needed(node: OnnxNode, inputs: Sequence[int], reason: str) -> UnsupportedNode:
    """The error of a node that needs the values of some inputs at import."""
    return UnsupportedNode(reason, tuple(dict.fromkeys(name for i in inputs for name in node.b.wanted(node.input(i)))))


def within(b: FoldingBuilder, value: Datum, most: Index) -> Datum:
    """An int64[], or a negative number if it is greater than `most`."""
    limit = sizes(most)
    return b.where(b.less_equal(value, limit), value, b.constant(-1, "int64"))


def _only_if(b: FoldingBuilder, condition: Datum, value: Datum) -> Datum:
    """An int64[], or a negative number if a condition does not hold."""
    return b.where(condition, value, b.constant(-1, "int64"))


def at_least(b: FoldingBuilder, x: Datum, axis: int, count: int) -> Datum:
    """`x`, whose axis has at least `count` elements: if that is not known at import, the call or the model fails otherwise."""
    extent = shape_of(x)[axis]
    if isinstance(extent, int) or b.assume(less_than(count - 1, extent)):  # not proved: sizes count as positive, but a call may pass 0
        return x
    enough = b.greater_equal(b.operand(sizes(extent)), b.constant(count, "int64"))
    same = b.read_size(_only_if(b, enough, sizes(extent)), "extent")
    return b.strided_slice(x, axes=(axis,), begin=(0,), end=(same,))


def _number(b: FoldingBuilder, e: Poly | int | Datum) -> Datum:
    """An int64[] of a number, a size or a scalar."""
    return sizes(e) if isinstance(e, (int, Poly)) else b.reshape(cast_to(b, e, "int64"), shape=())


def reshape(node: OnnxNode) -> Converted:
    """Reshape: a copy, since the compiler cannot know that the elements fill the shape."""
    x, b = node.input(0), node.b
    if rank(x) == 0:
        raise _needed(node, (1,), "a number without axes in a shape that is not known at import")
    old = shape_of(x)
    if 0 in old:
        raise _needed(node, (1,), f"a tensor without elements, {x.type}, in a shape that is not known at import")
    wanted = node.scalars(1, "shape")
    if len(wanted) == 0:
        raise node.refuse("a shape without axes")
    extents = []
    for i, e in enumerate(wanted):
        n = _number(b, e)
        if not node.attr("allowzero", 0) and not (isinstance(e, int) and e):
            if i < len(old):
                n = b.where(b.equal(n, b.constant(0, "int64")), sizes(old[i]), n)
        extents.append(n)
    count = sizes(product([poly(e) for e in old]))
    given = b.constant(1, "int64")
    for n in extents:
        given = b.multiply(given, b.where(b.equal(n, b.constant(-1, "int64")), b.constant(1, "int64"), n))
    rest = b.floor_divide(count, b.maximum(given, b.constant(1, "int64")))
    made = [b.where(b.equal(n, b.constant(-1, "int64")), rest, n) for n in extents]
    total = made[0]
    for n in made[1:]:
        total = b.multiply(total, n)
    fits = b.equal(total, count)
    shape = [b.read_size(_only_if(b, fits, n), "extent") for n in made]
    flat = x if rank(x) == 1 else b.reshape(x, shape=(product(x.type.shape),))
    every = b.arange(start=0, stop=product([poly(e) for e in shape]), step=1, dtype="int64")
    return b.reshape(b.take(flat, every, axis=0), shape=tuple(shape))


def expand(node: OnnxNode) -> Converted:
    """Expand."""
    x, b = node.input(0), node.b
    wanted = node.scalars(1, "shape")
    old = shape_of(x)
    n = max(len(old), len(wanted))
    fits: list[Datum] = []
    shape: list[Poly | int | Datum] = []
    for have, want in zip((*[1] * (n - len(old)), *old), (*[1] * (n - len(wanted)), *wanted), strict=True):
        if have == 1:
            shape.append(want)
            continue
        shape.append(have)
        if not isinstance(want, (int, Poly)):
            number = _number(b, want)
            fits.append(b.logical_or(b.equal(number, b.constant(1, "int64")), b.equal(number, sizes(have))))
        elif want != 1 and poly(want) != poly(have):
            raise _needed(node, (1,), f"the extents {have} and {want}, which may differ")
    if all(isinstance(e, (int, Poly)) for e in shape) or any(is_read(e) for e in old):
        node.ints(1, "shape")  # which are not known: nothing can check them
    fit: Datum = b.constant(True)
    for condition in fits:
        fit = b.logical_and(fit, condition)
    made = [e if isinstance(e, (int, Poly)) else b.read_size(_only_if(b, fit, _number(b, e)), "extent") for e in shape]
    return b.broadcast_to(x, shape=tuple(made))


def strided_slice(node: OnnxNode) -> Converted:
    """Slice, with bounds that are clamped to the axis as in numpy."""
    x, b = node.input(0), node.b
    starts, ends = node.scalars(1, "starts"), node.scalars(2, "ends")
    axes = node.numbers(3, "axes") if node.has(3) else tuple(range(len(starts)))
    steps = node.numbers(4, "steps") if node.has(4) else (1,) * len(starts)
    begin: list[Index] = []
    end: list[Index] = []
    shape = shape_of(x)
    one = b.constant(1, "int64")
    where = tuple([normalised(a, rank(x)) for a in axes])
    for start, stop, step, a in zip(starts, ends, steps, where, strict=True):
        if step < 1:
            raise _needed(node, (1, 2), f"a step of {step} with bounds that are not known at import")
        extent = sizes(shape[a])
        low, high = (_clamped(b, _number(b, v), extent) for v in (start, stop))
        distance = b.maximum(b.subtract(high, low), b.constant(0, "int64"))
        count = distance if step == 1 else b.floor_divide(b.add(distance, b.constant(step - 1, "int64")), b.constant(step, "int64"))
        most = extent.data.item() if isinstance(extent, Constant) else None
        first = b.read_size(b.add(low, one), "after")  # at least 1: a function with many sizes takes none that is 0
        begin.append(first - 1)
        end.append(first - 1 + b.read_size(count, "count", most) * step)
    return b.strided_slice(x, axes=where, begin=tuple(begin), end=tuple(end), strides=tuple(steps))


def _clamped(b: FoldingBuilder, v: Datum, extent: Datum) -> Datum:
    zero = b.constant(0, "int64")
    return b.minimum(b.maximum(b.where(b.less(v, zero), b.add(v, extent), v), zero), extent)


def pad(node: OnnxNode) -> Converted:
    """Pad: the elements of each axis are looked up at computed indices."""
    x, b = node.input(0), node.b
    mode = node.attr("mode", "constant")
    amounts = node.scalars(1, "pads")
    axes = [normalised(a, rank(x)) for a in node.numbers(3, "axes")] if node.has(3) else list(range(rank(x)))
    if len(amounts) != 2 * len(axes):
        raise node.refuse(f"pads has {len(amounts)} elements, expected {2 * len(axes)} for {len(axes)} axes")
    value = b.reshape(node.input(2), shape=()) if node.has(2) else b.constant(0.0 if is_float(x) else 0, x.type.dtype)
    if mode not in ("constant", "edge"):
        raise _needed(node, (1,), f"the mode {mode} with pads that are not known at import")
    for i, axis in enumerate(axes):
        before, after = amounts[i], amounts[len(axes) + i]
        if before == 0 and after == 0:
            continue
        x = _padded_axis(b, x, axis, _number(b, before), _number(b, after), value if mode == "constant" else None)
    return x


def _padded_axis(b: FoldingBuilder, x: Datum, axis: int, before: Datum, after: Datum, value: Datum | None) -> Datum:
    """Add elements at both ends of an axis, or remove them: `value`, or the outermost elements."""
    count = shape_of(x)[axis]
    extent = sizes(count)
    total = b.add(b.add(before, after), extent)
    zero, last = b.constant(0, "int64"), b.subtract(extent, b.constant(1, "int64"))
    if value is None:
        some = b.logical_or(b.greater(b.operand(extent), zero), b.equal(total, zero))
        size = b.read_size(_only_if(b, some, total), "extent")
        at = b.subtract(b.arange(start=0, stop=size, step=1, dtype="int64"), before)
        return b.take(x, b.minimum(b.maximum(at, zero), b.maximum(last, zero)), axis=axis)
    size = b.read_size(total, "extent")
    at = b.subtract(b.arange(start=0, stop=size, step=1, dtype="int64"), before)
    inside = b.logical_and(b.greater_equal(at, zero), b.less(at, extent))
    if isinstance(count, int) and count:
        found = b.take(x, b.minimum(b.maximum(at, zero), last), axis=axis)
        return b.where(b.reshape(inside, shape=_along(axis, rank(x), size)), found, value)
    one = b.broadcast_to(value, shape=tuple([1 if i == axis else e for i, e in enumerate(shape_of(x))]))
    return b.take(one if count == 0 else b.concat(x, one, axis=axis), b.where(inside, at, extent), axis=axis)


def _along(axis: int, n: int, size: Index) -> Sequence[Index]:
    return tuple([size if i == axis else 1 for i in range(n)])


def arange(node: OnnxNode) -> Converted:
    """Range."""
    b = node.b
    start, limit, delta = (b.reshape(node.input(i), shape=()) for i in range(3))
    dtype = start.type.dtype
    distance = b.subtract(limit, start)
    if is_float(start):
        wide = dtype if dtype == "float64" else "float32"
        steps = b.cast(b.ceil(b.divide(cast_to(b, distance, wide), cast_to(b, delta, wide))), dtype="int64")
    else:
        distance, step = cast_to(b, distance, "int64"), cast_to(b, delta, "int64")
        steps = b.neg(b.floor_divide(b.neg(distance), step))
    some = b.maximum(steps, b.constant(0, "int64"))
    count = b.read_size(_only_if(b, b.not_equal(delta, b.constant(0, dtype)), some), "count")
    every = b.arange(start=0, stop=count, step=1, dtype=dtype)
    return b.add(start, b.multiply(every, delta))
