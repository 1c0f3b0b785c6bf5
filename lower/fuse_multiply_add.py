"""fuse_multiply_add: `x + a * b` of floats becomes fma(a, b, x), one rounding, as every vendor library computes it.

Before functions are expanded: the arithmetic inside an expanded sin relies on each product being rounded.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.expr import Binary, Call, Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target import Target
from tunesmith.ir.visit import transform, with_body
from tunesmith.lower.passes import function_pass
from tunesmith.support import dtype as dt


@function_pass(needs="FLAT")
def fuse_multiply_add(func: PrimFunc, target: Target) -> PrimFunc:
    """Contract sums of products of float32 and float64."""

    def on_binary(n: Binary, recurse: Any) -> Expr:
        m: Binary = n.map_children(recurse)
        if m.op != "add" or dt.element(m.dtype) not in ("float32", "float64"):
            return m
        for x, y in ((m.a, m.b), (m.b, m.a)):
            if type(y) is Binary and y.op == "mul":
                return Call("fma", (y.a, y.b, x), m.dtype)
        return m

    return with_body(func, transform(func.body, {Binary: on_binary}))
