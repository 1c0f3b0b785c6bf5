"""Replace nests marked by `tensorize` by their tensor intrinsic."""

from __future__ import annotations

from typing import Any

from tunesmith.ir.arith.linear import coefficient
from tunesmith.ir.expr import IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly, Var, minimum
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

    Guards that do not depend on the nest move out of it.  Guards that leading iterations of the outermost loop pass become masks, if the
    instruction has them.  A nest with another guard, or from which a loop of a single iteration is gone, is a partial tile, which loops
    execute.

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
        bare, active = _without_prefix_guards(inside) if intrinsic.masked else (inside, None)
        if any(type(x) is If for x in _bodies(bare)) or _counted(bare) < len(described_nest(intrinsic)[0].loops):
            return _wrapped(guards, _as_loops(inside))
        try:
            replaced = intrinsic.implementation(match(nest_of(bare), intrinsic).operands, active)
        except Mismatch as error:
            raise BuildError(
                f"{func.name}: the nest of loop {n.var.name} no longer matches the tensor intrinsic {intrinsic.name}: {error}. "
                "Steps after tensorize must not change the layout of its operands"
            ) from None
        if active is not None and active.const is None:
            guards = [*guards, IsNegative(-active)]  # operands that all lanes share are in range only if a lane is active
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


def _without_prefix_guards(n: For) -> tuple[For, Poly | None]:
    """The nest without guards that a number of leading iterations of its outermost loop pass, and this number; None without guards."""
    counts: list[Poly] = []

    def strip(x: Stmt, bound: frozenset[Var]) -> Stmt:
        while isinstance(x, If) and x.orelse is None and isinstance(x.cond, IsNegative) and x.cond.lanes == 1:
            split = coefficient(x.cond.index, n.var)
            if split is None or split[0] != 1 or not split[1].vars.isdisjoint(bound):
                return x
            counts.append(-split[1])
            x = x.then
        return x.with_(body=strip(x.body, bound | {x.var})) if isinstance(x, For) else x

    bare = strip(n, frozenset())
    assert isinstance(bare, For)
    return bare, minimum(*counts) if counts else None


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
