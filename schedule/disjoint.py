"""Which elements a statement touches, and whether different iterations of a loop touch different ones.

Nothing here decides by a number that a Param may change: what is not known from normal forms is demanded of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tunesmith.ir.arith.interval import interval
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.node import Node
from tunesmith.ir.poly import ONE, ZERO, Op, Poly, Var, is_param_only, minimum, substitute
from tunesmith.ir.stmt import Block, BufferStore, For
from tunesmith.schedule.state import ScheduleState


@dataclass(frozen=True, slots=True)
class Touch:
    """One load or store below a statement.

    Attributes:
        buffer: what is touched.
        indices: one for each dimension, in terms of loop variables; None where a vector access covers several elements.
        is_write: whether it is a store.
        ranges: highest values of the loops between the statement and the access.
    """

    buffer: Buffer
    indices: tuple[Poly | None, ...]
    is_write: bool
    ranges: Mapping[Var, Poly]


def touches(root: Node) -> list[Touch]:
    """The loads and stores below `root`, in blocks or outside of them; guards are not looked at, they only take some away."""
    out: list[Touch] = []

    def go(n: Any, ranges: Mapping[Var, Poly], values: Mapping[Var, Poly]) -> None:
        if type(n) is Poly:
            return
        if type(n) is For:
            go(n.body, {**ranges, n.var: substitute(n.extent, values) - 1}, values)
            return
        if type(n) is Block:
            values = {**values, **{it.var: substitute(e, values) for it, e in zip(n.iters, n.bindings, strict=True)}}
        elif type(n) is BufferLoad or type(n) is BufferStore:
            at: list[Poly | None] = [substitute(e, values) for e in n.indices]
            if n.stride is not None or (type(n) is BufferLoad and n.lanes != 1):
                at[-1:] = [None]
            out.append(Touch(n.buffer, tuple(at), type(n) is BufferStore, ranges))
        n.each_child(lambda k: go(k, ranges, values))

    go(root, {}, {})
    return out


def span(e: Poly | None, ranges: Mapping[Var, Poly]) -> tuple[Poly, Poly] | None:
    """The lowest and the highest value of `e`; None when it is not a polynomial in the loops of `ranges`.

    Operations on those loops are left out, because an operation on a negative number has other ends than `interval` gives.
    """
    if e is None or any(type(a) is Op and not a.vars.isdisjoint(ranges) for m, _ in e.terms for a in m):
        return None
    low, high = interval(e, ranges)
    return None if not (low.vars | high.vars).isdisjoint(ranges) else (low, high)


def separations(a: Touch, b: Touch, loop: Var) -> Iterator[list[Poly]]:
    """Ways in which `a` of one iteration of `loop` and `b` of another cannot meet, each a list of what must be <= 0.

    In some dimension both stay within [step * loop + base, step * loop + base + step), where the base does not depend on the loop.
    """
    for at_a, at_b in zip(a.indices, b.indices, strict=True):
        spans = [span(at_a, a.ranges), span(at_b, b.ranges)]
        ends = [x for x in spans if x is not None]
        for base in dict.fromkeys([low for low, _ in ends]) if len(ends) == len(spans) else ():
            step = step_of(base, loop)
            if step is not None:
                yield [ONE - step, *[base - low for low, _ in ends], *[high + 1 - base - step for _, high in ends]]


def step_of(e: Poly, loop: Var) -> Poly | None:
    """By how much `e` grows from one iteration to the next; None when that is not the same for all of them."""
    step = ZERO
    for m, c in e.terms:
        if any(loop in a.vars for a in m):
            rest = list(m)
            if loop not in rest:
                return None
            rest.remove(loop)
            step = step + Poly(((tuple(rest), c),))
    return step if is_param_only(step) else None


def require_one(s: ScheduleState, ways: Iterable[list[Poly]], label: str, message: str, at: Any) -> None:
    """Demand that in one of the `ways` every expression is <= 0.

    The first that is known to hold, else the first that may hold for some rows, which then becomes constraints.  A row that meets
    them passes here too when it is put in from the start, because numbers leave nothing unknown.
    """
    tried = list(ways)
    if any(all(minimum(p, ZERO) == p for p in way) for way in tried):
        return
    for way in tried:
        unknown = [p for p in way if minimum(p, ZERO) != p]
        if all(is_param_only(p) and minimum(p, ZERO) != ZERO for p in unknown):
            for p in unknown:
                s.require("le0", p, label, message)
            return
    raise s.refuse(label, message, at)
