"""inject_virtual_threads: the iterations of a vthread loop are done side by side by one thread.

The loop moves inwards to the statements that depend on it, memory that only it uses gets a place for each virtual thread where they store
different values, and what does not depend on it, such as filling a tile in shared memory, is done once (source: TVM's InjectVirtualThread).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import is_virtual_axis
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.stmt import Allocate, BufferStore, For, If, Seq, Stmt, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import substitute, transform, walk, with_body
from tunesmith.lower.pass_infra import function_pass


@function_pass(needs="OPAQUE")
def inject_virtual_threads(func: PrimFunc, target: Target) -> PrimFunc:
    """Move loops of virtual threads inwards; see the module's text."""

    everywhere = _accesses(func.body)
    wide: dict[Buffer, Buffer] = {}
    """Of memory that is allocated around the loops, such as that of a block: with a place for each virtual thread."""

    def on_for(n: For, recurse: Any) -> Stmt:
        m: For = n.map_children(recurse)
        if not is_virtual_axis(n.thread):
            return m
        own = {wide.get(b, b): b for b, count in _accesses(n).items() if count == everywhere[b] and b not in func.params}
        inject = _Inject(m, own)
        out = inject.run()
        wide.update({b: inject.wide[now] for now, b in own.items() if now in inject.wide})
        return out

    def on_allocate(n: Allocate, recurse: Any) -> Stmt:
        m: Allocate = n.map_children(recurse)
        return Allocate(wide[n.buffer], m.body) if n.buffer in wide and m.buffer is n.buffer else m

    return with_body(func, transform(func.body, {For: on_for, Allocate: on_allocate}))


def _accesses(root: Stmt) -> Counter[Buffer]:
    """How often each buffer is loaded and stored."""
    return Counter(n.buffer for n in walk(root) if type(n) is BufferLoad or type(n) is BufferStore)


class _Inject:
    """One loop: its variable, and the buffers that have a place for each iteration.

    Args:
        loop: the loop.
        own: buffers that nothing else uses.
    """

    def __init__(self, loop: For, own: Collection[Buffer]) -> None:
        self.loop = loop
        self.own = own
        self.wide: dict[Buffer, Buffer] = {}

    def run(self) -> Stmt:
        """The body, with the loop where it is needed."""
        varying = {self.loop.var}
        local = {*self.own, *[n.buffer for n in walk(self.loop.body) if type(n) is Allocate]}
        # What is stored under, or from, something that varies, varies; until nothing more does.
        while True:
            found = {b for b in local - varying if self._varies(b, varying)}
            if not found:
                break
            varying |= found  # type: ignore[arg-type]
        self.varying: set[Any] = set(varying)
        for b in local & self.varying:
            self.wide[b] = b.like(shape=(self.loop.extent, *b.shape))
        return self.push(self.loop.body)

    def _varies(self, b: Buffer, varying: set[Any]) -> bool:
        def go(n: Any, under: bool) -> bool:
            if type(n) is BufferStore:
                return n.buffer is b and (under or _touches(n, varying))
            if type(n) is If:
                under = under or _touches(n.cond, varying)
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
        """`n` for all iterations."""
        if type(n) is Allocate:
            return Allocate(self.wide.get(n.buffer, n.buffer), self.push(n.body))
        if type(n) is Seq:
            return seq([self.push(k) for k in n.stmts])
        if type(n) is For and n.extent.vars.isdisjoint(self.varying) and self._parts(n.body):
            return n.with_(body=self.push(n.body))
        if type(n) is If and not _touches(n.cond, self.varying):
            return If(n.cond, self.push(n.then), None if n.orelse is None else self.push(n.orelse))
        if not _touches(n, self.varying):
            return n
        var = Var(self.loop.var.name)
        body = transform(substitute(n, {self.loop.var: poly(var)}), {BufferLoad: self._place(var), BufferStore: self._place(var)})
        return For(var, self.loop.extent, body, "unrolled")

    def _parts(self, n: Stmt) -> bool:
        """Whether there are several statements in it, of which some may be for all iterations at once."""
        return any(type(x) is Seq or type(x) is Allocate for x in walk(n))

    def _place(self, var: Var) -> Any:
        def on_access(n: Any, recurse: Any) -> Any:
            m = n.map_children(recurse)
            wide = self.wide.get(n.buffer)
            return m if wide is None else m.with_(buffer=wide, indices=(poly(var), *m.indices))

        return on_access


def _touches(n: Any, varying: set[Any]) -> bool:
    """Whether `n` uses one of these variables or buffers."""
    for x in walk(n):
        if type(x) is Poly:
            if not x.vars.isdisjoint(varying):
                return True
        elif type(x) in (BufferLoad, BufferStore) and x.buffer in varying:
            return True
    return False
