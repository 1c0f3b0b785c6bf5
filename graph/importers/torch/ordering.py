"""Convert torch operators that order elements (sort, topk, median, ...), and cumulative operators other than sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, Converter, TorchCall, converts
from tunesmith.graph.importers.torch.reductions import norm_of
from tunesmith.graph.ir.node import Operand
from tunesmith.ir.poly import product
from tunesmith.support import dtype as dt


def _sorted(call: TorchCall, x: Operand, dim: int, descending: bool = False, count: Any = None) -> tuple[Operand, Operand]:
    """The elements of an axis in stable order, or the first `count` of them, and their indices; bools are ordered as integers."""
    if not x.type.shape:
        return x, call.number(0, "int64")
    axis = call.axis(dim, len(x.type.shape))
    keys = call.cast(x, "uint8") if x.type.dtype == "bool" else x
    order = call.emit("argsort", keys, axis=axis, descending=descending, count=count)
    return call.emit("gather_elements", x, order, axis=axis), order


@converts("aten.sort.default")
def sort(call: TorchCall, x: Operand, dim: int = -1, descending: bool = False) -> Sequence[Operand]:
    """Elements and indices in order; equal elements keep their order, which torch promises for `stable` only."""
    return _sorted(call, x, dim, descending)


TORCH_OPERATORS.register("aten.sort.stable", lambda call, x, _, dim, descending: _sorted(call, x, dim, descending))
TORCH_OPERATORS.register("aten.argsort.default", lambda call, x, dim, descending: _sorted(call, x, dim, descending)[1])
TORCH_OPERATORS.register("aten.argsort.stable", lambda call, x, _, dim, descending: _sorted(call, x, dim, descending)[1])
TORCH_OPERATORS.register("aten.msort.default", lambda call, x: _sorted(call, x, 0)[0])


@converts("aten.topk.default")
def topk(call: TorchCall, x: Operand, count: Any, dim: int, largest: bool, _: bool) -> Sequence[Operand]:
    """The `count` greatest or least elements in order, and their indices; of equal elements the first ones."""
    return _sorted(call, x, dim, largest, count)


def _one(call: TorchCall, values: Operand, dim: int, at: Any, keepdim: bool) -> Operand:
    """The slice of an axis at a position; the axis is removed unless `keepdim`."""
    if not values.type.shape:
        return values
    axis = call.axis(dim, len(values.type.shape))
    made = call.emit("strided_slice", values, axes=(axis,), begin=(at,), end=(at + 1,), strides=(1,))
    return made if keepdim else call.emit("squeeze", made, axes=(axis,))


@converts("aten.kthvalue.default")
def kthvalue(call: TorchCall, x: Operand, k: Any, dim: int, keepdim: bool) -> Sequence[Operand]:
    """The k-th least element, counted from 1, and its index."""
    return [_one(call, v, dim, k - 1, keepdim) for v in _sorted(call, x, dim)]


@converts("aten.median.dim")
def median(call: TorchCall, x: Operand, dim: int, keepdim: bool) -> Sequence[Operand]:
    """The lower of the middle elements and its index; the first NaN if there is one."""
    if not x.type.shape:
        return [x, call.number(0, "int64")]
    axis = call.axis(dim, len(x.type.shape))
    value, index = [_one(call, v, axis, (x.type.shape[axis] - 1) // 2, keepdim) for v in _sorted(call, x, axis)]
    if not dt.is_float(x.type.dtype):
        return [value, index]
    top = call.emit("max", x, axes=(axis,), keepdims=keepdim)
    missing = call.emit("isnan", top)
    first = call.emit("argmax", x, axis=axis, keepdims=keepdim)
    return [call.emit("where", missing, top, value), call.emit("where", missing, first, index)]


@converts("aten.nanmedian.dim")
def nanmedian(call: TorchCall, x: Operand, dim: int, keepdim: bool) -> Sequence[Operand]:
    """The lower of the middle elements that are not NaN, and its index; NaN if all are."""
    if not x.type.shape or not dt.is_float(x.type.dtype):
        return median(call, x, dim, keepdim)
    axis = call.axis(dim, len(x.type.shape))
    numbers = call.cast(call.emit("logical_not", call.emit("isnan", x)), "int64")
    count = call.emit("sum", numbers, axes=(axis,), keepdims=True)
    one, two = call.number(1, "int64"), call.number(2, "int64")
    at = call.emit("floor_divide", call.emit("maximum", call.emit("subtract", count, one), call.number(0, "int64")), two)
    found = [call.emit("gather_elements", v, at, axis=axis) for v in _sorted(call, x, axis)]
    return found if keepdim else [call.emit("squeeze", v, axes=(axis,)) for v in found]


def _of_all(convert: Any) -> Converter:
    """The values of an operator over an axis for all elements."""
    return lambda call, x: convert(call, call.reshaped(x, (product(x.type.shape),)), 0, False)[0]


TORCH_OPERATORS.register("aten.median.default", _of_all(median))
TORCH_OPERATORS.register("aten.nanmedian.default", _of_all(nanmedian))


# ---- positions in a sorted sequence -----------------------------------------------------------------------------------------------------


@converts("aten.searchsorted.Tensor")
def searchsorted(
    call: TorchCall,
    boundaries: Operand,
    x: Any,
    int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Operand | None = None,
) -> Operand:
    """The position of each element in sorted boundaries: a vector, or one row for each row of the elements."""
    if sorter is not None:
        boundaries = call.emit("gather_elements", boundaries, sorter, axis=-1)
    dtype = call.promoted(boundaries, x)
    given, rows = call.operand(x, dtype), call.operand(boundaries, dtype)
    return call.cast(call.emit("searchsorted", rows, given, right=side == "right" if side is not None else right), call.dtype)


TORCH_OPERATORS.register("aten.searchsorted.Scalar", searchsorted)
TORCH_OPERATORS.register("aten.bucketize.Tensor", lambda call, x, boundaries, *args: searchsorted(call, boundaries, x, *args))
TORCH_OPERATORS.register("aten.bucketize.Scalar", lambda call, x, boundaries, *args: searchsorted(call, boundaries, x, *args))


# ---- cumulative operators ---------------------------------------------------------------------------------------------------------------


def _cumulative(operator: str) -> Converter:
    def convert(call: TorchCall, x: Operand, dim: int, *_: Any) -> Operand:
        made = call.operand(x)
        return call.emit(operator, made, axis=call.axis(dim, len(x.type.shape))) if x.type.shape else made

    return convert


for _operator in ("cumprod", "logcumsumexp"):
    TORCH_OPERATORS.register(f"aten.{_operator}.default", _cumulative(_operator))


def _cumulative_extreme(operator: str) -> Converter:
    def convert(call: TorchCall, x: Operand, dim: int) -> Sequence[Operand]:
        if not x.type.shape:
            return [x, call.number(0, "int64")]
        keys = call.cast(x, "uint8") if x.type.dtype == "bool" else x
        values, indices = call.emit(operator, keys, axis=call.axis(dim, len(x.type.shape)))
        return [call.cast(values, x.type.dtype), indices]

    return convert


for _operator in ("cummax", "cummin"):
    TORCH_OPERATORS.register(f"aten.{_operator}.default", _cumulative_extreme(_operator))


# ---- distances --------------------------------------------------------------------------------------------------------------------------


@converts("aten._cdist_forward.default")
def cdist(call: TorchCall, a: Operand, b: Operand, order: float, _: Any) -> Operand:
    """The distance of each row of a to each row of b."""
    wide = dt.widened(call.dtype)
    left, right = [call.emit("expand_dims", call.operand(v, wide), axes=(axis,)) for v, axis in ((a, -2), (b, -3))]
    return call.cast(norm_of(call, call.emit("subtract", left, right), order, (-1,)), call.dtype)


TORCH_OPERATORS.register("aten.cdist.default", lambda call, a, b, order, mode: cdist(call, a, b, order, mode))


@converts("aten._pdist_forward.default")
def pdist(call: TorchCall, x: Operand, order: float) -> Operand:
    """The distance of each pair of rows, in the order of the upper triangle."""
    rows = x.type.shape[0].const
    if rows is None:
        call.refuse("the distances of a dynamic number of rows are not supported; use torch.cdist")
    pairs = [(i, j) for i in range(rows) for j in range(i + 1, rows)]
    left, right = [call.emit("take", x, call.constant([p[k] for p in pairs], "int64"), axis=0) for k in (0, 1)]
    return norm_of(call, call.emit("subtract", left, right), order, (-1,))
