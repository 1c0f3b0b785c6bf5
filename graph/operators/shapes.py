"""Define operators that only move elements: views, permutations, slices, concatenation, padding.

Each result element is one element of one operand, so all of them are injective and can be fused into their users.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tunesmith.graph.ir.operator import INJECTIVE, OPAQUE, GraphOperator
from tunesmith.graph.operators.axes import axes_of, axis_of, permutation_of
from tunesmith.ir.expr import Expr, select
from tunesmith.ir.poly import ONE, ZERO, Index, Poly, ceildiv, maximum, minimum, mod, poly, product
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError


def _groups(old: Sequence[Poly], new: Sequence[Poly]) -> list[tuple[list[int], list[int]]]:
    """The dimensions of two shapes of equal size in the smallest groups of equal size, without extents of 1.

    Products are compared as expressions, so dynamic extents are separated as well.
    """
    old_dims, new_dims = [[d for d, e in enumerate(shape) if e != 1] for shape in (old, new)]
    old_sizes, new_sizes = [
        list(itertools.accumulate([s[d] for d in dims], lambda a, b: a * b)) for s, dims in ((old, old_dims), (new, new_dims))
    ]
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    for k, size in enumerate(old_sizes):
        m = next((m for m in range(j, len(new_sizes)) if new_sizes[m] == size), None)
        if m is not None:
            groups.append((old_dims[i : k + 1], new_dims[j : m + 1]))
            i, j = k + 1, m + 1
    return groups


def _source_index(old: Sequence[Poly], new: Sequence[Poly], index: Sequence[Poly]) -> tuple[Poly, ...]:
    """The index in the shape `old` of the element at `index` in the shape `new`.

    Unchanged dimensions keep their index; only regrouped dimensions need divisions.
    """
    at = [ZERO] * len(old)
    for old_dims, new_dims in _groups(old, new):
        flat = ZERO
        for d in new_dims:
            flat = flat * new[d] + index[d]
        for position, d in enumerate(old_dims):
            quotient = flat // product([old[e] for e in old_dims[position + 1 :]])
            at[d] = mod(quotient, old[d]) if position else quotient
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


def _row(x: Tensor, *, index: Index) -> Tensor:
    at = poly(index)
    if not x.shape:
        raise ScriptError("a number has no rows")
    if at.const is not None and (at.const < 0 or (x.shape[0].const is not None and at.const >= x.shape[0].const)):
        raise ScriptError(f"row {at} is out of range: {x!r} has {x.shape[0]} rows")
    return te.compute(x.shape[1:], lambda *i: x[(at, *i)], "row")


# A row is a copy of its own, so that the functions that read it are the same in each iteration.
ROW = GraphOperator(
    "row",
    OPAQUE,
    _row,
    lambda x, *, index: x[index],
    meaning="The elements with one index along the first axis, such as the number of the iteration of a loop.",
)

RESHAPE = GraphOperator(
    "reshape",
    INJECTIVE,
    _reshape,
    _reshape_reference,
    view=True,
    meaning="The same elements in another shape; all extents must be given, importers compute missing ones.",
)


def _expand_dims(x: Tensor, *, axes: int | Sequence[int]) -> Tensor:
    shape = list(x.shape)
    positions = axes_of(axes, len(shape) + (1 if isinstance(axes, int) else len(axes)))
    for a in sorted(positions):
        shape.insert(a, ONE)
    return _viewed(x, shape, "expand_dims")


def _expand_dims_reference(x: np.ndarray, *, axes: int | Sequence[int]) -> np.ndarray:
    return np.expand_dims(x, axes)


EXPAND_DIMS = GraphOperator(
    "expand_dims",
    INJECTIVE,
    _expand_dims,
    _expand_dims_reference,
    view=True,
    meaning="New dimensions of extent 1; `axes` are positions in the result.",
)


def _squeeze(x: Tensor, *, axes: int | Sequence[int]) -> Tensor:
    removed = axes_of(axes, len(x.shape))
    for a in removed:
        if x.shape[a] != 1:
            raise ScriptError(f"axis {a} of {x!r} has the extent {x.shape[a]}; only axes of extent 1 can be removed")
    return _viewed(x, [e for d, e in enumerate(x.shape) if d not in removed], "squeeze")


def _squeeze_reference(x: np.ndarray, *, axes: int | Sequence[int]) -> np.ndarray:
    return np.squeeze(x, axes)


SQUEEZE = GraphOperator(
    "squeeze", INJECTIVE, _squeeze, _squeeze_reference, view=True, meaning="The same elements without axes of extent 1."
)


def _permute_dims(x: Tensor, *, axes: Sequence[int] | None = None) -> Tensor:
    rank = len(x.shape)
    order = permutation_of(axes, rank)
    return te.compute([x.shape[a] for a in order], lambda *i: x[tuple([i[order.index(d)] for d in range(rank)])], "permute_dims")


def _permute_dims_reference(x: np.ndarray, *, axes: Sequence[int] | None = None) -> np.ndarray:
    return x.transpose(axes)


PERMUTE_DIMS = GraphOperator(
    "permute_dims",
    INJECTIVE,
    _permute_dims,
    _permute_dims_reference,
    meaning="A permutation of the axes: axis i of the result is axis `axes[i]` of x; without `axes` their order is reversed.",
)


def _broadcast_to(x: Tensor, *, shape: Sequence[Index]) -> Tensor:
    extents = [poly(e) for e in shape]
    lead = len(extents) - len(x.shape)
    if lead < 0 or any(e not in (1, f) for e, f in zip(x.shape, extents[lead:], strict=True)):
        raise ScriptError(f"{x!r} cannot be broadcast to the shape [{', '.join(map(repr, extents))}]")
    return te.compute(extents, lambda *i: x[tuple([ZERO if e == 1 else k for e, k in zip(x.shape, i[lead:], strict=True)])], "broadcast_to")


def _broadcast_to_reference(x: np.ndarray, *, shape: Sequence[int]) -> np.ndarray:
    return np.broadcast_to(x, shape)


BROADCAST_TO = GraphOperator(
    "broadcast_to",
    INJECTIVE,
    _broadcast_to,
    _broadcast_to_reference,
    meaning="numpy.broadcast_to: repeat along new leading dimensions and along dimensions of extent 1.",
)


FEW_OPERANDS = 8
"""Maximum number of concat operands that are selected by a chain of comparisons; more are selected by binary search."""


def _concat(*xs: Tensor, axis: int) -> Tensor:
    if not xs:
        raise ScriptError("concat needs at least one operand")
    first = xs[0]
    a = axis_of(axis, len(first.shape))
    for x in xs[1:]:
        others = [tuple([e for d, e in enumerate(t.shape) if d != a]) for t in (first, x)]
        if len(x.shape) != len(first.shape) or others[0] != others[1] or x.dtype != first.dtype:
            raise ScriptError(f"{first!r} and {x!r} differ in more than the extent of axis {a}")
    starts = list(itertools.accumulate([x.shape[a] for x in xs], lambda p, q: p + q, initial=ZERO))

    def element(*i: Poly) -> Expr:
        return choose(0, len(xs), i)

    def choose(first: int, last: int, i: tuple[Poly, ...]) -> Expr:
        """Select among the operands from `first` to `last`: by a chain if they are few, else by binary search."""
        if last - first == 1:
            return xs[first][(*i[:a], i[a] - starts[first], *i[a + 1 :])]
        middle = first + 1 if last - first <= FEW_OPERANDS else (first + last) // 2
        return select(i[a] < starts[middle], choose(first, middle, i), choose(middle, last, i))

    return te.compute([starts[-1] if d == a else e for d, e in enumerate(first.shape)], element, "concat")


def _concat_reference(*xs: np.ndarray, axis: int) -> np.ndarray:
    return np.concatenate(xs, axis)


CONCAT = GraphOperator("concat", INJECTIVE, _concat, _concat_reference, meaning="The operands one after another along an axis.")


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


SPLIT = GraphOperator("split", INJECTIVE, _split, _split_reference, meaning="Parts of the given extents along an axis, in order.")


def _checked_range(x: Tensor, a: int, start: Poly, end: Poly, step: int) -> None:
    """Raise ScriptError if constant bounds are out of range."""
    last = x.shape[a].const
    low, high = (start.const, end.const) if step > 0 else (end.const, start.const)
    wrong = (low is not None and low < (0 if step > 0 else -1)) or (
        high is not None and last is not None and high > (last if step > 0 else last - 1)
    )
    if wrong:
        raise ScriptError(
            f"the range {start}:{end}:{step} exceeds axis {a} of {x!r}; clamp its bounds first, to -1 for an end before element 0"
        )


def _strided_slice(
    x: Tensor, *, axes: Sequence[int], begin: Sequence[Index], end: Sequence[Index], strides: Sequence[int] | None = None
) -> Tensor:
    where = axes_of(axes, len(x.shape))
    steps = tuple(strides) if strides is not None else (1,) * len(where)
    if not len(where) == len(begin) == len(end) == len(steps) or 0 in steps:
        raise ScriptError(f"axes {axes}, begin {begin}, end {end} and strides {strides} must have equal lengths, and strides must not be 0")
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
        some = (high - low) * step > 0  # else -1 as `begin` would be the last element
        cuts[a] = slice(low, None if step < 0 and high < 0 else high, step) if some else slice(0, 0)
    return x[tuple(cuts)]


STRIDED_SLICE = GraphOperator(
    "strided_slice",
    INJECTIVE,
    _strided_slice,
    _strided_slice_reference,
    meaning=(
        "x[begin:end:stride] along some axes. Bounds must be clamped: begin is the index of an element; end is "
        "exclusive, and for a negative stride -1 is the end before element 0."
    ),
)

PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _pad(x: Tensor, *, before: Sequence[int], after: Sequence[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    if not len(before) == len(after) == len(x.shape) or any(p < 0 for p in (*before, *after)):
        raise ScriptError(f"before {before} and after {after} must be a number >= 0 for each of the {len(x.shape)} axes of {x!r}")
    if mode not in PAD_MODES:
        raise ScriptError(f"unknown mode {mode!r} of padding; modes are {', '.join(PAD_MODES)}")
    for d, extent in enumerate(x.shape):
        if mode == "reflect" and extent.const is not None and max(before[d], after[d]) >= extent.const:
            raise ScriptError(f"axis {d} of {x!r} cannot be reflected over {max(before[d], after[d])} elements; its extent must be larger")

    def source(d: int, i: Poly) -> Poly:
        """The index in `x` of position i of dimension d."""
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
        loaded = x[tuple([source(d, k) for d, k in enumerate(i)])]
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


PAD = GraphOperator(
    "pad",
    INJECTIVE,
    _pad,
    _pad_reference,
    meaning=(
        "Add elements at both ends of each axis: `value` (constant), mirrored elements (reflect), the outermost element "
        "(edge), or elements of the other end (wrap)."
    ),
)


def _flip(x: Tensor, *, axes: int | Sequence[int]) -> Tensor:
    flipped = axes_of(axes, len(x.shape))
    return te.compute(x.shape, lambda *i: x[tuple([x.shape[d] - 1 - k if d in flipped else k for d, k in enumerate(i)])], "flip")


def _flip_reference(x: np.ndarray, *, axes: int | Sequence[int]) -> np.ndarray:
    return np.flip(x, axes if isinstance(axes, int) else tuple(axes))


FLIP = GraphOperator("flip", INJECTIVE, _flip, _flip_reference, meaning="The elements in reverse order along the given axes.")


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


TILE = GraphOperator(
    "tile",
    INJECTIVE,
    _tile,
    _tile_reference,
    meaning="numpy.tile: if there are fewer `repeats` than axes, they apply to the last axes; if there are more, leading axes are added.",
)
