"""guard_zero_padding: `C = C + select(p, x, 0) * y` becomes `if p: C = C + x * y`: padding costs no arithmetic.

The sum keeps its value unless y is infinite or NaN where x is padding (0 * inf is NaN), which vendor libraries ignore too.
Each part of the condition becomes an `if` of its own, so that loops can be clipped to it and tiles versioned by it.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.buffer import BufferLoad
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
        v: Any = n.value
        if type(v) is not Binary or v.op != "add" or type(v.a) is not BufferLoad:
            return n
        if v.a.buffer is not n.buffer or v.a.indices != n.indices or type(v.b) is not Binary or v.b.op != "mul":
            return n
        for this, other in ((v.b.a, v.b.b), (v.b.b, v.b.a)):
            if type(this) is Select and type(this.b) is Const and this.b.value == 0:
                inner = BufferStore(n.buffer, n.indices, Binary("add", v.a, Binary("mul", this.a, other)), n.stride, n.mask)
                return guarded(tuple(conjuncts(this.cond)), inner)
        return n

    return with_body(func, transform(func.body, {BufferStore: on_store}))


def conjuncts(cond: Expr) -> list[Expr]:
    """The parts of a conjunction."""
    if type(cond) is Binary and cond.op == "and":
        return [*conjuncts(cond.a), *conjuncts(cond.b)]
    return [cond]
