"""Split GPU functions into kernels: the root statements, which run one after the other."""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.stmt import Allocate, Seq, Stmt, seq
from tunesmith.ir.visit import with_body


def kernels(body: Stmt) -> list[Stmt]:
    """The kernels of a body, in order; allocations of scope global may enclose them."""
    while type(body) is Allocate and body.buffer.scope == "global":
        body = body.body
    return list(body.stmts) if type(body) is Seq else [body]


def map_kernels(func: PrimFunc, f: Callable[[Stmt], Stmt]) -> PrimFunc:
    """The function with `f` applied to each kernel; the same object when nothing changes."""

    def go(n: Stmt) -> Stmt:
        if type(n) is Allocate and n.buffer.scope == "global":
            body = go(n.body)
            return n if body is n.body else Allocate(n.buffer, body)
        if type(n) is Seq:
            done = [f(k) for k in n.stmts]
            return n if all(a is b for a, b in zip(done, n.stmts, strict=True)) else seq(done)
        return f(n)

    return with_body(func, go(func.body))
