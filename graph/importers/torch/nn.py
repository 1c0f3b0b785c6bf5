"""Convert torch neural-network operators (matrix products, attention, norms, softmax) and torch.cond.

Transposes of weights stay calls; a later pass folds constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, SizeNumber, TorchCall, converts
from tunesmith.graph.importers.torch.random import dropped
from tunesmith.graph.ir.node import Operand, TensorType
from tunesmith.ir.poly import Poly, product
from tunesmith.support import dtype as dt

# ---- products ---------------------------------------------------------------------------------------------------------------------------


def transposed(call: TorchCall, x: Operand) -> Operand:
    """Swap the last two axes."""
    rank = len(x.type.shape)
    return call.emit("permute_dims", x, axes=(*range(rank - 2), rank - 1, rank - 2))


@converts("aten.linear.default")
def linear(call: TorchCall, x: Operand, weight: Operand, bias: Operand | None) -> Operand:
    """x @ weight.T + bias."""
    made = call.emit("matmul", x, transposed(call, weight) if len(weight.type.shape) == 2 else weight)
    return made if bias is None else call.emit("add", made, bias)


for _name in "matmul mm bmm mv dot".split():
    TORCH_OPERATORS.register(f"aten.{_name}.default", lambda call, a, b: call.emit("matmul", a, b))


@converts("aten.addmm.default")
def addmm(call: TorchCall, c: Operand, a: Operand, b: Operand, beta: Any, alpha: Any) -> Operand:
    """beta * c + alpha * a @ b."""
    made = call.emit("matmul", a, b)
    if alpha != 1:
        made = call.emit("multiply", made, call.operand(alpha))
    if beta == 0:
        return made
    return call.emit("add", made, c if beta == 1 else call.emit("multiply", c, call.operand(beta)))


TORCH_OPERATORS.register("aten.baddbmm.default", addmm)


@converts("aten.addbmm.default")
def addbmm(call: TorchCall, c: Operand, a: Operand, b: Operand, beta: Any, alpha: Any) -> Operand:
    """beta * c + alpha * the sum of a[i] @ b[i]: a product over the batch and the inner axis together."""
    batch, rows, inner = a.type.shape
    left = call.reshaped(call.emit("permute_dims", a, axes=(1, 0, 2)), (rows, batch * inner))
    return addmm(call, c, left, call.reshaped(b, (batch * inner, b.type.shape[2])), beta, alpha)


@converts("aten._trilinear.default")
def trilinear(
    call: TorchCall, a: Operand, b: Operand, c: Operand, expand_a: Any, expand_b: Any, expand_c: Any, summed: Any, *_: Any
) -> Operand:
    """The sum over some axes of a product of three tensors with inserted axes; the first two are combined first."""
    tensors = [
        call.emit("expand_dims", t, axes=tuple(e)) if e else t for t, e in zip((a, b, c), (expand_a, expand_b, expand_c), strict=True)
    ]
    total = call.emit("multiply", call.emit("multiply", tensors[0], tensors[1]), tensors[2])
    return call.emit("sum", total, axes=tuple(summed), keepdims=False) if summed else total


@converts("aten._grouped_mm.default", "transformers.grouped_mm_fallback.default")
def grouped_mm(
    call: TorchCall, x: Operand, weights: Operand, ends: Operand | None = None, bias: Operand | None = None, dtype: Any = None
) -> Operand:
    """Multiply the rows of each group with the matrix of the group: rows from ends[g - 1] to ends[g]; rows after the last group are 0.

    This is one product of rows that are 0 outside of the columns of their group, because a group has any number of rows.  It computes as
    many products as there are groups times rows, and reads each matrix once.
    """
    if ends is None or len(x.type.shape) != 2 or len(weights.type.shape) != 3:
        call.refuse("only rows in groups are supported: x[rows, k], weights[groups, k, n] and the ends of the groups")
    rows, k = x.type.shape
    groups, _, n = weights.type.shape
    positions = call.emit("arange", start=0, stop=rows, step=1, dtype=ends.type.dtype)
    of_row = call.emit("searchsorted", ends, positions, right=True)
    numbers = call.emit("arange", start=0, stop=groups, step=1, dtype=of_row.type.dtype)
    own = call.emit("equal", call.reshaped(of_row, (rows, 1)), call.reshaped(numbers, (1, groups)))
    spread = call.emit("where", call.reshaped(own, (rows, groups, 1)), call.reshaped(x, (rows, 1, k)), call.number(0, x.type.dtype))
    made = call.emit("matmul", call.reshaped(spread, (rows, groups * k)), call.reshaped(weights, (groups * k, n)))
    return made if bias is None else call.emit("add", made, bias)


@converts("aten.scaled_dot_product_attention.default")
def attention(
    call: TorchCall,
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Operand | None,
    dropout: float,
    causal: bool,
    scale: Any = None,
    grouped: bool = False,
) -> Operand:
    """softmax(query @ key.T * scale + mask) @ value.

    A row that is masked entirely, by False or -inf, gives zeros, as in torch.
    """
    if grouped:
        heads = query.type.shape[-3]
        key, value = [_with_heads(call, x, heads) for x in (key, value)]
    width = query.type.shape[-1]
    if scale is None and width.const is None:
        call.refuse("the head dimension is dynamic; pass scale=")
    factor = call.operand(1 / math.sqrt(width.as_int()) if scale is None else scale)
    scores = call.emit("multiply", call.emit("matmul", query, transposed(call, key)), factor)
    if causal:
        mask = _causal_mask(call, query.type.shape[-2], key.type.shape[-2])
    if mask is None:
        weights = call.emit("softmax", scores, axis=-1)
    elif causal:  # no row is masked entirely: each includes the first column
        weights = call.emit("softmax", call.emit("where", mask, scores, call.operand(-math.inf)), axis=-1)
    else:
        weights = _masked_softmax(call, scores, mask)
    return call.emit("matmul", dropped(call, weights, dropout)[0], value)


def _masked_softmax(call: TorchCall, scores: Operand, mask: Operand) -> Operand:
    """Softmax of scores + mask along the last axis, with False as -inf and zeros in entirely masked rows.  These rows are computed from
    the mask alone, which is smaller than the scores and often constant."""
    if mask.type.dtype == "bool":
        mask = call.emit("where", mask, call.operand(0.0), call.operand(-math.inf))
    mask = call.operand(mask)
    hidden = call.emit("equal", call.emit("max", mask, axes=(-1,), keepdims=True), call.operand(-math.inf))
    weights = call.emit("softmax", call.emit("add", scores, mask), axis=-1)
    return call.emit("where", hidden, call.operand(0.0), weights)


def _causal_mask(call: TorchCall, rows: Poly, columns: Poly) -> Operand:
    """bool[rows, columns], true where column <= row."""
    row = call.emit("expand_dims", call.emit("arange", start=0, stop=rows, step=1, dtype="int64"), axes=(1,))
    return call.emit("less_equal", call.emit("arange", start=0, stop=columns, step=1, dtype="int64"), row)


def _with_heads(call: TorchCall, x: Operand, heads: Poly) -> Operand:
    """Repeat each head of keys or values for the queries that share it."""
    *lead, own, length, width = x.type.shape
    if heads.const is None or own.const is None or heads.const % own.const:
        call.refuse(f"the number of query heads {heads} is not a multiple of the number of key heads {own}")
    if heads == own:
        return x
    each = call.emit("expand_dims", x, axes=(len(lead) + 1,))
    wide = call.emit("broadcast_to", each, shape=(*lead, own, heads.const // own.const, length, width))
    return call.reshaped(wide, (*lead, heads, length, width))


# ---- norms ------------------------------------------------------------------------------------------------------------------------------


def _filled(call: TorchCall, given: Operand | None, value: float, like: Operand) -> Operand:
    return given if given is not None else call.emit("full", shape=like.type.shape, value=value, dtype=like.type.dtype)


def _batch_norm(
    call: TorchCall, x: Operand, weight: Operand | None, bias: Operand | None, mean: Operand, var: Operand, _: float, eps: float
) -> Operand:
    gamma, beta = _filled(call, weight, 1.0, mean), _filled(call, bias, 0.0, mean)
    return call.emit("batch_norm", x, gamma, beta, mean, var, eps=eps, axis=1)


TORCH_OPERATORS.register("aten._native_batch_norm_legit_no_training.default", lambda call, *args: [_batch_norm(call, *args), None, None])


def _statistics(call: TorchCall, x: Operand) -> tuple[Operand, Operand]:
    """The mean and the variance (with divisor n) of each channel of a batch."""
    rank = len(x.type.shape)
    axes = tuple([a for a in range(rank) if a != 1])
    mean = call.emit("mean", x, axes=axes, keepdims=True)
    variance = call.emit("mean", call.emit("square", call.emit("subtract", x, mean)), axes=axes, keepdims=False)
    return call.reshaped(mean, (x.type.shape[1],)), variance


def _batch_norm_of_batch(
    call: TorchCall, x: Operand, weight: Operand | None, bias: Operand | None, eps: float
) -> tuple[Operand, Operand, Operand]:
    """Batch normalisation by the statistics of the batch, with the mean and the variance; float16 and bfloat16 have them in float32."""
    wide = call.operand(x, dt.widened(x.type.dtype))
    mean, variance = _statistics(call, wide)
    narrow = [call.cast(t, x.type.dtype) for t in (mean, variance)]
    return _batch_norm(call, x, weight, bias, narrow[0], narrow[1], 0.0, eps), mean, variance


def _moved_average(call: TorchCall, running: Operand, new: Operand, momentum: float) -> Operand:
    """(1 - momentum) * running + momentum * new."""
    kept = call.emit("multiply", running, call.number(1 - momentum, running.type.dtype))
    return call.emit("add", kept, call.emit("multiply", call.cast(new, running.type.dtype), call.number(momentum, running.type.dtype)))


def _saved(call: TorchCall, mean: Operand, variance: Operand, eps: float) -> tuple[Operand, Operand]:
    """The mean and the inverse deviation that torch keeps for the gradient."""
    deviation = call.emit("rsqrt", call.emit("add", variance, call.number(eps, variance.type.dtype)))
    return call.cast(mean, call.types[1].dtype), call.cast(deviation, call.types[2].dtype)


@converts("aten._native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    call: TorchCall, x: Operand, weight: Operand | None, bias: Operand | None, _: bool, __: float, eps: float
) -> Sequence[Operand]:
    """Batch normalisation by the statistics of the batch."""
    made, mean, variance = _batch_norm_of_batch(call, x, weight, bias, eps)
    return [made, *_saved(call, mean, variance, eps)]


@converts("aten._native_batch_norm_legit_functional.default")
def batch_norm_in_training(
    call: TorchCall,
    x: Operand,
    weight: Operand | None,
    bias: Operand | None,
    mean: Operand,
    variance: Operand,
    training: bool,
    momentum: float,
    eps: float,
) -> Sequence[Operand | None]:
    """Batch normalisation by the statistics of the batch, with the new running statistics, whose variance has the divisor n - 1."""
    if not training:
        return [_batch_norm(call, x, weight, bias, mean, variance, momentum, eps), None, None, mean, variance]
    made, own, spread = _batch_norm_of_batch(call, x, weight, bias, eps)
    count = product([e for a, e in enumerate(x.type.shape) if a != 1])
    wide = spread.type.dtype
    less = call.emit("subtract", call.operand(count, wide), call.number(1, wide))
    unbiased = call.emit("divide", call.emit("multiply", spread, call.operand(count, wide)), less)
    moved = [_moved_average(call, mean, own, momentum), _moved_average(call, variance, unbiased, momentum)]
    narrow = [call.cast(m, t.dtype) for m, t in zip(moved, call.types[3:], strict=True)]
    return [made, *_saved(call, own, spread, eps), *narrow]


@converts("aten.batch_norm.default")
def batch_norm(
    call: TorchCall,
    x: Operand,
    weight: Operand | None,
    bias: Operand | None,
    mean: Operand | None,
    var: Operand | None,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Operand:
    """Batch normalisation by running statistics, or by those of the batch."""
    if training or mean is None or var is None:
        return _batch_norm_of_batch(call, x, weight, bias, eps)[0]
    return _batch_norm(call, x, weight, bias, mean, var, momentum, eps)


def _with_affine(call: TorchCall, operator: str, x: Operand, weight: Operand | None, bias: Operand | None, **attrs: Any) -> Operand:
    """A norm with optional scale and bias."""
    if weight is None and bias is not None:
        weight = _filled(call, None, 1.0, bias)
    return call.emit(operator, x, *[t for t in (weight, bias) if t is not None], **attrs)


@converts("aten.layer_norm.default")
def layer_norm(
    call: TorchCall, x: Operand, shape: Sequence[Any], weight: Operand | None, bias: Operand | None, eps: float, *_: Any
) -> Operand:
    """Layer normalisation over the last axes."""
    return _with_affine(call, "layer_norm", x, weight, bias, axes=tuple(range(-len(shape), 0)), eps=eps)


TORCH_OPERATORS.register("aten.native_layer_norm.default", lambda call, *args: [layer_norm(call, *args), None, None])


@converts("aten.rms_norm.default")
def rms_norm(call: TorchCall, x: Operand, shape: Sequence[Any], weight: Operand | None, eps: float | None) -> Operand:
    """RMS normalisation over the last axes; the default eps depends on the element type."""
    small = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}[call.dtype] if eps is None else eps
    return _with_affine(call, "rms_norm", x, weight, None, axes=tuple(range(-len(shape), 0)), eps=small)


@converts("aten.group_norm.default")
def group_norm(call: TorchCall, x: Operand, groups: int, weight: Operand | None, bias: Operand | None, eps: float, *_: Any) -> Operand:
    """Group normalisation over groups of channels."""
    return _with_affine(call, "group_norm", x, weight, bias, groups=groups, eps=eps, layout="NCHW")


TORCH_OPERATORS.register(
    "aten.native_group_norm.default",
    lambda call, x, weight, bias, n, c, hw, groups, eps: [group_norm(call, x, groups, weight, bias, eps), None, None],
)


@converts("aten.instance_norm.default")
def instance_norm(
    call: TorchCall,
    x: Operand,
    weight: Operand | None,
    bias: Operand | None,
    mean: Any,
    var: Any,
    own: bool,
    momentum: Any,
    eps: float,
    *_: Any,
) -> Operand:
    """Instance normalisation with the statistics of each image, or with running statistics."""
    if not own:
        return batch_norm(call, x, weight, bias, mean, var, False, momentum, eps)
    return _with_affine(call, "instance_norm", x, weight, bias, eps=eps)


def _softmax(operator: str) -> Any:
    def convert(call: TorchCall, x: Operand, dim: int, *_: Any) -> Operand:
        made = call.operand(x)
        if not x.type.shape:
            return call.emit("reshape", call.emit(operator, call.reshaped(made, (1,)), axis=0), shape=())
        return call.emit(operator, made, axis=call.axis(dim, len(x.type.shape)))

    return convert


for _name in ("softmax", "log_softmax"):
    TORCH_OPERATORS.register(f"aten.{_name}.int", _softmax(_name))
    TORCH_OPERATORS.register(f"aten._{_name}.default", _softmax(_name))


# ---- control flow -----------------------------------------------------------------------------------------------------------------------


@converts("higher_order.cond")
def cond(call: TorchCall, condition: Any, then: Any, otherwise: Any, args: Sequence[Any] = ()) -> Sequence[Operand]:
    """torch.cond as a branch of two regions that capture values of the enclosing scope."""
    if isinstance(condition, SizeNumber) and condition.dtype == "bool":
        condition = call.operand(condition, "bool")
    if isinstance(condition, (bool, int, SizeNumber, Poly)):
        call.refuse("its condition compares sizes; write it as a Python `if`, which torch.export decides for a range of sizes")
    flag = call.cast(condition, "bool")
    flag = flag if flag.type == TensorType((), "bool") else call.emit("reshape", flag, shape=())
    region = call.region
    if region is None:
        call.refuse("it has sub-graphs, but the call has no region converter")
    made = call.builder.branch(flag, lambda b: region(then, args, b), lambda b: region(otherwise, args, b), name=call.name)
    return made if isinstance(made, tuple) else (made,)


@converts("higher_order.wrap_with_set_grad_enabled")
def without_gradients(call: TorchCall, enabled: bool, body: Any, *args: Any) -> Sequence[Operand]:
    """Inline the sub-graph of `with torch.no_grad()`."""
    region = call.region
    if region is None:
        call.refuse("it has sub-graphs, but the call has no region converter")
    return region(body, args, call.builder)
