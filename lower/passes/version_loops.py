"""Version register tiles by their guards: evaluate each guard once per tile instead of once per element.

A register tile is unrolled; a condition per element in the innermost loop would ruin its speed.  A guard `c * Q + t < k`,
with t over the tile and Q over tiles, holds for all t, for no t, or, for exactly one value of Q, for the first t: a constant
number.  So the tile becomes: if all pass, the tile without the guard; else if some pass, the tile with a constant guard,
which unrolling and vectorization turn into a smaller tile.

If k is dynamic, there is one tile per number of passing t if these are few and the code does not become too large; else the partial tile
keeps its guard.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from tunesmith.ir.analysis.size_ranges import Range, symbol_ranges
from tunesmith.ir.expr import Const, IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly, Var, less_than
from tunesmith.ir.stmt import TENSORIZED, BufferStore, For, If, Seq, Stmt, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import Handler, transform, walk, with_body
from tunesmith.lower.code_size import UNROLLED, code_size
from tunesmith.lower.pass_infra import function_pass
from tunesmith.lower.renew_binders import renew_binders
from tunesmith.lower.simplifier import Simplifier
from tunesmith.support.arguments import as_count

MAX_VERSIONS = 24
"""Limit on the copies of a tile; beyond it guards stay in the tile, which is slow but small."""
MAX_RESTS = 16
"""Limit on the tiles of different sizes for the rest of a dynamic extent."""
MAX_VECTOR_RESTS = 3
"""The same limit for lanes of a vector: a longer rest is masked, which costs little."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard `outer + inner < 0`: outer over loops around the tile, inner over its unrolled loops, in the range [low, high].

    `in_lanes`: the guard depends on the lane of a vector.
    """

    condition: Poly
    outer: Poly
    inner: Poly
    low: int
    high: int
    in_lanes: bool


@function_pass(requires="OPAQUE", level=2)
def version_loops(func: PrimFunc, target: Target, *, most: int = MAX_VERSIONS, rests: int = MAX_RESTS) -> PrimFunc:
    """Version register tiles by their guards.

    Args:
        func: the function.
        target: the number of its lanes determines the size of the code.
        most: limit on the copies of a tile; guards that would need more stay in it.
        rests: limit on the tiles of different sizes for the rest of a dynamic extent.  If the code exceeds the limit on unrolled
            instructions, the function has at most `MAX_VECTOR_RESTS` of them, and then none.

    A second run changes nothing unless `most` stopped the first: the result has no record of the copies, so each run counts
    them from 1 and would make more.  A pipeline contains this pass once.
    """
    as_count("most", most, 0, "version_loops makes at least 0 copies")
    as_count("rests", rests, 0, "version_loops makes at least 0 tiles for a rest")
    ranges = symbol_ranges(func)
    lanes = target.vector_lanes("float32")
    tries = [(most, rests)]
    if ranges:
        tries += [(most, min(rests, MAX_VECTOR_RESTS)), *[(min(most, n), 0) for n in (most, 4, 2, 1)]]
    for copies, limit in dict.fromkeys(tries):
        body = _Versioner(ranges, copies, limit).visit(func.body, 1)
        if body is None or code_size(body, lanes) <= UNROLLED // 2:
            break
    return with_body(func, seq([]) if body is None else renew_binders(body))


class _Versioner:
    def __init__(self, ranges: dict[Var, Range], most: int, rests: int) -> None:
        self.most, self.rests = most, rests
        self.s = Simplifier(ranges)
        self.dynamic = bool(ranges)
        self.facts: dict[Poly, Range] = {}
        self.skipped: list[Poly] = []
        self._lanes: set[Var] = set()
        self._conditions: dict[BufferStore, bool] = {}

    def visit(self, n: Any, copies: int) -> Any:
        """Version guards whose outer variables are all bound around `n`, then visit its children."""
        guard = self._first_guard(n) if isinstance(n, (For, If)) or n.children else None
        if guard is not None:
            return self._version(n, guard, copies)
        if type(n) is For:
            self.s.ranges[n.var] = (0, max(self.s.bounds(n.extent)[1] - 1, 0))
            body = self.visit(n.body, copies)
            del self.s.ranges[n.var]
            return None if body is None else n if body is n.body else n.with_(body=body)
        if isinstance(n, Stmt):
            return _rebuild(n, lambda k: self.visit(k, copies) if isinstance(k, Stmt) else k)
        return n

    def _first_guard(self, root: Any) -> Guard | None:
        """A guard below `root` whose variables are bound around `root` or by the loops of a tile inside it."""
        tile: dict[Var, Range] = {}

        def go(n: Any) -> Guard | None:
            if type(n) is For:
                if n.kind in ("unrolled", "vectorized", TENSORIZED) and n.extent.const is not None:
                    tile[n.var] = (0, n.extent.const - 1)
                    if n.kind != "unrolled":
                        self._lanes.add(n.var)
                return go(n.body)
            if type(n) is BufferStore and not self._has_conditions(n):
                return None
            if type(n) is IsNegative and n.lanes == 1:
                found = self._as_guard(n.index, tile)
                if found is not None:
                    return found
            out: list[Guard] = []

            def kid(k: Any) -> None:
                if not out and type(k) is not Poly:
                    g = go(k)
                    if g is not None:
                        out.append(g)

            n.each_child(kid)
            return out[0] if out else None

        return go(root)

    def _as_guard(self, e: Poly, tile: dict[Var, Range]) -> Guard | None:
        if e in self.skipped:
            return None
        outer: dict[Any, int] = {}
        inner: dict[Any, int] = {}
        for m, c in e.terms:
            vs = {v for a in m for v in a.vars}
            if vs and vs <= set(tile):
                inner[m] = c
            elif all(v in self.s.ranges for v in vs):
                outer[m] = c
            else:
                return None
        if not inner or not any(m for m in outer):
            return None
        part = Poly(tuple(inner.items()))
        low, high = Simplifier(tile).bounds(part)
        return Guard(e, Poly(tuple(outer.items())), part, low, high, not part.vars.isdisjoint(self._lanes))

    def _version(self, n: Any, g: Guard, copies: int) -> Any:
        steps, unit, offset = _factor_out_gcd(g.outer)
        known = self.facts.get(steps) or self.s.bounds(steps)
        passing, mixed, failing = _spans(unit, offset, g, known)
        if mixed is not None and copies >= self.most:
            return self._skip(n, g, copies)
        pieces = sum(x is not None for x in (passing, mixed, failing))
        more = copies * 2 if pieces > 1 and mixed is not None else copies
        full = none = part = None
        if passing is not None:
            full = self._under(steps, passing, self._specialize(n, g, True), more)
        if failing is not None:
            none = self._under(steps, failing, self._specialize(n, g, False), more)
        if mixed is not None:
            if mixed[0] == mixed[1]:
                part = self._under(steps, mixed, self._substitute_outer(n, g, unit * mixed[0] + offset), more)
            elif self.dynamic and mixed[1] - mixed[0] < (min(self.rests, MAX_VECTOR_RESTS) if g.in_lanes else self.rests):
                rests = range(mixed[0], mixed[1] + 1)
                rest_tiles = [self._under(steps, (q, q), self._substitute_outer(n, g, unit * q + offset), more * len(rests)) for q in rests]
                part = rest_tiles.pop()
                for q, rest in zip(reversed(rests[:-1]), reversed(rest_tiles), strict=True):
                    part = _if(less_than(steps, q + 1), rest, part)
            elif self.dynamic:
                self.skipped.append(g.condition)
                part = self._under(steps, mixed, n, more)
                self.skipped.pop()
            else:
                part = self._skip(n, g, more)
            if failing is not None:
                part = _if(less_than(g.outer + g.low, 0), part, none)
        else:
            part = none
        if passing is None:
            return part
        return full if mixed is None and failing is None else _if(less_than(g.outer + g.high, 0), full, part)

    def _skip(self, n: Any, g: Guard, copies: int) -> Any:
        """Leave this guard in place and visit the others."""
        self.skipped.append(g.condition)
        try:
            return self.visit(n, copies)
        finally:
            self.skipped.pop()

    def _specialize(self, n: Any, g: Guard, value: bool) -> Any:
        """`n` with the guard replaced by a constant."""
        return self._replaced(n, lambda x, _: Const(value, "bool") if x.lanes == 1 and x.index == g.condition else x)

    def _substitute_outer(self, n: Any, g: Guard, outer: int) -> Any:
        """`n` with the outer part replaced by its value, in all guards with this outer part."""

        def on_is_negative(x: IsNegative, _: Any) -> Any:
            rest = x.index - g.outer
            return less_than(rest + outer, 0) if x.lanes == 1 and rest.vars.isdisjoint(self.s.ranges) else x

        return self._replaced(n, on_is_negative)

    def _replaced(self, n: Any, on_is_negative: Handler) -> Any:
        """`n` with replaced conditions, simplified.  Versions share the statements without conditions."""

        def on_store(x: BufferStore, recurse: Any) -> Any:
            return x.map_children(recurse) if self._has_conditions(x) else x

        return self.s(transform(n, {IsNegative: on_is_negative, BufferStore: on_store}))

    def _has_conditions(self, n: BufferStore) -> bool:
        known = self._conditions.get(n)
        if known is None:
            known = self._conditions[n] = any(type(x) is IsNegative for x in walk(n))
        return known

    def _under(self, steps: Poly, span: Range | None, n: Any, copies: int) -> Any:
        if n is None or span is None:
            return None
        old = self.facts.get(steps)
        self.facts[steps] = span
        out = self.visit(n, copies)
        if old is None:
            del self.facts[steps]
        else:
            self.facts[steps] = old
        return out


def _rebuild(n: Stmt, f: Any) -> Any:
    """`n` with `f` applied to its children; None if a removed child leaves nothing: the body of a loop, all of a sequence or an If."""
    if type(n) is Seq:
        remaining = [r for k in n.stmts if (r := f(k)) is not None]
        return (
            n
            if len(remaining) == len(n.stmts) and all(a is b for a, b in zip(remaining, n.stmts, strict=True))
            else seq(remaining)
            if remaining
            else None
        )
    if type(n) is If:
        return _if(n.cond, f(n.then), None if n.orelse is None else f(n.orelse), n)
    gone = False

    def kid(k: Any) -> Any:
        nonlocal gone
        r = f(k)
        gone = gone or r is None
        return k if r is None else r

    out = n.map_children(kid)
    return None if gone else out


def _if(cond: Any, then: Stmt | None, orelse: Stmt | None, same: If | None = None) -> Stmt | None:
    if same is not None and then is same.then and orelse is same.orelse:
        return same
    if type(cond) is Const:
        return then if cond.value else orelse
    if then is None:
        return None if orelse is None else If(IsNegative(-cond.index - 1), orelse)
    return If(cond, then, orelse)


def _factor_out_gcd(outer: Poly) -> tuple[Poly, int, int]:
    """(Q, c, k) with outer = c * Q + k, c the signed gcd of the coefficients."""
    k = dict(outer.terms).get((), 0)
    terms = [(m, c) for m, c in outer.terms if m]
    unit = gcd(*[c for _, c in terms])
    unit = unit if terms[0][1] > 0 else -unit
    return Poly(tuple([(m, c // unit) for m, c in terms])), unit, k


def _spans(unit: int, offset: int, g: Guard, known: Range) -> tuple[Range | None, Range | None, Range | None]:
    """Ranges of q for which all, some, or none of the tile passes unit * q + offset + t < 0, with t in [low, high]."""
    low, high = known

    def clip(a: int, b: int) -> Range | None:
        a, b = max(a, low), min(b, high)
        return (a, b) if a <= b else None

    if unit > 0:
        all_end = (-offset - g.high - 1) // unit
        some_end = (-offset - g.low - 1) // unit
        return clip(low, all_end), clip(all_end + 1, some_end), clip(some_end + 1, high)
    all_start = (offset + g.high) // -unit + 1
    some_start = (offset + g.low) // -unit + 1
    return clip(all_start, high), clip(some_start, all_start - 1), clip(low, some_start - 1)
