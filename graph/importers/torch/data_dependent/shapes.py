"""Convert torch operators with results whose shapes depend on data: masks, nonzero, unique, repeat_interleave, bincount.

All of them are linear in the number of elements, or sort: cumulative counts give each kept element its place, a scatter moves the positions
of the kept elements there, and a slice with a size that is read from the count cuts off the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, TorchCall, converts
from tunesmith.graph.importers.torch.data_dependent.sizes import read_extent
from tunesmith.graph.ir.node import Operand
from tunesmith.ir.poly import Index, Poly, poly, product

_MOST_COLUMNS = 64
"""Rows are sorted by one column after the other, each with operators of its own."""


def _range(call: TorchCall, count: Index) -> Operand:
    made: Operand = call.emit("arange", start=0, stop=count, step=1, dtype="int64")
    return made


def _cut(call: TorchCall, x: Operand, count: Index) -> Operand:
    made: Operand = call.emit("strided_slice", x, axes=(0,), begin=(0,), end=(count,), strides=(1,))
    return made


def _flags(call: TorchCall, mask: Operand) -> tuple[Operand, Operand]:
    """A mask as a vector of bools, and as 0 and 1."""
    flat = call.reshaped(call.cast(mask, "bool"), (product(mask.type.shape),))
    return flat, call.cast(flat, "int64")


def _slots(call: TorchCall, kept: Operand, counts: Operand, last: Index) -> Operand:
    """The place of each kept element among the kept ones, from their cumulative counts; `last` for the others."""
    at = call.emit("subtract", counts, call.number(1, "int64"))
    made: Operand = call.emit("where", kept, at, call.operand(last if isinstance(last, int) else poly(last), "int64"))
    return made


def positions(call: TorchCall, mask: Operand, extent: Poly) -> Operand:
    """The flat positions of the true elements of a mask; `extent` is their number, which is read here."""
    flat, ones = _flags(call, mask)
    size = flat.type.shape[0]
    guard = read_extent(call, call.emit("sum", ones, axes=(0,)), extent, size)
    slots = _slots(call, flat, call.emit("cumsum", ones, axis=0), size)
    zeros = call.emit("full", shape=(size + 1,), value=0, dtype="int64")
    found = _cut(call, call.emit("scatter_elements", zeros, slots, _range(call, size), axis=0), extent)
    return found if guard is None else call.emit("add", found, guard)


def _columns(call: TorchCall, flat: Operand, shape: Sequence[Poly]) -> list[Operand]:
    """The index along each axis of elements with these flat positions."""
    columns = []
    for axis, extent in enumerate(shape):
        stride = product(shape[axis + 1 :])
        index = flat if stride == 1 else call.emit("floor_divide", flat, call.operand(stride, "int64"))
        columns.append(index if axis == 0 else call.emit("mod", index, call.operand(extent, "int64")))
    return columns


def _as_rows(call: TorchCall, columns: Sequence[Operand]) -> Operand:
    """Vectors as the columns of a matrix."""
    wide = [call.emit("expand_dims", c, axes=(1,)) for c in columns]
    made: Operand = wide[0] if len(wide) == 1 else call.emit("concat", *wide, axis=1)
    return made


@converts("aten.nonzero.default")
def nonzero(call: TorchCall, x: Operand) -> Operand:
    """The indices of the elements that are not zero, as rows."""
    if not x.type.shape:
        call.refuse("its operand is a number; index a tensor with at least one axis")
    return _as_rows(call, _columns(call, positions(call, x, call.shape[0]), x.type.shape))


@converts("aten.nonzero_static.default")
def nonzero_static(call: TorchCall, x: Operand, size: Any = None, fill: int = -1, *_: Any) -> Operand:
    """The first indices of elements that are not zero, as rows, filled up to a fixed number of rows."""
    if not x.type.shape:
        call.refuse("its operand is a number; index a tensor with at least one axis")
    flat, ones = _flags(call, x)
    rows = call.shape[0]
    counts = call.emit("cumsum", ones, axis=0)
    slots = call.emit("minimum", _slots(call, flat, counts, rows), call.operand(rows, "int64"))
    zeros = call.emit("full", shape=(rows + 1,), value=0, dtype="int64")
    found = _cut(call, call.emit("scatter_elements", zeros, slots, _range(call, flat.type.shape[0]), axis=0), rows)
    is_found = call.emit("less", _range(call, rows), call.emit("sum", ones, axes=(0,)))
    return _as_rows(call, [call.emit("where", is_found, c, call.number(fill, "int64")) for c in _columns(call, found, x.type.shape)])


@converts("aten.masked_select.default")
def masked_select(call: TorchCall, x: Operand, mask: Operand) -> Operand:
    """The elements at which a mask is true, as a vector."""
    shape = call.emit("where", mask, x, x).type.shape
    x, mask = [v if v.type.shape == shape else call.emit("broadcast_to", v, shape=shape) for v in (x, mask)]
    made: Operand = call.emit("take", call.reshaped(x, (product(shape),)), positions(call, mask, call.shape[0]), axis=0)
    return made


def with_mask(call: TorchCall, x: Operand, indices: Sequence[Operand | None]) -> tuple[Operand, list[Operand | None], Operand | None]:
    """Replace the bool mask among the indices of x.

    Returns:
        x, perhaps with the axes of the mask in one; the indices; and the result if the mask is the only index.
    """
    (at,) = [i for i, index in enumerate(indices) if index is not None and index.type.dtype in ("bool", "uint8")]
    mask = indices[at]
    assert mask is not None
    axis, rank = at, len(mask.type.shape)
    if rank == 0:
        x, mask, rank = call.emit("expand_dims", x, axes=(axis,)), call.reshaped(mask, (1,)), 1
    if all(i is None for i in [*indices[:at], *indices[at + 1 :]]):
        shape = x.type.shape
        rows = call.reshaped(x, (*shape[:axis], product(mask.type.shape), *shape[axis + rank :]))
        return x, list(indices), call.emit("take", rows, positions(call, mask, call.shape[axis]), axis=axis)
    extent = next((e for e in call.shape if call.sizes.reads_data(e)), None)
    if extent is None:
        call.refuse("it is indexed with a bool mask and with tensors that fix the number of true elements; index in two steps")
    columns = _columns(call, positions(call, mask, extent), mask.type.shape)
    return x, [*indices[:at], *columns, *indices[at + 1 :]], None


def put_masked(call: TorchCall, x: Operand, mask: Operand, values: Operand) -> Operand:
    """x with the slices at which a mask of its leading axes is true replaced by the rows of the values, in order."""
    rank = len(mask.type.shape)
    rest = x.type.shape[rank:]
    flat, ones = _flags(call, mask)
    place = call.emit("cumsum", ones, axis=0, exclusive=True)
    rows = values if values.type.shape[1:] == rest else call.emit("broadcast_to", values, shape=(values.type.shape[0], *rest))
    last = call.operand(rows.type.shape[0] - 1, "int64")
    taken = call.emit("take", rows, call.emit("maximum", call.emit("minimum", place, last), call.number(0, "int64")), axis=0)
    wide = call.reshaped(flat, (*mask.type.shape, *[poly(1)] * len(rest)))
    made: Operand = call.emit("where", wide, call.reshaped(taken, x.type.shape), x)
    return made


# ---- equal elements ---------------------------------------------------------------------------------------------------------------------


def _groups(call: TorchCall, rows: Operand, order: Operand | None, inverse_shape: Sequence[Poly]) -> tuple[Operand, Operand, Operand]:
    """Groups of equal adjacent rows.

    Args:
        call: the node; its first result has one row for each group.
        rows: a vector, or a matrix.
        order: the positions of the rows before they were sorted.
        inverse_shape: shape of the second result.
    Returns:
        The position of the first row of each group, the group of each row in the order before, and the size of each group.
    """
    size = rows.type.shape[0]
    place = _range(call, size)
    last = call.emit("maximum", call.emit("subtract", place, call.number(1, "int64")), call.number(0, "int64"))
    before = call.emit("take", rows, last, axis=0)
    differs = call.emit("not_equal", rows, before)
    differs = differs if len(rows.type.shape) == 1 else call.emit("any", differs, axes=(1,))
    starts = call.emit("logical_or", differs, call.emit("equal", place, call.number(0, "int64")))
    count = call.created and call.sizes.data[call.created[0]]
    extent = count if isinstance(count, Poly) else call.shape[0]
    first = positions(call, starts, extent)
    group = call.emit("subtract", call.emit("cumsum", call.cast(starts, "int64"), axis=0), call.number(1, "int64"))
    ones = call.emit("full", shape=(size,), value=1, dtype="int64")
    zeros = call.emit("full", shape=(extent,), value=0, dtype="int64")
    counts = call.emit("scatter_elements", zeros, group, ones, axis=0, reduction="add")
    if order is not None:
        group = call.emit("scatter_elements", call.emit("full", shape=(size,), value=0, dtype="int64"), order, group, axis=0)
    return first, call.reshaped(group, inverse_shape), counts


def _key(call: TorchCall, x: Operand) -> Operand:
    return call.cast(x, "uint8") if x.type.dtype == "bool" else x


@converts("aten._unique2.default")
def unique(call: TorchCall, x: Operand, _: bool = True, inverse: bool = False, counts: bool = False) -> Sequence[Operand | None]:
    """The distinct elements in order, the place of each element among them, and how often each occurs."""
    keys = _key(call, call.reshaped(x, (product(x.type.shape),)))
    order = call.emit("argsort", keys, axis=0, descending=False, count=None)
    rows = call.emit("take", keys, order, axis=0)
    first, group, sizes = _groups(call, rows, order, x.type.shape)
    return [call.cast(call.emit("take", rows, first, axis=0), x.type.dtype), group if inverse else None, sizes if counts else None]


TORCH_OPERATORS.register("aten._unique.default", lambda call, x, ordered, inverse: unique(call, x, ordered, inverse)[:2])


@converts("aten.unique_consecutive.default")
def unique_consecutive(
    call: TorchCall, x: Operand, inverse: bool = False, counts: bool = False, dim: int | None = None
) -> Sequence[Operand | None]:
    """One of each group of equal adjacent elements, or of equal adjacent slices of an axis."""
    if dim is not None and len(x.type.shape) > 1:
        return _unique_slices(call, x, dim, is_sorted=False)
    rows = _key(call, call.reshaped(x, (product(x.type.shape),)))
    first, group, sizes = _groups(call, rows, None, x.type.shape)
    return [call.cast(call.emit("take", rows, first, axis=0), x.type.dtype), group if inverse else None, sizes if counts else None]


def _unique_slices(call: TorchCall, x: Operand, dim: int, is_sorted: bool) -> Sequence[Operand]:
    """The distinct slices of an axis; sorted by their elements, the first one first, or in groups of adjacent ones."""
    axis = call.axis(dim, len(x.type.shape))
    axes = (axis, *[a for a in range(len(x.type.shape)) if a != axis])
    moved = x if axis == 0 else call.emit("permute_dims", x, axes=axes)
    size, columns = moved.type.shape[0], product(moved.type.shape[1:])
    rows = _key(call, call.reshaped(moved, (size, columns)))
    order = None
    if is_sorted:
        if columns.const is None or columns.const > _MOST_COLUMNS:
            call.refuse(f"it sorts slices of {columns} elements; more than {_MOST_COLUMNS}, or a dynamic number, are not supported")
        order = _sorted_rows(call, rows, columns.as_int())
        rows = call.emit("take", rows, order, axis=0)
    first, group, sizes = _groups(call, rows, order, (size,))
    found = call.cast(call.emit("take", rows, first, axis=0), x.type.dtype)
    shape = (first.type.shape[0], *moved.type.shape[1:])
    made = call.reshaped(found, shape)
    back = made if axis == 0 else call.emit("permute_dims", made, axes=tuple([axes.index(a) for a in range(len(axes))]))
    return [back, group, sizes]


def _sorted_rows(call: TorchCall, rows: Operand, columns: int) -> Operand:
    """The order of rows that sorts them by their first column, equal ones by their second, and so on: stable sorts from the last on."""
    order = _range(call, rows.type.shape[0])
    for k in reversed(range(columns)):
        column = call.emit("strided_slice", rows, axes=(1,), begin=(k,), end=(k + 1,), strides=(1,))
        keys = call.emit("take", call.reshaped(column, rows.type.shape[:1]), order, axis=0)
        order = call.emit("take", order, call.emit("argsort", keys, axis=0, descending=False, count=None), axis=0)
    return order


@converts("aten.unique_dim.default")
def unique_dim(call: TorchCall, x: Operand, dim: int, *_: Any) -> Sequence[Operand]:
    """The distinct slices of an axis in order."""
    return _unique_slices(call, x, dim, is_sorted=True)


# ---- counts -----------------------------------------------------------------------------------------------------------------------------


def _extreme(call: TorchCall, operator: str, x: Operand, other: int) -> Operand:
    """The greatest or least of the elements of a vector and another number; the vector may be empty."""
    more = call.emit("concat", x, call.constant([other], "int64"), axis=0)
    made: Operand = call.emit(operator, more, axes=(0,))
    return made


def _natural(call: TorchCall, x: Operand, count: Operand) -> Operand:
    """A count, or -1, which cannot be read, if an element is negative."""
    is_natural = call.emit("greater_equal", _extreme(call, "min", x, 0), call.number(0, "int64"))
    made: Operand = call.emit("where", is_natural, count, call.number(-1, "int64"))
    return made


@converts("aten.repeat_interleave.Tensor")
def repeat_interleave(call: TorchCall, repeats: Operand, output_size: Any = None) -> Operand:
    """The position of each count, as often as it says: how many positions before an element start a new one, less 1."""
    counts, extent = call.cast(repeats, "int64"), call.shape[0]
    guard = None
    if output_size is None:
        guard = read_extent(call, _natural(call, counts, call.emit("sum", counts, axes=(0,))), extent)
    starts = call.emit("minimum", call.emit("cumsum", counts, axis=0, exclusive=True), call.operand(extent, "int64"))
    ones = call.emit("full", shape=counts.type.shape, value=1, dtype="int64")
    zeros = call.emit("full", shape=(extent + 1,), value=0, dtype="int64")
    marks = call.emit("cumsum", call.emit("scatter_elements", zeros, starts, ones, axis=0, reduction="add"), axis=0)
    made = call.emit("subtract", _cut(call, marks, extent), call.number(1, "int64"))
    return call.cast(made if guard is None else call.emit("add", made, guard), call.dtype)


@converts("aten.bincount.default")
def bincount(call: TorchCall, x: Operand, weights: Operand | None = None, least: Any = 0) -> Operand:
    """How often each number from 0 on occurs, or the sums of the weights of equal numbers."""
    numbers, extent = call.cast(x, "int64"), call.shape[0]
    highest = call.emit("add", _extreme(call, "max", numbers, -1), call.number(1, "int64"))
    count = call.emit("maximum", highest, call.operand(least, "int64"))
    guard = read_extent(call, _natural(call, numbers, count), extent)
    numbers = numbers if guard is None else call.emit("add", numbers, guard)
    ones = call.emit("full", shape=numbers.type.shape, value=1, dtype=call.dtype) if weights is None else call.operand(weights)
    zeros = call.emit("full", shape=(extent,), value=0, dtype=call.dtype)
    made: Operand = call.emit("scatter_elements", zeros, numbers, ones, axis=0, reduction="add")
    return made
