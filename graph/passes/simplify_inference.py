"""simplify_inference: what inference does not need in its general form: batch normalisation is a multiplication and an addition,
a split is slices, and calls that change nothing go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tunesmith.graph.builder import RegionBuilder
from tunesmith.graph.function import Call, GraphFunc, Operand, Operation, Value
from tunesmith.graph.rewrite import Rewriter
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import ZERO, Poly, poly


def simplify_inference(mod: IRModule) -> IRModule:
    """Rewrites calls by the rules of `RULES`.

    batch_norm(x, gamma, beta, mean, var)    x * scale + shift, with scale and shift made of the four (constants fold later)
    split(x)                                 a strided_slice for each result, so that each is computed with what uses it
    identity, cast to the own type, reshape, permute_dims, broadcast_to and pad that change nothing: the operand
    reshape of reshape, permute_dims of permute_dims: one
    """
    return mod.update({name: _Simplify()(f) for name, f in mod.items() if isinstance(f, GraphFunc)})


class _Simplify(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.made: dict[Value, Call] = {}

    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        if not isinstance(operation, Call) or operation.operator not in RULES:
            return None
        return RULES[operation.operator](operation, build)


def _batch_norm(call: Call, build: RegionBuilder) -> Sequence[Operand]:
    x, gamma, beta, mean, var = call.args
    axis, eps = call.attr("axis"), call.attr("eps")
    small = build.constant(np.asarray(eps, var.type.dtype), "eps")
    scale = build.multiply(gamma, build.rsqrt(build.add(var, small)), name="scale")
    shift = build.subtract(beta, build.multiply(mean, scale), name="shift")
    rank = len(x.type.shape)
    shape = [e if d == axis % rank else 1 for d, e in enumerate(x.type.shape)][axis % rank :]
    aligned = [build.reshape(v, shape=shape) if len(shape) > 1 else v for v in (scale, shift)]
    return [build.add(build.multiply(x, aligned[0]), aligned[1], name="batch_norm")]


def _split(call: Call, build: RegionBuilder) -> Sequence[Operand]:
    x, at, out = call.args[0], ZERO, []
    axis = call.attr("axis") % len(x.type.shape)
    for size in call.attr("sizes"):
        out.append(build.strided_slice(x, axes=(axis,), begin=(at,), end=(at + size,)))
        at = at + size
    return out


def _same_shape(call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    return [call.args[0]] if poly_shape(call.attr("shape")) == call.args[0].type.shape else None


def _cast(call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    return [call.args[0]] if call.attr("dtype") == call.args[0].type.dtype else None


def _permute(call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    axes = call.attr("axes")
    rank = len(call.args[0].type.shape)
    unchanged = axes is not None and tuple([a % rank for a in axes]) == tuple(range(rank))
    return [call.args[0]] if unchanged or rank < 2 else None


def poly_shape(shape: Sequence[Poly | int]) -> tuple[Poly, ...]:
    """A shape attribute as a type has it."""
    return tuple([poly(e) for e in shape])


RULES: dict[str, Callable[[Call, RegionBuilder], Sequence[Operand] | None]] = {
    "batch_norm": _batch_norm,
    "split": _split,
    "identity": lambda call, build: [call.args[0]],
    "reshape": _same_shape,
    "broadcast_to": _same_shape,
    "cast": _cast,
    "permute_dims": _permute,
}
"""Operator -> rule; a rule gives the results, or None where it does not apply."""
