"""Interleave the iterations of virtual-thread loops within one thread, statement by statement.

The loop moves inwards to the statements that depend on it.  Memory that only the loop uses gets one copy per virtual thread if they store
different values.  Statements that do not depend on the loop, such as copying a tile to shared memory, run once (source: TVM's
InjectVirtualThread).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import is_virtual_axis
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.stmt import Allocate, BufferStore, For, If, Seq, Stmt, While, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import substitute, transform, walk, with_body
from tunesmith.lower.pass_infra import function_pass


@function_pass(requires="OPAQUE", needed_by="code generators, which have no virtual threads")
def inject_virtual_threads(func: PrimFunc, target: Target) -> PrimFunc:
    """Move loops of virtual threads inwards."""

    everywhere = _accesses(func.body)
    replicated: dict[Buffer, Buffer] = {}
    """Replicated buffers of allocations around the loops, for example those of a thread block."""

    def on_for(n: For, recurse: Any) -> Stmt:
        m: For = n.map_children(recurse)
        if not is_virtual_axis(n.thread):
            return m
        private = {replicated.get(b, b): b for b, count in _accesses(n).items() if count == everywhere[b] and b not in func.params}
        loop_rewrite = _VirtualThreadLoop(m, private)
        out = loop_rewrite.run()
        replicated.update({b: loop_rewrite.replicated[now] for now, b in private.items() if now in loop_rewrite.replicated})
        return out

    def on_allocate(n: Allocate, recurse: Any) -> Stmt:
        m: Allocate = n.map_children(recurse)
        return Allocate(replicated[n.buffer], m.body) if n.buffer in replicated and m.buffer is n.buffer else m

    return with_body(func, transform(func.body, {For: on_for, Allocate: on_allocate}))


def _accesses(root: Stmt) -> Counter[Buffer]:
    """The number of loads and stores of each buffer."""
    return Counter(n.buffer for n in walk(root) if type(n) is BufferLoad or type(n) is BufferStore)


class _VirtualThreadLoop:
    """The rewrite of one virtual-thread loop.

    Args:
        loop: the loop.
        private: buffers that only the loop uses.

    Attributes:
        replicated: for each buffer whose values differ between virtual threads, the replacement with one copy per thread.
    """

    def __init__(self, loop: For, private: Collection[Buffer]) -> None:
        self.loop = loop
        self.private = private
        self.replicated: dict[Buffer, Buffer] = {}

    def run(self) -> Stmt:
        """The body, with the loop around the statements that depend on it."""
        varying = {self.loop.var}
        local = {*self.private, *[n.buffer for n in walk(self.loop.body) if type(n) is Allocate]}
        # A buffer varies if a varying value or condition determines what is stored to it: iterate to a fixed point.
        while True:
            found = {b for b in local - varying if self._varies(b, varying)}
            if not found:
                break
            varying |= found  # type: ignore[arg-type]
        self.varying: set[Any] = set(varying)
        for b in local & self.varying:
            self.replicated[b] = b.like(shape=(self.loop.extent, *b.shape))
        return self.push(self.loop.body)

    def _varies(self, b: Buffer, varying: set[Any]) -> bool:
        def go(n: Any, under: bool) -> bool:
            if type(n) is BufferStore:
                return n.buffer is b and (under or _depends_on(n, varying))
            if type(n) is If or type(n) is While:
                under = under or _depends_on(n.cond, varying)
            if type(n) is For:
                under = under or not n.extent.vars.isdisjoint(varying)
            hit = False

            def kid(k: Any) -> None:
                nonlocal hit
                hit = hit or (isinstance(k, Stmt) and go(k, under))

            n.each_child(kid)
            return hit

        return go(self.loop.body, False)

    def push(self, n: Stmt) -> Stmt:
        """The statement for all iterations of the loop."""
        if type(n) is Allocate:
            return Allocate(self.replicated.get(n.buffer, n.buffer), self.push(n.body))
        if type(n) is Seq:
            return seq([self.push(k) for k in n.stmts])
        if type(n) is For and n.extent.vars.isdisjoint(self.varying) and self._parts(n.body):
            return n.with_(body=self.push(n.body))
        if type(n) is If and not _depends_on(n.cond, self.varying):
            return If(n.cond, self.push(n.then), None if n.orelse is None else self.push(n.orelse))
        if not _depends_on(n, self.varying):
            return n
        var = Var(self.loop.var.name)
        body = transform(
            substitute(n, {self.loop.var: poly(var)}), {BufferLoad: self._select_copy(var), BufferStore: self._select_copy(var)}
        )
        return For(var, self.loop.extent, body, "unrolled")

    def _parts(self, n: Stmt) -> bool:
        """Whether `n` may contain several statements, some of which can run once for all iterations."""
        return any(type(x) is Seq or type(x) is Allocate for x in walk(n))

    def _select_copy(self, var: Var) -> Any:
        def on_access(n: Any, recurse: Any) -> Any:
            m = n.map_children(recurse)
            replicated = self.replicated.get(n.buffer)
            return m if replicated is None else m.with_(buffer=replicated, indices=(poly(var), *m.indices))

        return on_access


def _depends_on(n: Any, varying: set[Any]) -> bool:
    """Whether `n` uses a varying variable or buffer."""
    for x in walk(n):
        if type(x) is Poly:
            if not x.vars.isdisjoint(varying):
                return True
        elif type(x) in (BufferLoad, BufferStore) and x.buffer in varying:
            return True
    return False
