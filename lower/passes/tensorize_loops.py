"""Replace nests marked by `tensorize` by their tensor intrinsic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from tunesmith.ir.arith.linear import coefficient
from tunesmith.ir.expr import IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly, Var, minimum
from tunesmith.ir.stmt import TENSORIZED, For, If, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.tensor_intrinsics.implemented import implemented
from tunesmith.ir.tensor_intrinsics.intrinsic import TENSOR_INTRINSICS, TensorIntrinsic
from tunesmith.ir.tensor_intrinsics.match import Mismatch, described_nest, match, nest_of
from tunesmith.ir.visit import transform, with_body
from tunesmith.lower.pass_infra import function_pass
from tunesmith.support.errors import BuildError


@function_pass(requires="FLAT", needed_by="code generators, which have no tensorized loops")
def tensorize_loops(func: PrimFunc, target: Target) -> PrimFunc:
    """Replace marked nests.

    Guards that do not depend on the nest move out of it.  Guards that leading iterations of the outermost loop pass become masks, if the
    instruction has them.  A nest with another guard, or from which a loop of a single iteration is gone, is a partial tile, which loops
    execute, as they do a nest whose indices were simplified by its guards, `C[0]` for `C[j]` where j < 1.

    Raises:
        BuildError: the target has no such instruction, a nest without guards does not match the description, or the statement of the
            implementation is invalid.
    """
    made: dict[str, int] = {}

    def on_for(n: For, recurse: Any) -> Stmt:
        if n.kind != TENSORIZED:
            out: Stmt = n.map_children(recurse)
            return out
        intrinsic = _intrinsic(n, func, target)
        made.setdefault(intrinsic.name, 0)
        found = _guards(n)
        partial = found.others or (found.counts and (not intrinsic.masked or n.extent == 1))
        if partial or _counted(found.nest) < len(described_nest(intrinsic)[0].loops):
            return _as_loops(n)
        try:
            operands = match(nest_of(found.nest), intrinsic).operands
        except Mismatch as error:
            if found.counts:
                return _as_loops(n)
            raise BuildError(
                f"{func.name}: the nest of loop {n.var.name} no longer matches the tensor intrinsic {intrinsic.name}: {error}. "
                "Steps after tensorize must not change its statement or the layout of its operands. Lowering compacts intermediate buffers "
                "and pads their rows: a size in the shape of the description's operand matches any distance between rows"
            ) from None
        passing = minimum(*found.counts) if found.counts else None
        guards = found.uniform
        if passing is not None and passing.const is None:
            guards = [*guards, IsNegative(-passing)]  # operands that all lanes share are in range only if a lane is active
        # More iterations than the loop has may pass a guard.
        try:
            replaced = implemented(intrinsic, operands, None if passing is None else minimum(passing, n.extent))
        except BuildError as error:
            raise BuildError(f"{func.name}: {error}") from None
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


@dataclass(slots=True)
class _Guards:
    """The guards of a nest.

    Attributes:
        nest: the nest without them.
        uniform: those that do not depend on the loops of the nest.
        counts: for those that leading iterations of the outermost loop pass, the number of these iterations.
        others: whether there are others.
    """

    nest: For
    uniform: list[IsNegative]
    counts: list[Poly]
    others: bool = False


def _guards(n: For) -> _Guards:
    out = _Guards(n, [], [])
    bound = {x.var: x.extent for x in (n, *_bodies(n)) if isinstance(x, For)}

    def strip(x: Stmt) -> Stmt:
        while isinstance(x, If):
            index = x.cond.index if isinstance(x.cond, IsNegative) and x.cond.lanes == 1 and x.orelse is None else None
            split = None if index is None else coefficient(index, n.var)
            uniform = None if index is None else _without_loops(index, bound)
            if index is None:
                out.others = True
            elif uniform is not None:
                out.uniform.append(IsNegative(uniform))
            elif split is not None and split[0] == 1 and split[1].vars.isdisjoint(bound):
                out.counts.append(-split[1])
            else:
                out.others = True
            x = x.then
        return x.with_(body=strip(x.body)) if isinstance(x, For) else x

    bare = strip(n)
    assert isinstance(bare, For)
    out.nest = bare
    return out


def _without_loops(index: Poly, loops: Mapping[Var, Poly]) -> Poly | None:
    """An index that is negative exactly where `index` is, without the variables of the loops; None if there is none.

    With i in [0, 16), 16 * q + i is negative where 16 * q is: all iterations, or none, pass a guard at a multiple of their number.
    """
    rest, high = index, 0
    for v, extent in loops.items():
        split = coefficient(rest, v)
        if split is None or split[0] < 0 or (split[0] and extent.const is None):
            return None
        high += split[0] * (extent.as_int() - 1) if split[0] else 0
        rest = split[1]
    unit = gcd(*[c for _, c in rest.terms])
    return rest if not high or unit > high else None


def _wrapped(guards: list[IsNegative], body: Stmt) -> Stmt:
    for g in reversed(guards):
        body = If(g, body)
    return body


def _bodies(n: For) -> list[Stmt]:
    """The statements inside a nest, from outside to inside."""
    out: list[Stmt] = []
    at: Stmt = n.body
    while isinstance(at, (For, If)):
        out.append(at)
        at = at.body if isinstance(at, For) else at.then
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
