"""Replace `C = C + select(p, x, 0) * y` by `if p: C = C + x * y`, so that zero padding costs no arithmetic.

The sum keeps its value unless y is infinite or NaN where x is padding (0 * inf is NaN), which vendor libraries ignore, too.
Each part of the condition becomes an `if` of its own, so that loops can be clipped to it and tiles versioned by it.
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


@function_pass(needs="OPAQUE")
def guard_zero_padding(func: PrimFunc, target: Target) -> PrimFunc:
    """Guard sums of products instead of adding zeros."""

    def on_store(n: BufferStore, _: Any) -> Stmt:
        found = accumulation(n)
        product = None if found is None or found.op != "add" else found.term
        if found is None or type(product) is not Binary or product.op != "mul":
            return n
        for this, other in ((product.a, product.b), (product.b, product.a)):
            if type(this) is Select and type(this.b) is Const and this.b.value == 0:
                inner = n.with_(value=Binary("add", found.load, Binary("mul", this.a, other)))
                return guarded(tuple(conjuncts(this.cond)), inner)
        return n

    return with_body(func, transform(func.body, {BufferStore: on_store}))


def conjuncts(cond: Expr) -> list[Expr]:
    """The parts of a conjunction."""
    if type(cond) is Binary and cond.op == "and":
        return [*conjuncts(cond.a), *conjuncts(cond.b)]
    return [cond]
