"""Operators that move elements and compute none: views, permutations, slices, concatenation, padding.

Each element of a result is one element of one operand, so all of them are injective, and a fuser may read through them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tunesmith.graph.ir.operator import INJECTIVE, GraphOperator
from tunesmith.graph.operators.axes import axes_of, axis_of
from tunesmith.ir.expr import Expr, select
from tunesmith.ir.poly import ONE, ZERO, Index, Poly, ceildiv, maximum, minimum, mod, poly, product
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError


def _groups(old: Sequence[Poly], new: Sequence[Poly]) -> list[tuple[list[int], list[int]]]:
    """The dimensions of two shapes of one size in the smallest groups of equal size, extents of 1 left out.

    Only products are compared, never their order, so sizes that are known at the call only are taken apart as well.
    """
    left, right = [[d for d, e in enumerate(shape) if e != 1] for shape in (old, new)]
    ours, theirs = [list(itertools.accumulate([s[d] for d in dims], lambda a, b: a * b)) for s, dims in ((old, left), (new, right))]
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    for k, size in enumerate(ours):
        m = next((m for m in range(j, len(theirs)) if theirs[m] == size), None)
        if m is not None:
            groups.append((left[i : k + 1], right[j : m + 1]))
            i, j = k + 1, m + 1
    return groups


def _source_index(old: Sequence[Poly], new: Sequence[Poly], index: Sequence[Poly]) -> tuple[Poly, ...]:
    """Where the element at `index` of the shape `new` lies in the shape `old`: a dimension that stays is indexed as it is, and only a
    group of dimensions that is cut anew needs divisions."""
    at = [ZERO] * len(old)
    for ours, theirs in _groups(old, new):
        flat = ZERO
        for d in theirs:
            flat = flat * new[d] + index[d]
        for place, d in enumerate(ours):
            step = flat // product([old[e] for e in ours[place + 1 :]])
            at[d] = mod(step, old[d]) if place else step
    return tuple(at)


def _viewed(x: Tensor, shape: Sequence[Index], name: str) -> Tensor:
    extents = [poly(e) for e in shape]
    if product(x.shape) != product(extents):
        raise ScriptError(f"the {product(x.shape)} elements of {x!r} do not fill the shape [{', '.join(map(repr, extents))}]")
    return te.compute(extents, lambda *i: x[_source_index(x.shape, extents, i)], name)


def _reshape(x: Tensor, *, shape: Sequence[Index]) -> Tensor:
    return _viewed(x, shape, "reshape")


def _reshape_reference(x: np.ndarray, *, shape: Sequence[int]) -> np.ndarray:
    return x.reshape(shape)


RESHAPE = GraphOperator("reshape", INJECTIVE, _reshape, _reshape_reference, view=True)
"""The same elements in another shape; one extent may not be left open, importers compute it."""


def _expand_dims(x: Tensor, *, axes: int | Sequence[int]) -> Tensor:
    shape = list(x.shape)
    positions = axes_of(axes, len(shape) + (1 if isinstance(axes, int) else len(axes)))
    for a in sorted(positions):
        shape.insert(a, ONE)
    return _viewed(x, shape, "expand_dims")


def _expand_dims_reference(x: np.ndarray, *, axes: int | Sequence[int]) -> np.ndarray:
    return np.expand_dims(x, axes)


EXPAND_DIMS = GraphOperator("expand_dims", INJECTIVE, _expand_dims, _expand_dims_reference, view=True)
"""New dimensions of extent 1; `axes` are positions in the result."""


def _squeeze(x: Tensor, *, axes: int | Sequence[int]) -> Tensor:
    gone = axes_of(axes, len(x.shape))
    for a in gone:
        if x.shape[a] != 1:
            raise ScriptError(f"axis {a} of {x!r} has the extent {x.shape[a]}; only axes of extent 1 can be left out")
    return _viewed(x, [e for d, e in enumerate(x.shape) if d not in gone], "squeeze")


def _squeeze_reference(x: np.ndarray, *, axes: int | Sequence[int]) -> np.ndarray:
    return np.squeeze(x, axes)


SQUEEZE = GraphOperator("squeeze", INJECTIVE, _squeeze, _squeeze_reference, view=True)


def _permute_dims(x: Tensor, *, axes: Sequence[int] | None = None) -> Tensor:
    rank = len(x.shape)
    order = tuple(range(rank))[::-1] if axes is None else axes_of(axes, rank)
    if len(order) != rank:
        raise ScriptError(f"axes {axes} must name each of the {rank} axes of {x!r} once")
    return te.compute([x.shape[a] for a in order], lambda *i: x[tuple([i[order.index(d)] for d in range(rank)])], "permute_dims")


def _permute_dims_reference(x: np.ndarray, *, axes: Sequence[int] | None = None) -> np.ndarray:
    return x.transpose(axes)


PERMUTE_DIMS = GraphOperator("permute_dims", INJECTIVE, _permute_dims, _permute_dims_reference)


def _broadcast_to(x: Tensor, *, shape: Sequence[Index]) -> Tensor:
    extents = [poly(e) for e in shape]
    lead = len(extents) - len(x.shape)
    if lead < 0 or any(e not in (1, f) for e, f in zip(x.shape, extents[lead:], strict=True)):
        raise ScriptError(f"{x!r} cannot be repeated to the shape [{', '.join(map(repr, extents))}]")
    return te.compute(extents, lambda *i: x[tuple([ZERO if e == 1 else k for e, k in zip(x.shape, i[lead:], strict=True)])], "broadcast_to")


def _broadcast_to_reference(x: np.ndarray, *, shape: Sequence[int]) -> np.ndarray:
    return np.broadcast_to(x, shape)


BROADCAST_TO = GraphOperator("broadcast_to", INJECTIVE, _broadcast_to, _broadcast_to_reference)
"""Repeated along new dimensions in front and along those of extent 1, as numpy does it."""


FEW_OPERANDS = 8
"""Operands of concat that are tried one after the other; of more, half are left out by each comparison."""


def _concat(*xs: Tensor, axis: int) -> Tensor:
    if not xs:
        raise ScriptError("there is nothing to put together")
    first = xs[0]
    a = axis_of(axis, len(first.shape))
    for x in xs[1:]:
        others = [tuple([e for d, e in enumerate(t.shape) if d != a]) for t in (first, x)]
        if len(x.shape) != len(first.shape) or others[0] != others[1] or x.dtype != first.dtype:
            raise ScriptError(f"{first!r} and {x!r} differ in more than the extent of axis {a}")
    starts = list(itertools.accumulate([x.shape[a] for x in xs], lambda p, q: p + q, initial=ZERO))

    def element(*i: Poly) -> Expr:
        return among(0, len(xs), i)

    def among(first: int, last: int, i: tuple[Poly, ...]) -> Expr:
        """The element of the operands from `first` to `last`: one after the other if they are few, else by halves."""
        if last - first == 1:
            return xs[first][(*i[:a], i[a] - starts[first], *i[a + 1 :])]
        middle = first + 1 if last - first <= FEW_OPERANDS else (first + last) // 2
        return select(i[a] < starts[middle], among(first, middle, i), among(middle, last, i))

    return te.compute([starts[-1] if d == a else e for d, e in enumerate(first.shape)], element, "concat")


def _concat_reference(*xs: np.ndarray, axis: int) -> np.ndarray:
    return np.concatenate(xs, axis)


CONCAT = GraphOperator("concat", INJECTIVE, _concat, _concat_reference)


def _split(x: Tensor, *, sizes: Sequence[Index], axis: int) -> list[Tensor]:
    a = axis_of(axis, len(x.shape))
    starts = list(itertools.accumulate([poly(s) for s in sizes], lambda p, q: p + q, initial=ZERO))
    if starts[-1] != x.shape[a]:
        raise ScriptError(f"the parts {', '.join(map(str, sizes))} do not add up to the extent {x.shape[a]} of axis {a} of {x!r}")

    def part(start: Poly, size: Index) -> Tensor:
        shape = [poly(size) if d == a else e for d, e in enumerate(x.shape)]
        return te.compute(shape, lambda *i: x[(*i[:a], i[a] + start, *i[a + 1 :])], "split")

    return [part(start, size) for start, size in zip(starts[:-1], sizes, strict=True)]


def _split_reference(x: np.ndarray, *, sizes: Sequence[int], axis: int) -> list[np.ndarray]:
    return np.split(x, list(itertools.accumulate(sizes))[:-1], axis)


SPLIT = GraphOperator("split", INJECTIVE, _split, _split_reference)
"""Parts of the given extents along an axis, in order."""


def _checked_range(x: Tensor, a: int, start: Poly, end: Poly, step: int) -> None:
    """Refuse what numbers show to be out of range."""
    last = x.shape[a].const
    low, high = (start.const, end.const) if step > 0 else (end.const, start.const)
    wrong = (low is not None and low < (0 if step > 0 else -1)) or (
        high is not None and last is not None and high > (last if step > 0 else last - 1)
    )
    if wrong:
        raise ScriptError(
            f"the range {start}:{end}:{step} is not within axis {a} of {x!r}; clamp its bounds before, -1 for an end before element 0"
        )


def _strided_slice(
    x: Tensor, *, axes: Sequence[int], begin: Sequence[Index], end: Sequence[Index], strides: Sequence[int] | None = None
) -> Tensor:
    where = axes_of(axes, len(x.shape))
    steps = tuple(strides) if strides is not None else (1,) * len(where)
    if not len(where) == len(begin) == len(end) == len(steps) or 0 in steps:
        raise ScriptError(f"axes {axes}, begin {begin}, end {end} and strides {strides} must be equally many, and no stride 0")
    cuts = {a: (poly(b), poly(e), s) for a, b, e, s in zip(where, begin, end, steps, strict=True)}
    shape = list(x.shape)
    for a, (low, high, step) in cuts.items():
        _checked_range(x, a, low, high, step)
        shape[a] = ceildiv(high - low, step) if step > 0 else ceildiv(low - high, -step)

    def element(*i: Poly) -> Expr:
        return x[tuple([cuts[d][0] + k * cuts[d][2] if d in cuts else k for d, k in enumerate(i)])]

    return te.compute(shape, element, "strided_slice")


def _strided_slice_reference(
    x: np.ndarray, *, axes: Sequence[int], begin: Sequence[int], end: Sequence[int], strides: Sequence[int] | None = None
) -> np.ndarray:
    cuts = [slice(None)] * x.ndim
    for a, low, high, step in zip(axes, begin, end, strides or (1,) * len(axes), strict=True):
        cuts[a] = slice(low, None if step < 0 and high < 0 else high, step)
    return x[tuple(cuts)]


STRIDED_SLICE = GraphOperator("strided_slice", INJECTIVE, _strided_slice, _strided_slice_reference)
"""x[begin:end:stride] along some axes.  Bounds are clamped already: begin names an element; end is exclusive, and -1 stands before element
0 where the stride is negative."""

PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _pad(x: Tensor, *, before: Sequence[int], after: Sequence[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    if not len(before) == len(after) == len(x.shape) or any(p < 0 for p in (*before, *after)):
        raise ScriptError(f"before {before} and after {after} must be a number >= 0 for each of the {len(x.shape)} axes of {x!r}")
    if mode not in PAD_MODES:
        raise ScriptError(f"unknown mode {mode!r} of padding; modes are {', '.join(PAD_MODES)}")
    for d, extent in enumerate(x.shape):
        if mode == "reflect" and extent.const is not None and max(before[d], after[d]) >= extent.const:
            raise ScriptError(
                f"axis {d} of {x!r} cannot be reflected over {max(before[d], after[d])} elements; it must be longer than that"
            )

    def place(d: int, i: Poly) -> Poly:
        """The element of `x` that stands at position i of dimension d."""
        inside, last = i - before[d], x.shape[d] - 1
        if mode == "constant" or (not before[d] and not after[d]):
            return inside
        if mode == "edge":
            return minimum(maximum(inside, ZERO), last)
        if mode == "wrap":
            return mod(inside, x.shape[d])
        down = maximum(inside, -inside)
        return last - maximum(last - down, down - last)

    def element(*i: Poly) -> Expr:
        loaded = x[tuple([place(d, k) for d, k in enumerate(i)])]
        low = [k >= before[d] for d, k in enumerate(i) if mode == "constant" and before[d]]
        high = [k < x.shape[d] + before[d] for d, k in enumerate(i) if mode == "constant" and after[d]]
        return te.if_then_else(te.all(*low, *high), loaded, value) if low or high else loaded

    return te.compute([e + before[d] + after[d] for d, e in enumerate(x.shape)], element, "pad")


def _pad_reference(x: np.ndarray, *, before: Sequence[int], after: Sequence[int], mode: str = "constant", value: float = 0.0) -> np.ndarray:
    width = list(zip(before, after, strict=True))
    if mode == "constant":
        return np.pad(x, width, constant_values=np.asarray(value).astype(x.dtype))
    if mode == "reflect":
        return np.pad(x, width, mode="reflect")
    return np.pad(x, width, mode="edge") if mode == "edge" else np.pad(x, width, mode="wrap")


PAD = GraphOperator("pad", INJECTIVE, _pad, _pad_reference)
"""Elements added at both ends of each axis: `value`, those of the operand mirrored at its ends, the outermost, or those of its other
end."""


def _flip(x: Tensor, *, axes: int | Sequence[int]) -> Tensor:
    turned = axes_of(axes, len(x.shape))
    return te.compute(x.shape, lambda *i: x[tuple([x.shape[d] - 1 - k if d in turned else k for d, k in enumerate(i)])], "flip")


def _flip_reference(x: np.ndarray, *, axes: int | Sequence[int]) -> np.ndarray:
    return np.flip(x, axes if isinstance(axes, int) else tuple(axes))


FLIP = GraphOperator("flip", INJECTIVE, _flip, _flip_reference)


def _tile(x: Tensor, *, repeats: Sequence[int]) -> Tensor:
    rank = max(len(x.shape), len(repeats))
    lead = rank - len(x.shape)
    counts = (1,) * (rank - len(repeats)) + tuple(repeats)
    extents = (ONE,) * lead + x.shape

    def element(*i: Poly) -> Expr:
        return x[tuple([i[lead + d] if counts[lead + d] == 1 else mod(i[lead + d], e) for d, e in enumerate(x.shape)])]

    return te.compute([e * n for e, n in zip(extents, counts, strict=True)], element, "tile")


def _tile_reference(x: np.ndarray, *, repeats: Sequence[int]) -> np.ndarray:
    return np.tile(x, repeats)


TILE = GraphOperator("tile", INJECTIVE, _tile, _tile_reference)
"""Copies side by side, as numpy.tile: fewer `repeats` than axes belong to the last ones, and more make new axes in front."""
