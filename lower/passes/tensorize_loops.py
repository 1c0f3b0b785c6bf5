"""Replace nests marked by `tensorize` by their tensor intrinsic."""

from __future__ import annotations

from typing import Any

from tunesmith.ir.expr import IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.stmt import TENSORIZED, For, If, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.tensor_intrinsics.intrinsic import TENSOR_INTRINSICS, TensorIntrinsic
from tunesmith.ir.tensor_intrinsics.match import Mismatch, described_nest, match, nest_of
from tunesmith.ir.visit import transform, with_body
from tunesmith.lower.pass_infra import function_pass
from tunesmith.support.errors import BuildError


@function_pass(requires="FLAT")
def tensorize_loops(func: PrimFunc, target: Target) -> PrimFunc:
    """Replace marked nests.

    Guards that do not depend on the nest move out of it.  A nest with another guard, or from which a loop of a single iteration is gone, is
    a partial tile, which loops execute.

    Raises:
        BuildError: the target has no such instruction, or a nest without guards does not match the description.
    """
    made: dict[str, int] = {}

    def on_for(n: For, recurse: Any) -> Stmt:
        if n.kind != TENSORIZED:
            out: Stmt = n.map_children(recurse)
            return out
        intrinsic = _intrinsic(n, func, target)
        made.setdefault(intrinsic.name, 0)
        guards, inside = _without_uniform_guards(n, frozenset())
        if any(type(x) is If for x in _bodies(inside)) or _counted(inside) < len(described_nest(intrinsic)[0].loops):
            return _wrapped(guards, _as_loops(inside))
        try:
            nest = nest_of(inside)
            replaced = intrinsic.implementation(match(nest, intrinsic).operands)
        except Mismatch as error:
            raise BuildError(
                f"{func.name}: the nest of loop {n.var.name} no longer matches the tensor intrinsic {intrinsic.name}: {error}. "
                "Steps after tensorize must not change the layout of its operands"
            ) from None
        made[intrinsic.name] += 1
        return _wrapped(guards, replaced)

    body = transform(func.body, {For: on_for})
    for name, count in made.items():
        if not count:
            raise BuildError(
                f"{func.name}: every tile of the tensor intrinsic {name} is partial, so that it is never used. Choose smaller tiles, or "
                "pad the operands (pad_einsum)"
            )
    return with_body(func, body)


def _intrinsic(n: For, func: PrimFunc, target: Target) -> TensorIntrinsic:
    name = dict(n.annotations).get("intrinsic")
    if not isinstance(name, str):
        raise BuildError(f"{func.name}: the tensorized loop {n.var.name} does not name its intrinsic; use the primitive tensorize")
    intrinsic = TENSOR_INTRINSICS.get(name)
    if target.base != "llvm" or not intrinsic.is_available(target.features):
        raise BuildError(
            f"{func.name}: the tensor intrinsic {name} needs a target of kind llvm with the features {intrinsic.needed}, which {target} "
            "does not have. Tune the function for this target, or add the features with -mattr if the processor has them"
        )
    return intrinsic


def _without_uniform_guards(n: For, outer: frozenset[Var]) -> tuple[list[IsNegative], For]:
    """Guards at the innermost statement that do not depend on the loops of the nest, and the nest without them."""
    bound = outer | {n.var}
    if type(n.body) is For:
        found, inside = _without_uniform_guards(n.body, bound)
        return found, n if inside is n.body else n.with_(body=inside)
    guards: list[IsNegative] = []
    kept: list[IsNegative] = []
    body: Stmt = n.body
    while type(body) is If and body.orelse is None and type(body.cond) is IsNegative and body.cond.lanes == 1:
        (guards if body.cond.index.vars.isdisjoint(bound) else kept).append(body.cond)
        body = body.then
    return guards, n.with_(body=_wrapped(kept, body)) if guards else n


def _wrapped(guards: list[IsNegative], body: Stmt) -> Stmt:
    for g in reversed(guards):
        body = If(g, body)
    return body


def _bodies(n: For) -> list[Stmt]:
    out: list[Stmt] = []
    at: Stmt = n
    while type(at) is For:
        at = at.body
        out.append(at)
    return out


def _counted(n: For) -> int:
    """The loops of a nest with several iterations."""
    return sum(type(x) is For and x.extent != 1 for x in (n, *_bodies(n)))


def _as_loops(n: For) -> Stmt:
    """The nest as serial loops, with guards between them."""

    def on_for(x: For, recurse: Any) -> Stmt:
        out: For = x.map_children(recurse)
        return out.with_(kind="serial", annotations=()) if x.kind == TENSORIZED else out

    return transform(n, {For: on_for})
