"""Fold constant factors of output channels into the weights of the preceding contraction, and its constant terms into one.

Source: TVM's FoldScaleAxis.  Its forward folding is not needed, because batch normalisation follows its convolution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Call, Constant, Operand, Region, Value, used, with_branches
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import ONE
from tunesmith.support import dtype as dt


def fold_scale_axis(mod: IRModule) -> IRModule:
    """Apply these rewrites if the result of the contraction has no other use and `s` is a constant along its channels:

        conv2d(x, w) * s          ->  conv2d(x, w * s)           also conv2d_transpose, and matmul with a matrix w
        (y + b) * s               ->  y * s + b * s              for such a contraction y and a constant b
        (y + b) + c               ->  y + (b + c)                for such a contraction y and constants b and c along its channels

    Products of constants are computed immediately, so that further factors can be folded.
    """
    return mod.update({name: _function(f) for name, f in mod.items() if isinstance(f, GraphFunc) and f.codegen is None})


def _function(func: GraphFunc) -> GraphFunc:
    body = func.body
    while (new := _region(body)) is not body:
        body = new
    return func if body is func.body else func.with_(body=body)


def _region(region: Region) -> Region:
    """Apply the rewrites once; returns the same object if none applies."""
    uses = Counter([o for b in region.bindings for o in used(b.operation)] + list(region.results))
    made = {v: b for b in region.bindings for v in b.results}
    removed: set[Binding] = set()
    out: list[Binding] = []
    changed = False
    for b in region.bindings:
        old, b = b, with_branches(b, _region)
        op, changed = b.operation, changed or b is not old
        found = _match(b, made, uses) if isinstance(op, Call) and op.operator == "multiply" else None
        terms = _terms(b, made, uses) if isinstance(op, Call) and op.operator == "add" else None
        if terms is not None and terms[0] not in removed:
            removed.add(terms[0])
            out.append(Binding(b.results, Call("add", (terms[1], terms[2]))))
            changed = True
        elif found is not None and found[0] not in removed:
            source, scale = found
            removed.add(source)
            out += _moved(source, scale, b)
            changed = True
        else:
            out.append(b)
    return Region(tuple([b for b in out if b not in removed]), region.results) if changed else region


def _match(b: Binding, made: dict[Value, Binding], uses: Counter[Operand]) -> tuple[Binding, Constant] | None:
    """The call that computes the factor of a multiplication and can absorb its constant, and the constant."""
    for value, scale in (b.operation.args, b.operation.args[::-1]):
        if not isinstance(scale, Constant) or not isinstance(value, Value) or value.type != b.results[0].type or uses[value] != 1:
            continue
        source = made.get(value)
        call = source.operation if source is not None else None
        if source is None or not isinstance(call, Call):
            continue
        axis = _channel(call)
        if axis is not None and _along(scale, axis, len(value.type.shape)):
            return source, scale
        if call.operator == "add" and any(isinstance(a, Constant) for a in call.args) and any(a.type == value.type for a in call.args):
            inner = [made[a].operation for a in call.args if isinstance(a, Value) and a in made and uses[a] == 1]
            if any(isinstance(i, Call) and (c := _channel(i)) is not None and _along(scale, c, len(value.type.shape)) for i in inner):
                return source, scale
    return None


def _terms(b: Binding, made: dict[Value, Binding], uses: Counter[Operand]) -> tuple[Binding, Value, Constant] | None:
    """The first of two additions of constants to a contraction, the contraction, and the sum of the constants."""
    for value, second in (b.operation.args, b.operation.args[::-1]):
        if not isinstance(value, Value) or not isinstance(second, Constant) or uses[value] != 1 or value.type != b.results[0].type:
            continue
        source = made.get(value)
        call = None if source is None else source.operation
        if source is None or not isinstance(call, Call) or call.operator != "add":
            continue
        for y, first in (call.args, call.args[::-1]):
            if not isinstance(y, Value) or not isinstance(first, Constant) or y not in made or y.type != value.type:
                continue
            inner, rank = made[y].operation, len(value.type.shape)
            axis = _channel(inner) if isinstance(inner, Call) else None
            if axis is not None and _along(first, axis, rank) and _along(second, axis, rank):
                with np.errstate(all="ignore"):
                    return source, y, Constant(first.name, np.asarray(first.data + second.data))
    return None


def _moved(source: Binding, scale: Constant, multiply: Binding) -> Iterable[Binding]:
    """The bindings that replace the multiplication."""
    call = source.operation
    assert isinstance(call, Call)
    if call.operator == "add":
        build = RegionBuilder()
        sides = [_product(a, scale.data) if isinstance(a, Constant) else build.multiply(a, scale, name=a.name) for a in call.args]
        return [*build.bindings, Binding(multiply.results, Call("add", tuple(sides)))]
    x, w = call.args
    assert isinstance(w, Constant)
    scaled = _product(w, scale.data.reshape(_weight_shape(call, scale)))
    return [Binding(multiply.results, Call(call.operator, (x, scaled), call.attrs))]


def _product(c: Constant, factors: np.ndarray) -> Constant:
    with np.errstate(all="ignore"):
        return Constant(c.name, np.asarray(c.data * factors))


def _channel(call: Call) -> int | None:
    """The channel axis of a contraction with constant weights of floats, None for other calls."""
    if call.operator not in ("conv2d", "conv2d_transpose", "matmul") or not isinstance(call.args[1], Constant):
        return None
    if not dt.is_float(call.args[1].type.dtype):
        return None  # bytes of quantised weights
    if call.operator == "matmul":
        return len(call.args[0].type.shape) - 1 if len(call.args[1].type.shape) == 2 else None
    if call.operator == "conv2d_transpose" and call.attr("groups") != 1:
        return None
    if len(call.args[1].type.shape) != 4:
        return None  # a depthwise filter of three dimensions
    return 1 if call.attr("layout") == "NCHW" else 3


def _along(scale: Constant, axis: int, rank: int) -> bool:
    """Whether a constant varies only along one axis of a result of this rank."""
    shape = (ONE,) * (rank - len(scale.type.shape)) + scale.type.shape
    return len(shape) == rank and all(e == ONE for d, e in enumerate(shape) if d != axis)


def _weight_shape(call: Call, scale: Constant) -> tuple[int, ...]:
    """The shape in which the factors broadcast against the weights."""
    n = scale.data.size
    if call.operator == "matmul":
        return (n,)
    at = {("conv2d", "NCHW"): 0, ("conv2d", "NHWC"): 3, ("conv2d_transpose", "NCHW"): 1}.get((call.operator, call.attr("layout")), 2)
    return tuple([n if d == at else 1 for d in range(4)])
