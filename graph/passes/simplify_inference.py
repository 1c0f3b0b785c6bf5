"""simplify_inference: what inference does not need in its general form: batch normalisation is a multiplication and an addition,
a split is slices, and calls that change nothing go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Call, Operand, Operation
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.graph.ir.verify import infer
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import ZERO, poly


def simplify_inference(mod: IRModule) -> IRModule:
    """Rewrites calls by the rules of `RULES`.

    batch_norm(x, gamma, beta, mean, var)    x * scale + shift, with scale and shift made of the four (constants fold later)
    split(x)                                 a strided_slice for each result, so that each is computed with what uses it
    expand_dims, squeeze                     reshape, the one view that other passes know
    reshape of reshape, permute_dims of permute_dims    one
    identity, cast to the own type, reshape, permute_dims, broadcast_to and pad that change nothing    the operand
    """
    return mod.update({name: _Simplify()(f) for name, f in mod.items() if isinstance(f, GraphFunc)})


class _Simplify(Rewriter):
    """Knows, besides what a rewriter does, which call of the new function computes a value."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[Operand, Call] = {}

    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        if not isinstance(operation, Call) or operation.operator not in RULES:
            return None
        return RULES[operation.operator](self, operation, build)

    def source(self, call: Call) -> Call | None:
        """The call that computes its first operand."""
        return self.made.get(call.args[0])

    def _binding(self, b: Binding, build: RegionBuilder) -> None:
        known = len(build.bindings)
        super()._binding(b, build)
        self.made.update((v, new.operation) for new in build.bindings[known:] if isinstance(new.operation, Call) for v in new.results)


def _batch_norm(s: _Simplify, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    x, gamma, beta, mean, var = call.args
    if x.type.dtype == "bfloat16":  # in which numpy can hold no eps
        return None
    axis, eps = call.attr("axis"), call.attr("eps")
    small = build.constant(np.asarray(eps, var.type.dtype), "eps")
    scale = build.multiply(gamma, build.rsqrt(build.add(var, small)), name="scale")
    shift = build.subtract(beta, build.multiply(mean, scale), name="shift")
    rank = len(x.type.shape)
    shape = [e if d == axis % rank else 1 for d, e in enumerate(x.type.shape)][axis % rank :]
    aligned = [build.reshape(v, shape=shape) if len(shape) > 1 else v for v in (scale, shift)]
    return [build.add(build.multiply(x, aligned[0]), aligned[1], name="batch_norm")]


def _split(s: _Simplify, call: Call, build: RegionBuilder) -> Sequence[Operand]:
    x, at, out = call.args[0], ZERO, []
    axis = call.attr("axis") % len(x.type.shape)
    for size in call.attr("sizes"):
        out.append(build.strided_slice(x, axes=(axis,), begin=(at,), end=(at + size,)))
        at = at + size
    return out


def _identity(s: _Simplify, call: Call, build: RegionBuilder) -> Sequence[Operand]:
    return [call.args[0]]


def _view(s: _Simplify, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    (result,) = infer(call.operator, [call.args[0].type], call.attrs)
    source = s.source(call)
    x = source.args[0] if source is not None and source.operator == "reshape" else call.args[0]
    if x.type.shape == result.shape:
        return [x]
    return None if call.operator == "reshape" and x is call.args[0] else [build.reshape(x, shape=result.shape)]


def _permute(s: _Simplify, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    x, axes, source = call.args[0], _order(call), s.source(call)
    if source is not None and source.operator == "permute_dims":
        x, axes = source.args[0], tuple([_order(source)[a] for a in axes])
    if axes == tuple(range(len(axes))):
        return [x]
    return None if x is call.args[0] else [build.permute_dims(x, axes=axes)]


def _order(call: Call) -> tuple[int, ...]:
    """Which axis of its operand each axis of a permute_dims is."""
    rank, axes = len(call.args[0].type.shape), call.attr("axes")
    return tuple(range(rank))[::-1] if axes is None else tuple([a % rank for a in axes])


def _broadcast_to(s: _Simplify, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    return [call.args[0]] if tuple([poly(e) for e in call.attr("shape")]) == call.args[0].type.shape else None


def _cast(s: _Simplify, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    return [call.args[0]] if call.attr("dtype") == call.args[0].type.dtype else None


def _pad(s: _Simplify, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    return [call.args[0]] if all(n == 0 for n in (*call.attr("before"), *call.attr("after"))) else None


RULES: dict[str, Callable[[_Simplify, Call, RegionBuilder], Sequence[Operand] | None]] = {
    "batch_norm": _batch_norm,
    "broadcast_to": _broadcast_to,
    "cast": _cast,
    "expand_dims": _view,
    "identity": _identity,
    "pad": _pad,
    "permute_dims": _permute,
    "reshape": _view,
    "split": _split,
    "squeeze": _view,
}
"""Operator -> rule; a rule gives the results, or None where it does not apply."""
