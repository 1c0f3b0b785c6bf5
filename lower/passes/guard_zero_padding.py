"""Replace `C = C + select(p, x, 0) * y` by `if p: C = C + x * y`, so that zero padding costs no arithmetic.

The sum keeps its value unless y is infinite or NaN where x is padding (0 * inf is NaN), which vendor libraries ignore, too.
Each conjunct becomes a separate `if`, so that later passes can tighten loop bounds and version tiles by it.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.analysis.reduction_update import accumulation
from tunesmith.ir.expr import Binary, Const, Expr, Select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.stmt import BufferStore, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform, with_body
from tunesmith.lower.pass_infra import function_pass
from tunesmith.lower.passes.lower_blocks import guarded


@function_pass(requires="OPAQUE", level=2)
def guard_zero_padding(func: PrimFunc, target: Target) -> PrimFunc:
    """Guard sums of products instead of adding zeros."""

    def on_store(n: BufferStore, _: Any) -> Stmt:
        update = accumulation(n)
        product = None if update is None or update.op != "add" else update.term
        if update is None or type(product) is not Binary or product.op != "mul":
            return n
        for padded, other in ((product.a, product.b), (product.b, product.a)):
            if type(padded) is Select and type(padded.b) is Const and padded.b.value == 0:
                inner = n.with_(value=Binary("add", update.load, Binary("mul", padded.a, other)))
                return guarded(tuple(conjuncts(padded.cond)), inner)
        return n

    return with_body(func, transform(func.body, {BufferStore: on_store}))


def conjuncts(cond: Expr) -> list[Expr]:
    """The parts of a conjunction."""
    if type(cond) is Binary and cond.op == "and":
        return [*conjuncts(cond.a), *conjuncts(cond.b)]
    return [cond]
