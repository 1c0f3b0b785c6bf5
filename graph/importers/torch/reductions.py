"""Convert torch reductions over all, several or one axis, including argmax, variance, norms and cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, Converter, TorchCall, converts
from tunesmith.graph.ir.node import Operand
from tunesmith.ir.poly import product
from tunesmith.support import dtype as dt


def _axes(call: TorchCall, x: Operand, dims: Any) -> tuple[int, ...]:
    """Reduction axes from torch's argument: an int, a list, or None or an empty list for all axes."""
    rank = len(x.type.shape)
    if dims is None or dims == []:
        return tuple(range(rank))
    return tuple([call.axis(d, rank) for d in (dims if isinstance(dims, (list, tuple)) else [dims])])


def reduced(call: TorchCall, operator: str, x: Operand, dims: Any = None, keepdim: bool = False) -> Operand:
    """`operator` reduced over `dims`; a scalar is returned as is.  The maximum of bools is `any`, the minimum `all`."""
    axes = _axes(call, x, dims)
    operator = {"max": "any", "min": "all"}.get(operator, operator) if x.type.dtype == "bool" else operator
    return call.emit(operator, x, axes=axes, keepdims=keepdim) if x.type.shape else x


def _reduction(operator: str, in_bool: bool = False) -> Converter:
    """A reduction over dims, by default all, computed in the result type (torch sums bools as int64)."""

    def convert(call: TorchCall, x: Operand, dims: Any = None, keepdim: bool = False, *_: Any) -> Operand:
        return call.operand(reduced(call, operator, call.operand(x, "bool" if in_bool else call.dtype), dims, keepdim))

    return convert


def _total(operator: str) -> Converter:
    """A reduction over all axes; torch's other argument is the result type."""
    return lambda call, x, *_: _reduction(operator)(call, x)


for _operator in ("sum", "mean", "prod"):
    TORCH_OPERATORS.register(f"aten.{_operator}.default", _total(_operator))
TORCH_OPERATORS.register("aten.sum.dim_IntList", _reduction("sum"))
TORCH_OPERATORS.register("aten.mean.dim", _reduction("mean"))
TORCH_OPERATORS.register("aten.prod.dim_int", _reduction("prod"))
for _operator in ("max", "min"):
    TORCH_OPERATORS.register(f"aten.{_operator}.default", _reduction(_operator))
    TORCH_OPERATORS.register(f"aten.a{_operator}.default", _reduction(_operator))
for _name, _operator in (("_is_any_true", "any"), ("_is_all_true", "all")):
    TORCH_OPERATORS.register(f"aten.{_name}.default", lambda call, x, o=_operator: reduced(call, o, x, None, False))
for _operator in ("any", "all"):
    for _overload in ("default", "dim", "dims"):
        TORCH_OPERATORS.register(f"aten.{_operator}.{_overload}", _reduction(_operator, in_bool=True))


def _arg_extreme(operator: str) -> Callable[..., Operand]:
    def convert(call: TorchCall, x: Operand, dim: int | None = None, keepdim: bool = False) -> Operand:
        if x.type.dtype == "bool":
            x = call.cast(x, "uint8")
        if dim is None:
            found = call.emit(operator, call.reshaped(x, (product(x.type.shape),)), axis=0, keepdims=False)
            return call.reshaped(found, call.shape)
        if not x.type.shape:
            return call.number(0, "int64")
        return call.emit(operator, x, axis=call.axis(dim, len(x.type.shape)), keepdims=keepdim)

    return convert


TORCH_OPERATORS.register("aten.argmax.default", _arg_extreme("argmax"))
TORCH_OPERATORS.register("aten.argmin.default", _arg_extreme("argmin"))


def _extreme(operator: str) -> Converter:
    """The extreme along an axis and the first index where it occurs."""

    def convert(call: TorchCall, x: Operand, dim: int, keepdim: bool = False) -> Sequence[Operand]:
        return [reduced(call, operator, x, dim, keepdim), _arg_extreme(f"arg{operator}")(call, x, dim, keepdim)]

    return convert


TORCH_OPERATORS.register("aten.max.dim", _extreme("max"))
TORCH_OPERATORS.register("aten.min.dim", _extreme("min"))


def _variance(call: TorchCall, x: Operand, dims: Any, correction: Any, keepdim: bool) -> tuple[Operand, Operand]:
    """Variance with divisor max(n - correction, 0), and mean.  float16 and bfloat16 are computed in float32."""
    wide = _wide(call)
    x = call.operand(x, wide)
    mean = reduced(call, "mean", x, dims, True)
    distance = call.emit("subtract", x, mean)
    axes = _axes(call, x, dims)
    total = reduced(call, "sum", call.emit("square", distance), axes, keepdim)
    count, less = product([x.type.shape[a] for a in axes]), 1 if correction is None else correction
    if count.const is not None:
        divisor: Operand = call.number(max(count.const - less, 0), wide)
    else:
        known = call.emit("subtract", call.operand(count, wide), call.number(less, wide))
        divisor = call.emit("maximum", known, call.number(0, wide))
    variance = call.emit("divide", total, divisor)
    return call.cast(variance, call.dtype), call.cast(reduced(call, "mean", x, dims, keepdim), call.dtype)


def _wide(call: TorchCall) -> str:
    """The accumulation type."""
    return dt.widened(call.dtype)


TORCH_OPERATORS.register("aten.var.correction", lambda call, x, dims, correction, keepdim: _variance(call, x, dims, correction, keepdim)[0])
TORCH_OPERATORS.register(
    "aten.var_mean.correction", lambda call, x, dims, correction, keepdim: list(_variance(call, x, dims, correction, keepdim))
)


def norm_of(call: TorchCall, difference: Operand, order: float, axes: tuple[int, ...], keepdims: bool = False) -> Operand:
    """The norm of order 0, 1, 2, infinity or any positive number over axes."""
    size = call.emit("abs", difference)
    if order == 0:
        nonzero = call.emit("not_equal", size, call.number(0, size.type.dtype))
        return call.emit("sum", call.cast(nonzero, size.type.dtype), axes=axes, keepdims=keepdims)
    if order in (math.inf, -math.inf):
        return call.emit("max" if order > 0 else "min", size, axes=axes, keepdims=keepdims)
    if order == 1:
        return call.emit("sum", size, axes=axes, keepdims=keepdims)
    if order == 2:
        return call.emit("sqrt", call.emit("sum", call.emit("square", size), axes=axes, keepdims=keepdims))
    total = call.emit("sum", call.emit("power", size, call.number(float(order), size.type.dtype)), axes=axes, keepdims=keepdims)
    return call.emit("power", total, call.number(1 / order, size.type.dtype))


@converts("aten.linalg_vector_norm.default")
def vector_norm(call: TorchCall, x: Operand, order: Any, dims: Any, keepdim: bool, *_: Any) -> Operand:
    """Vector norm of any order."""
    made = call.operand(x, _wide(call))
    return call.cast(norm_of(call, made, order, _axes(call, x, dims) if x.type.shape else (), keepdim), call.dtype)


@converts("aten.cumsum.default")
def cumsum(call: TorchCall, x: Operand, dim: int, *_: Any) -> Operand:
    """Inclusive cumulative sum."""
    made = call.operand(x)
    return call.emit("cumsum", made, axis=call.axis(dim, len(x.type.shape))) if x.type.shape else made


@converts("aten.histc.default")
def histc(call: TorchCall, x: Operand, bins: int, least: Any, most: Any) -> Operand:
    """The number of elements in each of `bins` equal intervals; elements outside are not counted, the upper end is in the last one."""
    if least == most:
        call.refuse("its range is that of the data; give min and max")
    wide = call.reshaped(call.operand(x, _wide(call)), (product(x.type.shape), 1))
    kind = wide.type.dtype
    inside = call.emit(
        "logical_and", call.emit("greater_equal", wide, call.number(least, kind)), call.emit("less_equal", wide, call.number(most, kind))
    )
    offset = call.emit("multiply", call.emit("subtract", wide, call.number(least, kind)), call.number(bins, kind))
    interval = call.emit("floor", call.emit("divide", offset, call.number(most - least, kind)))
    interval = call.emit("minimum", interval, call.number(bins - 1, kind))
    hit = call.emit("equal", interval, call.emit("arange", start=0, stop=bins, step=1, dtype=kind))
    counted = call.cast(call.emit("logical_and", hit, inside), kind)
    return call.operand(call.emit("sum", counted, axes=(0,), keepdims=False))
