"""Decide whether an intermediate buffer carries values from one iteration of a loop to another.

It carries none if every element that an iteration reads was written earlier in the same iteration, or if different iterations access
different elements.  If neither can be proved, the answer is yes, so that the buffer outlives the iteration.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from tunesmith.ir.analysis.dependence import LoopAccess, shared_iterations
from tunesmith.ir.analysis.guarded_accesses import GuardedAccess, guarded_accesses
from tunesmith.ir.arith.enumerate import values_at
from tunesmith.ir.arith.interval import interval, nested_interval
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.poly import ZERO, Op, Poly, Var, poly, scale, split_constant, substitute
from tunesmith.ir.stmt import For
from tunesmith.lower.simplifier import Simplifier

MAX_POINTS = 1 << 17
"""Limit on the enumerated iterations of an access."""


def carries_values(
    loop: For, buffer: Buffer, s: Simplifier, threads: Mapping[Var, Poly], sizes: frozenset[Var] = frozenset()
) -> bool | None:
    """Whether the loop may carry a value of the buffer from one iteration to another.

    Args:
        loop: the loop; it contains all accesses to the buffer.
        buffer: the buffer.
        s: has the ranges of the loop variable and of the variables around the loop.
        threads: highest values of the thread loops, around and inside the loop, that share the buffer: with barriers, all threads
            write before any thread reads.
        sizes: the variables that are constant during a call.
    Returns:
        False if each iteration writes what it reads, which then holds for all enclosing loops, too; None if different iterations access
        different elements; True otherwise.
    """
    found = guarded_accesses(loop.body, buffer, threads)
    reads: dict[Any, int] = {}  # of equal reads the first, which the fewest writes precede
    for n, a in enumerate(found):
        if not a.is_write:
            reads.setdefault((a.indices, a.guards, tuple(a.ranges.items())), n)
    inside = {loop.var: loop.extent - 1}
    if all(any(_covers(w, found[n], found, inside, threads, sizes, s) for w in found[:n] if w.is_write) for n in reads.values()):
        return False
    each = [LoopAccess(buffer, a.indices, a.is_write, {**inside, **a.ranges}, (loop.var, *a.ranges), a.guards, None) for a in found]
    writes = [a for a in each if a.is_write]
    disjoint = all(loop.var in shared_iterations(w, r) for w in writes for r in each if not r.is_write)
    return None if disjoint else True


def _covers(
    w: GuardedAccess,
    r: GuardedAccess,
    found: list[GuardedAccess],
    outer: Mapping[Var, Poly],
    threads: Mapping[Var, Poly],
    sizes: frozenset[Var],
    s: Simplifier,
) -> bool:
    """Whether `w`, which precedes `r`, writes every element that `r` reads in the same iteration of the loop.

    `outer` has the highest value of the loop variable.
    """
    if not (w.exact and w.is_whole):
        return False
    common = [v for v in w.ranges if v in r.ranges and v not in threads]
    own = {v: n for v, n in w.ranges.items() if v not in common}
    others = {v: n for v, n in r.ranges.items() if v not in common}
    # The first iteration of a common loop precedes all that read: an init runs in it.  One iteration of another loop is enough, too.
    unused = [v for v in w.ranges if all(v not in i.vars for i in w.indices)]
    runs = [v for v, n in own.items() if n.const is not None and n.as_int() >= 0]
    units: dict[Var, Poly] = {v: ZERO for v, n in own.items() if n == ZERO}
    lowest = {v: ZERO for v in unused if v in common or v in runs} | units
    if any(not n.vars.isdisjoint(own) for n in own.values()):
        return False
    known = Simplifier(s.ranges)
    for v, n in (*w.ranges.items(), *r.ranges.items()):
        known.ranges[v] = (0, max(known.bounds(n)[1], 0))
    remaining: list[Poly] = []
    for p in w.guards:
        g = substitute(p, lowest)
        plain = _undivided(g, known)
        implied = plain.vars.isdisjoint(own) and any(_implies(h, plain, known) for h in r.guards)
        highest = nested_interval(plain, {**outer, **w.ranges})[1]
        if implied or min(known.bounds(g)[1], known.bounds(highest)[1]) < 0 or _excludes_for_all(substitute(p, units), w, found, sizes):
            continue
        if not g.vars <= set(own):
            return False
        remaining.append(g)
    if not remaining and _is_dense(w.indices, own) and _is_within(w, r, own, others, known):
        return True
    lows = [interval(i, own)[0] for i in w.indices]
    written = _points([known.index(i - low) for i, low in zip(w.indices, lows, strict=True)], remaining, own)
    if written is None:
        return False
    sides = []
    for i, low in zip(r.indices, lows, strict=True):
        begins, ends = ([e for x in xs if (e := known.index(x - low).const) is not None] for xs in _bounds(i, r, others))
        if begins and ends:
            sides.append(range(max(begins), min(ends) + 1))
    if len(sides) == len(r.indices) and math.prod(map(len, sides)) <= MAX_POINTS and written.issuperset(itertools.product(*sides)):
        return True
    read = _points([known.index(i - low) for i, low in zip(r.indices, lows, strict=True)], [], others)
    return read is not None and read <= written


def _multiple(g: Poly, index: Poly, sizes: frozenset[Var]) -> tuple[Fraction, Poly] | None:
    """(c, k) with g * d = index * n + k, where c = n / d, and k depends only on sizes."""
    terms = split_constant(index)[0].terms
    if not terms:
        return None
    m, b = terms[0]
    c = Fraction(dict(g.terms).get(m, 0), b)
    k = scale(g, c.denominator) - scale(index, c.numerator)
    return (c, k) if c and k.vars <= sizes else None


def _implies(h: Poly, g: Poly, s: Simplifier) -> bool:
    """Whether h < 0 implies g < 0, because a multiple of g is at most h, or g exceeds f * h by less than f, and f * h is at most -f."""
    if g == h:
        return True
    return any(s.bounds(scale(g, f) - h)[1] <= 0 for f in _ratios(h, g)) or any(s.bounds(g - scale(h, f))[1] < f for f in _ratios(g, h))


def _ratios(p: Poly, q: Poly) -> set[int]:
    """The positive integers by which coefficients of `q` are multiplied in `p`."""
    terms = dict(p.terms)
    return {terms[m] // c for m, c in split_constant(q)[0].terms if terms.get(m, 0) % c == 0 and terms.get(m, 0) // c > 0}


def _undivided(g: Poly, s: Simplifier) -> Poly:
    """A polynomial that is negative where `g` is: e // d < c holds where e < c * d, if d is positive."""
    while True:
        rest, c = split_constant(g)
        atom = rest.terms[0][0][0] if len(rest.terms) == 1 and rest.terms[0][1] == 1 and len(rest.terms[0][0]) == 1 else None
        if not isinstance(atom, Op) or atom.op != "floordiv" or s.bounds(atom.args[1])[0] < 1:
            return g
        g = atom.args[0] + atom.args[1] * c


def _excludes_for_all(g: Poly, w: GuardedAccess, found: list[GuardedAccess], sizes: frozenset[Var]) -> bool:
    """Whether the guard of `w` depends only on the element, and every other store excludes the same elements, which are never written."""
    keys = {(d, m) for d, i in enumerate(w.indices) if (m := _multiple(g, i, sizes)) is not None}
    others = [x for x in found if x.is_write and x is not w]
    return bool(keys) and all(any((d, _multiple(p, x.indices[d], sizes)) in keys for p in x.guards for d, _ in keys) for x in others)


def _is_dense(indices: tuple[Poly, ...], loops: Mapping[Var, Poly]) -> bool:
    """Whether the indices take every combination of values in their bounding box."""
    used = [v for i in indices for v in i.vars if v in loops]
    return len(used) == len(set(used)) and all(_is_tiling(i, loops) for i in indices)


def _is_tiling(e: Poly, loops: Mapping[Var, Poly]) -> bool:
    """Whether `e` takes every value from its lowest to its highest over the loops."""
    steps: list[tuple[int, int]] = []
    for m, c in e.terms:
        if any(not a.vars.isdisjoint(loops) for a in m):
            extent = loops[m[0]].const if len(m) == 1 and isinstance(m[0], Var) else None
            if extent is None and not (len(m) == 1 and isinstance(m[0], Var) and abs(c) == 1):
                return False
            steps.append((abs(c), math.inf if extent is None else extent))  # type: ignore[arg-type]
    reach = 0
    for c, most in sorted(steps):
        if c > reach + 1:
            return False
        reach += c * most
    return True


def _is_within(w: GuardedAccess, r: GuardedAccess, own: Mapping[Var, Poly], others: Mapping[Var, Poly], s: Simplifier) -> bool:
    """Whether the bounding box of `r` is inside that of `w`."""
    for x, y in zip(w.indices, r.indices, strict=True):
        low, high = interval(x, own)
        firsts, lasts = _bounds(y, r, others)
        if all(s.bounds(first - low)[0] < 0 for first in firsts) or all(s.bounds(high - last)[0] < 0 for last in lasts):
            return False
    return True


def _bounds(e: Poly, r: GuardedAccess, loops: Mapping[Var, Poly]) -> tuple[list[Poly], list[Poly]]:
    """Lower and upper bounds of an index of `r`.

    They are those of the loops, and for each guard g < 0 and each positive u, max(x) - u if the index is u * g + x, and min(x) + u if it is
    x - u * g.
    """
    ranges = {v: _guarded_last(v, n, r) for v, n in loops.items()}
    low, high = nested_interval(e, ranges)
    above = [nested_interval(e - scale(g, u), ranges)[1] - u for g in r.guards for u in sorted(_ratios(e, g))]
    below = [nested_interval(e + scale(g, u), ranges)[0] + u for g in r.guards for u in sorted(_ratios(e, scale(g, -1)))]
    return [low, *below], [high, *above]


def _guarded_last(v: Var, last: Poly, r: GuardedAccess) -> Poly:
    """The last value of a loop variable in `r`: that of the loop, or n - 1 if a guard v < n is lower."""
    limits = [x for g in r.guards if g.vars == {v} and (x := (poly(v) - g - 1).const) is not None]
    return poly(min(limits)) if limits and last.const is not None and min(limits) < last.const else last


def _points(indices: list[Poly], guards: list[Poly], loops: Mapping[Var, Poly]) -> set[tuple[int, ...]] | None:
    """All values of the indices where the guards hold; None if they are not constant or too many."""
    used = list(dict.fromkeys(v for p in (*indices, *guards) for v in p.vars))
    if any(v not in loops or loops[v].const is None for v in used):
        return None
    extents = [loops[v].as_int() + 1 for v in used]
    size = math.prod(extents)
    if size > MAX_POINTS:
        return None
    grid: Any = np.indices(extents, dtype=np.int64).reshape(len(extents), -1) if extents else ()
    points = dict(zip(used, grid, strict=True))
    runs = np.ones(size, bool)
    for g in guards:
        runs &= values_at(g, points, size) < 0
    columns = [np.broadcast_to(values_at(i, points, size), (size,))[runs].tolist() for i in indices]
    return set(zip(*columns, strict=True)) if columns else {()}
