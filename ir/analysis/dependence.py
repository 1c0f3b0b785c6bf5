"""Find the loops in which two accesses must share an iteration to access the same element.

All decisions are made on normal forms, so that the result for a parametric program is valid for each of its configurations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunesmith.ir.analysis.guards import bounded_part, collapsed, step_of
from tunesmith.ir.arith.interval import interval, is_nonnegative
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.node import Node
from tunesmith.ir.poly import ONE, ZERO, Atom, Monomial, Op, Param, Poly, Var, divide_terms, minimum, substitute
from tunesmith.ir.stmt import BindIndex, Block, BufferStore, For


@dataclass(frozen=True, slots=True)
class LoopAccess:
    """A load or store below a statement, in terms of loop variables.

    Attributes:
        buffer: the accessed buffer.
        indices: one per dimension; None if a vector access covers several elements.
        is_write: whether it is a store.
        ranges: highest values of the loops and indirect indices between the statement and the access.
        loops: the loops among them, outermost first.
        guards: expressions that are < 0 whenever the access is executed, from block predicates.
        block: the block that contains it; None outside of blocks.
    """

    buffer: Buffer
    indices: tuple[Poly | None, ...]
    is_write: bool
    ranges: Mapping[Var, Poly]
    loops: tuple[Var, ...]
    guards: tuple[Poly, ...]
    block: Block | None


def loop_accesses(root: Node) -> list[LoopAccess]:
    """The loads and stores below `root`, in program order."""
    out: list[LoopAccess] = []
    guards: tuple[Poly, ...] = ()

    def go(n: Any, ranges: Mapping[Var, Poly], loops: tuple[Var, ...], values: Mapping[Var, Poly], block: Block | None) -> None:
        if type(n) is Poly:
            return
        if type(n) is For:
            go(n.body, {**ranges, n.var: substitute(n.extent, values) - 1}, (*loops, n.var), values, block)
            return
        if type(n) is IndirectIndex or type(n) is BindIndex:
            go(n.value, ranges, loops, values, block)
            go(n.body, {**ranges, n.var: substitute(n.extent, values) - 1}, loops, values, block)
            return
        nonlocal guards
        outside = guards
        if type(n) is Block:
            guards = (*guards, *[substitute(p, values) for p in n.predicate])
            values = {**values, **{it.var: substitute(e, values) for it, e in zip(n.iters, n.bindings, strict=True)}}
            block = n
        elif type(n) is BufferLoad or type(n) is BufferStore:
            at: list[Poly | None] = [substitute(e, values) for e in n.indices]
            if n.stride is not None or (type(n) is BufferLoad and n.lanes != 1):
                at[-1:] = [None]
            out.append(LoopAccess(n.buffer, tuple(at), type(n) is BufferStore, ranges, loops, guards, block))
        n.each_child(lambda k: go(k, ranges, loops, values, block))
        guards = outside

    go(root, {}, (), {}, None)
    return out


@dataclass(frozen=True, slots=True)
class Inner:
    """Loops whose iterations may differ between two accesses.

    Attributes:
        ranges: highest values of the loops.
        guards: expressions that are < 0.
    """

    ranges: Mapping[Var, Poly]
    guards: tuple[Poly, ...] = ()

    def without(self, *loops: Var) -> Inner:
        """The loops except the given ones."""
        return Inner({v: n for v, n in self.ranges.items() if v not in loops}, self.guards)


def span(e: Poly | None, ranges: Mapping[Var, Poly], guards: Sequence[Poly] = ()) -> tuple[Poly, Poly] | None:
    """The lowest and highest value of `e` where the guards hold; None if it is not a polynomial in the variables of `ranges`.

    Operations on those variables are not supported, because the ends from `interval` do not hold for negative arguments.
    """
    if e is None or any(type(a) is Op and not a.vars.isdisjoint(ranges) for m, _ in e.terms for a in m):
        return None
    for g in reversed(guards):
        bounded = None if g.vars.isdisjoint(e.vars) else bounded_part(g, ranges)
        if bounded is None:
            continue
        inner, limit = bounded
        w = Var("bounded")
        new = collapsed(inner, w, [e], ranges)
        if new is not None and minimum(limit - 1, interval(inner, ranges)[1]) == limit - 1:
            ranges, e = {**ranges, w: limit - 1}, new[0]
    low, high = interval(e, ranges)
    return None if not (low.vars | high.vars).isdisjoint(ranges) else (low, high)


def is_nonpositive(e: Poly) -> bool:
    """Whether `e` <= 0 is proved for all values of its Params and variables, which are >= 0."""
    if is_nonnegative(e):
        return not e.terms
    if minimum(e, ZERO) == e:
        return True
    if any(type(a) is Op for m, _ in e.terms for a in m):
        return False
    negative = {m: c for m, c in e.terms if c < 0}
    positive = [(m, c) for m, c in e.terms if c > 0]
    return all(_outweigh(negative, m, c) for m, c in positive)


def _outweigh(negative: dict[Monomial, int], m: Monomial, c: int) -> bool:
    """Whether a negative term that is a multiple of m makes c * m <= 0; the part of that term that is used up is subtracted from it."""
    for n, k in negative.items():
        rest = list(n)
        for a in m:
            if a not in rest:
                break
            rest.remove(a)
        else:
            least = 1
            for a in rest:
                least *= a.domain[0] if isinstance(a, Param) else 0
            if least and -k * least >= c:
                negative[n] = k + -(-c // least)
                return True
    return False


def all_nonpositive(conditions: list[Poly]) -> bool:
    """Whether each of the expressions is proved to be <= 0."""
    return all(map(is_nonpositive, conditions))


Pair = tuple[Poly, Poly]
"""An expression of each access; the accesses are to the same element only if both have the same value."""


def independence_conditions(pair: tuple[Poly | None, Poly | None], loop: Var, inner: tuple[Inner, Inner]) -> Iterator[list[Poly]]:
    """Independence conditions of different iterations of `loop`: lists of expressions that must all be <= 0 for the pair to differ.

    The conditions state that both expressions are in [step * loop + base, step * loop + base + step), with a base independent of the loop.

    Args:
        pair: an expression of each access.
        loop: a loop that encloses both.
        inner: for each access, the loops whose iterations may differ, without `loop`.
    """
    first, second = pair
    if first is None or second is None or not (loop in first.vars or loop in second.vars):
        return
    x = span(first, inner[0].ranges, inner[0].guards)
    y = x if first == second and inner[0] == inner[1] else span(second, inner[1].ranges, inner[1].guards)
    if x is None or y is None:
        return
    ends = (x,) if x == y else (x, y)
    for base in dict.fromkeys([low for low, _ in ends]):
        step = step_of(base, loop)
        if step is not None:
            yield [ONE - step, *[base - low for low, _ in ends], *[high + 1 - base - step for _, high in ends]]


def ordering_conditions(pair: tuple[Poly | None, Poly | None], loop: Var, inner: tuple[Inner, Inner]) -> Iterator[list[Poly]]:
    """Independence conditions of the first expression in a later iteration of `loop` than the second; arguments as above.

    The conditions state that the first, in every later iteration, is beyond the second: above it and ascending, or below and descending.
    """
    first, second = pair
    x = span(first, inner[0].ranges, inner[0].guards)
    y = span(second, inner[1].ranges, inner[1].guards)
    if x is None or y is None:
        return
    (low, high), (lowest, highest) = x, y
    up, down = step_of(low, loop), step_of(high, loop)
    if up is not None:
        yield [ZERO - up, highest + 1 - low - up]
    if down is not None:
        yield [down, high + down + 1 - lowest]


def shared_iterations(a: LoopAccess, b: LoopAccess, wanted: Var | None = None) -> set[Var]:
    """The loops around both accesses whose iterations must be equal for both to access the same element.

    Loops are found one by one: those already found restrict the analysis of the next.

    Args:
        a: an access.
        b: another access, or the same one.
        wanted: the loop of interest; the search ends when it is found.
    """
    # Loops of one iteration are substituted, because they obscure the form of the others.
    single = {v: ZERO for ranges in (a.ranges, b.ranges) for v, high in ranges.items() if high == ZERO}
    at = [(x, y) for x, y in zip(a.indices, b.indices, strict=True) if x is not None and y is not None]
    pairs = [(substitute(x, single), substitute(y, single)) for x, y in at]
    known = [tuple([substitute(g, single) for g in x.guards]) for x in (a, b)]
    common = [v for v in a.loops if v in b.ranges]
    found: set[Var] = set(single)
    # Guards are tried last: they are rarely needed and cost more than the rest.
    for guards in (((), ()), known) if any(known) else (((), ()),):
        while wanted not in found:
            free = Inner(a.ranges, guards[0]).without(*found), Inner(b.ranges, guards[1]).without(*found)
            left = sorted([v for v in common if v not in found], key=lambda v: v is not wanted)
            more = _next_shared(pairs, left, free)
            if more is None:
                break
            found.add(more)
    return found


def _next_shared(pairs: Sequence[Pair], left: Sequence[Var], free: tuple[Inner, Inner]) -> Var | None:
    known = [_without_fixed(p, free) for p in pairs]
    done = 0
    while done < len(known) <= _MAX_PAIRS:
        for v in left:
            inner = free[0].without(v), free[1].without(v)
            if any(all_nonpositive(way) for p in known[done:] for way in independence_conditions(p, v, inner)):
                return v
        seen = set(known)
        new = [_without_fixed(p, free) for p in (*_digits(known[done:], free), *_undivided(known))]
        done = len(known)
        known.extend(dict.fromkeys(p for p in new if p not in seen))
    return None


_MAX_PAIRS = 64
"""Maximum pairs derived from two accesses; real indices give a dozen."""


def _without_fixed(pair: Pair, free: tuple[Inner, Inner]) -> Pair:
    """The pair without the common terms that have the same value in both accesses."""
    x, y = pair
    fixed = [(m, c) for m, c in x.terms if all(a.vars.isdisjoint(at.ranges) for a in m for at in free)]
    common = Poly(tuple([t for t in fixed if t in y.terms]))
    return (x - common, y - common) if common.terms else pair


def _digits(pairs: Sequence[Pair], free: tuple[Inner, Inner]) -> Iterator[Pair]:
    """(q1, q2) and (r1, r2) for pairs (q1 * c + r1, q2 * c + r2) with remainders in [0, c): equal sums have equal digits."""
    for x, y in pairs:
        for c in dict.fromkeys(_scales(x)):
            (qx, rx), (qy, ry) = divide_terms(x, c), divide_terms(y, c)
            same = rx == ry and free[0] == free[1]
            if _is_below(rx, c, free[0]) and (same or _is_below(ry, c, free[1])):
                yield qx, qy
                yield rx, ry


def _is_below(e: Poly, c: Poly, inner: Inner) -> bool:
    """Whether `e` is in [0, c)."""
    ends = _remainder_span(e, inner)
    return ends is not None and is_nonpositive(ZERO - ends[0]) and is_nonpositive(ends[1] + 1 - c)


def _remainder_span(e: Poly, inner: Inner) -> tuple[Poly, Poly] | None:
    """As `span`, with x % d bounded by [0, d)."""
    ranges = inner.ranges
    wide = dict(ranges)
    replaced = ZERO
    for m, c in e.terms:
        (a, *rest) = m or (None,)
        if type(a) is Op and a.op == "mod" and not rest and a.args[1].vars.isdisjoint(ranges):
            v = Var("remainder")
            wide[v] = a.args[1] - 1
            m = (v,)
        replaced = replaced + Poly(((m, c),))
    return span(replaced, wide, inner.guards)


def _scales(e: Poly) -> Iterator[Poly]:
    """The cofactors of operations in the terms of `e`."""
    for m, c in e.terms:
        rest: Monomial = tuple([a for a in m if type(a) is not Op])
        if len(rest) == len(m) - 1 and c > 0 and (rest or c != 1) and all(isinstance(a, Param) for a in rest):
            yield Poly(((rest, c),))


def _undivided(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """(x1, x2) for pairs of quotients x // d and remainders x % d: if both are equal, the x are equal."""
    for (x, y), (p, q) in ((u, v) for u in pairs for v in pairs if u is not v):
        a, b = p.as_atom(), q.as_atom()
        if not (type(a) is Op and a.op == "mod" and type(b) is Op and b.op == "mod" and a.args[1] == b.args[1]):
            continue
        first, second = _times(x, a), _times(y, b)
        if first is not None and second is not None:
            yield first, second


def _times(e: Poly, remainder: Op) -> Poly | None:
    """x = q * d + r for `e` = q + floordiv(r, d) and `remainder` = mod(r, d); None if `e` has no such term."""
    r, d = remainder.args
    for m, c in e.terms:
        part: Atom | None = m[0] if len(m) == 1 and c == 1 else None
        if type(part) is Op and part.op == "floordiv" and part.args == (r, d):
            return (e - Poly(((m, c),))) * d + r
    return None
