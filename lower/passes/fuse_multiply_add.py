"""Contract float accumulations `C[i] = C[i] + a * b` to fma(a, b, C[i]), which rounds once.

Only accumulations are contracted, as in vendor libraries.  Elsewhere a product is rounded before it is added, as in numpy, torch and
IEEE 754 expressions, so that `a * a - a * a` is 0 and its square root is not NaN.  The pass runs before functions are expanded: the
arithmetic of an expanded sin requires that each product is rounded.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Binary, Call, Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.stmt import BufferStore, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform, with_body
from tunesmith.lower.pass_infra import function_pass
from tunesmith.support import dtype as dt


@function_pass(requires="FLAT", level=2)
def fuse_multiply_add(func: PrimFunc, target: Target) -> PrimFunc:
    """Contract accumulated products of float32 and float64."""

    def on_store(n: BufferStore, _: Any) -> Stmt:
        if type(n.value) is not Binary or dt.element(n.buffer.dtype) not in ("float32", "float64"):
            return n
        value = _Accumulation(n).run()
        return n if value is n.value else n.with_(value=value)

    return with_body(func, transform(func.body, {BufferStore: on_store}))


class _Accumulation:
    """The value of one store; accumulations are sums that contain the stored element, and horizontal sums of vectors."""

    def __init__(self, store: BufferStore) -> None:
        self.store = store
        self.running: set[Expr] = set()
        """Expressions that are sums with the element; nodes are compared by identity."""
        self.horizontal = 0

    def run(self) -> Expr:
        value: Expr = transform(self.store.value, {BufferLoad: self._load, Binary: self._binary, Call: self._call})
        return value

    def _load(self, n: BufferLoad, _: Any) -> Expr:
        if n.buffer is self.store.buffer and n.indices == self.store.indices and n.stride == self.store.stride:
            self.running.add(n)
        return n

    def _call(self, n: Call, recurse: Any) -> Expr:
        folds = n.name == "reduce_add"
        self.horizontal += folds
        m: Expr = n.map_children(recurse)
        self.horizontal -= folds
        return m

    def _binary(self, n: Binary, recurse: Any) -> Expr:
        m: Binary = n.map_children(recurse)
        if m.op != "add" or dt.element(m.dtype) not in ("float32", "float64"):
            return m
        out: Expr = m
        for x, y in ((m.a, m.b), (m.b, m.a)):
            if type(y) is Binary and y.op == "mul" and (self.horizontal or x in self.running):
                out = Call("fma", (y.a, y.b, x), m.dtype)
                break
        if m.a in self.running or m.b in self.running:
            self.running.add(out)
        return out
