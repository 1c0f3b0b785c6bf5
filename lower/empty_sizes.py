"""Specialise functions to size 0: loops over no elements vanish, and reductions over no elements give the identity.

Loops run their bodies as often as their extents say, so the init of a reduction over no elements, which runs in its first iteration,
would never run.  Here it runs in place of the outermost reduction loop without iterations.  An init that was decomposed before has the
guard of the first iteration, for example `0 < n`, which is dropped.  Extents that other sizes make 0 have inits of their own
(`with_empty_inits`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunesmith.ir.analysis.size_ranges import symbol_ranges
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import ZERO, Poly, Var, less_than, poly
from tunesmith.ir.poly import substitute as substitute_poly
from tunesmith.ir.specialize import specialize
from tunesmith.ir.stmt import Block, For, If, Iter, Seq, Stmt, seq
from tunesmith.ir.visit import substitute, transform
from tunesmith.lower.simplifier import Simplifier


def empty_version(func: PrimFunc, size: Var) -> PrimFunc:
    """The function for calls with `size` = 0, without that parameter.

    Rewrite (n = 0):
        for i, k in T.grid(4, n):
            with T.block("C"):
                with T.init(): C[i] = -inf
                C[i] = T.max(C[i], A[i, k])
      ->
        for i in range(4): C[i] = -inf
    """
    made = _Empty({size: ZERO}, Simplifier(symbol_ranges(func))).stmt(func.body, ())
    made = seq([]) if made is None else made
    bare = specialize(func.with_(body=made), {size.name: 0})
    from_zero = {v: (0, high) for v, (_, high) in symbol_ranges(bare).items()}  # a version for another size that is 0 is made of this one
    body = Simplifier(from_zero)(bare.body)
    return bare.with_(body=seq([]) if body is None else body)


def with_empty_inits(func: PrimFunc) -> PrimFunc:
    """The function with inits of the reductions over no elements for sizes that are not 0, such as n = 2 for an extent of n - 2.

    Rewrite:
        for k in range(n - 2):
            with T.block("C"):
                with T.init(): C[()] = 0
                C[()] = C[()] + A[k + 2]
      ->
        if n - 2 < 1: C[()] = 0
        for k in range(n - 2): ...
    """
    ranges = symbol_ranges(func)
    sizes, simple = frozenset(v for v in func.params if isinstance(v, Var)), Simplifier(ranges)

    def on_loop(n: For, recurse: Any) -> Stmt:
        body = recurse(n.body)
        out = n if body is n.body else n.with_(body=body)
        if not n.extent.vars or not n.extent.vars <= sizes or simple.bounds(n.extent)[0] > 0:
            return out
        inits = _Empty({}, simple, n).inits_of(n)
        return out if inits is None else seq([If(less_than(n.extent, 1), inits), out])

    body = transform(func.body, {For: on_loop})
    return func if body is func.body else func.with_(body=body)


class _Empty:
    """Remove the statements that do not run if the sizes in `values` are 0."""

    def __init__(self, values: Mapping[Var, Poly], positive: Simplifier, loop: For | None = None) -> None:
        self._values, self._positive, self._loop = values, positive, loop

    def inits_of(self, loop: For) -> Stmt | None:
        """The inits of the reductions below a loop, for the case that it does not run."""
        return self._inits(loop, ())

    def stmt(self, n: Stmt, loops: tuple[For, ...]) -> Stmt | None:
        if type(n) is Seq:
            kept = [r for s in n.stmts if (r := self.stmt(s, loops)) is not None]
            return seq(kept) if kept else None
        if type(n) is For:
            if self._is_zero(n.extent):
                return self._inits(n, ())
            body = self.stmt(n.body, (*loops, n))
            return None if body is None else n.with_(body=body)
        if type(n) is If:
            then, orelse = self.stmt(n.then, loops), None if n.orelse is None else self.stmt(n.orelse, loops)
            return None if then is None and orelse is None else If(n.cond, then or seq([]), orelse)
        if type(n) is Block:
            if any(self._is_zero(it.extent) for it in n.iters if it.kind == "S"):
                return None
            return n.with_(predicate=tuple([p for p in n.predicate if not self._is_first_step(p)]))
        return n

    def _is_first_step(self, p: Poly) -> bool:
        """Whether a guard depends on sizes only and holds for all sizes from 1 on."""
        return p.vars <= self._positive.ranges.keys() and self._positive.bounds(p)[1] < 0

    def _has_no_steps(self, it: Iter, binding: Poly) -> bool:
        return self._is_zero(it.extent) or (self._loop is not None and self._loop.var in binding.vars)

    def _is_zero(self, e: Poly) -> bool:
        """Whether an extent is 0; extents with a division by such a size are of loops inside other loops that do not run."""
        return substitute_poly(e, self._values) == 0 or (self._loop is not None and e == self._loop.extent)

    def _inits(self, n: Stmt, loops: tuple[For, ...]) -> Stmt | None:
        """The inits of the reductions over no elements below a loop that does not run."""
        if type(n) is For:
            return self._inits(n.body, (*loops, n))
        if type(n) is Seq:
            kept = [r for s in n.stmts if (r := self._inits(s, loops)) is not None]
            return seq(kept) if kept else None
        if type(n) is Block and n.init is not None:
            return self._init(n, loops)
        return None

    def _init(self, b: Block, loops: tuple[For, ...]) -> Stmt | None:
        """The init of a block for all its elements in the loops, without the loops of the reduction."""
        if not any(it.kind == "R" and self._has_no_steps(it, e) for it, e in zip(b.iters, b.bindings, strict=True)):
            return None
        spatial = [(it, e) for it, e in zip(b.iters, b.bindings, strict=True) if it.kind == "S"]
        kept = [f for f in loops if any(f.var in e.vars for _, e in spatial)]
        if any(self._is_zero(f.extent) for f in kept) or any(self._is_zero(it.extent) for it, _ in spatial):
            return None
        values: dict[Var, Poly] = {f.var: poly(Var(f.var.name)) for f in kept}
        first = {**values, **{f.var: ZERO for f in loops if f not in kept}}
        removed = {f.var for f in loops if f not in kept}
        own: dict[Var, Poly] = {it.var: poly(Var(it.var.name)) for it, _ in spatial}
        iters = tuple([Iter(own[it.var].as_var(), it.extent, "S") for it, _ in spatial])  # type: ignore[arg-type]
        predicate = tuple([substitute_poly(p, values) for p in b.predicate if p.vars.isdisjoint(removed)])
        bindings = tuple([substitute_poly(e, first) for _, e in spatial])
        assert b.init is not None
        out: Stmt = Block(b.name, iters, bindings, predicate, None, substitute(b.init, own), ())
        for f in reversed(kept):
            out = For(values[f.var].as_var(), substitute_poly(f.extent, first), out, f.kind, f.thread)  # type: ignore[arg-type]
        return out
