"""Remove intermediate buffers whose values reach no output, with all stores to them.

Rewrite:
    D = T.alloc_buffer((8,), "int32")
    for i in T.serial(8):
        D[i] = A[i]
        C[i] = A[i] + 1
  ->
    for i in T.serial(8):
        C[i] = A[i] + 1
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly
from tunesmith.ir.stmt import Allocate, BindIndex, Block, BufferStore, For, If, Seq, Stmt, While, seq
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import function_pass


@function_pass(requires="SCHEDULED")
def drop_dead_stores(func: PrimFunc, target: Target) -> PrimFunc:
    """Drop the allocations of the function that reach no parameter, with all stores to them; `func` itself when there is none."""
    if not func.allocs:
        return func
    sources: dict[Buffer, set[Buffer]] = {b: set() for b in func.allocs}
    reached: set[Buffer] = set()
    _collect(func.body, sources, reached)
    pending = list(reached)
    while pending:
        for b in sources.get(pending.pop(), ()):
            if b not in reached:
                reached.add(b)
                pending.append(b)
    dead = [b for b in func.allocs if b not in reached]
    if not dead:
        return func
    body = _without(func.body, frozenset(dead))
    return func.with_(allocs=tuple([b for b in func.allocs if b in reached]), body=seq([]) if body is None else body)


def _collect(root: Stmt, sources: dict[Buffer, set[Buffer]], reached: set[Buffer]) -> None:
    """Collect the buffers that stores to each allocation load, and the buffers that anything else loads."""
    stack: list[tuple[Any, set[Buffer]]] = [(root, reached)]
    seen: set[tuple[int, int]] = set()
    while stack:
        n, into = stack.pop()
        key = (id(n), id(into))
        if type(n) is Poly or key in seen:
            continue
        seen.add(key)
        if type(n) is BufferLoad:
            into.add(n.buffer)
        elif type(n) is BufferStore:
            stack.append((n.value, sources.get(n.buffer, reached)))
        else:
            n.each_child(lambda k, into=into: stack.append((k, into)))


def _without(n: Stmt, dead: frozenset[Buffer]) -> Stmt | None:
    """The statement without stores to the buffers; None when nothing is left."""
    if isinstance(n, BufferStore):
        return None if n.buffer in dead else n
    if isinstance(n, Seq):
        kept = [k for s in n.stmts if (k := _without(s, dead)) is not None]
        return seq(kept) if kept else None
    if isinstance(n, If):
        then, orelse = _without(n.then, dead), None if n.orelse is None else _without(n.orelse, dead)
        return None if then is None and orelse is None else If(n.cond, then or seq([]), orelse)
    if isinstance(n, Block):
        body, init = _without(n.body, dead), None if n.init is None else _without(n.init, dead)
        return None if body is None and init is None else n.with_(init=init, body=body or seq([]))
    if isinstance(n, (For, While, Allocate, BindIndex)):
        body = _without(n.body, dead)
        return None if body is None else n.with_(body=body)
    return n
