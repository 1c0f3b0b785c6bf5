"""Prove that the loops around a block cover its domain: that they run all of its instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunesmith.ir.analysis.access_regions import loop_ranges, plain_iter, writes
from tunesmith.ir.analysis.guards import bounded_part, collapsed, step_of
from tunesmith.ir.arith.interval import interval
from tunesmith.ir.arith.order import is_at_most
from tunesmith.ir.poly import ONE, ZERO, Op, Poly, Var, ceildiv, divide_terms, minimum, mul, poly, substitute
from tunesmith.ir.stmt import Block, For, If, Iter
from tunesmith.schedule.footprints import is_tiling, own_guards
from tunesmith.schedule.state import ScheduleState


def is_guarded(s: ScheduleState, block: Block) -> bool:
    """Whether a predicate of the block may exclude instances of its domain.

    Predicates that only exclude values outside the domain, or that a split added, do not.
    """
    own = own_guards(block)
    return any(p not in own for p in block.predicate) and not covers_domain(s, block)


@dataclass(frozen=True, slots=True)
class _Extent:
    """An expression of loops that must take every value in [0, extent), for all values of the other expressions."""

    kind: str
    expr: Poly
    extent: Poly


def _joined_variables(block: Block) -> list[_Extent]:
    """The iteration variables of a block, with the digits of a fused loop joined: f for f // n and f % n."""
    out = [_Extent(it.kind, e, it.extent) for it, e in zip(block.iters, block.bindings, strict=True)]
    while True:
        found = next(((x, y) for x in out for y in out if x.kind == y.kind and _joined(x.expr, y.expr, y.extent) is not None), None)
        if found is None:
            return out
        x, y = found
        whole = _joined(x.expr, y.expr, y.extent)
        assert whole is not None
        out = [z for z in out if z is not x and z is not y] + [_Extent(x.kind, whole, mul(x.extent, y.extent))]


def _joined(x: Poly, e: Poly, extent: Poly) -> Poly | None:
    """q * d + r when `x` is q + floordiv(r, d) and `e` is mod(r, d) with d = `extent`; None otherwise."""
    b = e.as_atom()
    if type(b) is not Op or b.op != "mod" or b.args[1] != extent:
        return None
    for m, c in x.terms:
        if c == 1 and len(m) == 1 and type(m[0]) is Op and m[0].op == "floordiv" and m[0].args == b.args:
            return mul(x - Poly(((m, c),)), extent) + b.args[0]
    return None


def _unguarded(loops: Sequence[tuple[Var, Poly]], block: Block) -> tuple[list[_Extent], dict[Var, Poly], dict[Var, set[Var]]] | None:
    """The variables and the largest values of their loops, with one loop for each guarded group, and the loops that it replaces.

    None if a guard remains.
    """
    ranges = loop_ranges(loops)
    if any(high == -1 for high in ranges.values()):
        return None
    single: dict[Var, Poly] = {v: ZERO for v, high in ranges.items() if high == ZERO}
    own = own_guards(block)
    variables = _joined_variables(block.with_(bindings=tuple([substitute(e, single) for e in block.bindings])) if single else block)
    guards = [substitute(g, single) for g in block.predicate if g not in own]
    guards = [g for g in guards if not _always_holds(g, ranges)]
    replaced: dict[Var, set[Var]] = {}
    while True:
        own = {p for x in variables for p in (x.expr - x.extent, -x.expr - 1)}
        guards = [g for g in guards if g not in own]
        if not guards:
            return variables, ranges, replaced
        # The innermost split added the last guard.
        bounded = bounded_part(guards.pop(), ranges)
        if bounded is None or not is_tiling(bounded[0], ranges):
            return None
        inner, limit = bounded
        whole = Var("whole")
        new = collapsed(inner, whole, [*[x.expr for x in variables], *guards], ranges)
        if new is None or minimum(limit, interval(inner, ranges)[1] + 1) != limit:
            return None
        variables = [_Extent(x.kind, e, x.extent) for x, e in zip(variables, new, strict=False)]
        guards = new[len(variables) :]
        replaced[whole] = {x for v in inner.vars if v in ranges for x in replaced.get(v, {v})}
        ranges = {**{v: n for v, n in ranges.items() if v not in inner.vars}, whole: limit - 1}


def _always_holds(guard: Poly, ranges: Mapping[Var, Poly]) -> bool:
    highest = interval(guard, ranges)[1].const
    return highest is not None and highest < 0


def check_loops_cover(s: ScheduleState, block: Block, label: str) -> None:
    """Refuse to build new loops over the domain of a block whose loops do not cover it; guards may exclude instances."""
    plain = block.with_(predicate=())
    if _is_conditional(s, block) or any(digits_of(s, block, kind) is None and digits_of(s, plain, kind) is None for kind in ("S", "R")):
        raise s.refuse(label, f"the loops around block {block.name} may not cover its domain; the new loops would run all of it", block)


def check_first_step(s: ScheduleState, block: Block, label: str) -> list[Poly]:
    """Refuse a reduction that does not start once for each element, in the iteration where all its loops are 0: the init runs there.

    Returns the guards that decide whether the reduction runs at all, as expressions of the other loops.
    """
    at = [plain_iter(e, block) for w in writes(block) for e in w.indices]
    if any(it.kind == "S" and it.extent != 1 and n not in at for n, it in enumerate(block.iters)):
        raise s.refuse(label, f"several instances of block {block.name} start the reduction of one element", block)
    loops = s.loops_of(block.name)
    used = {v for it, e in zip(block.iters, block.bindings, strict=True) if it.kind == "R" for v in e.vars}
    steps: dict[Var, Poly] = {f.var: ZERO for f in loops if f.var in used}
    inside = loops[next((i for i, f in enumerate(loops) if f.var in steps), 0) :]
    starts_first = digits_of(s, block, "R") is not None or digits_of(s, block.with_(predicate=()), "R") is not None
    if not starts_first or is_repeated(s, block, inside):
        raise s.refuse(
            label,
            f"the reduction of block {block.name} may not start in the first iteration of its loops, or may start more than once",
            block,
        )
    own = {e - it.extent for it, e in zip(block.iters, block.bindings, strict=True)}
    guards: list[Poly] = []
    for p in block.predicate:
        if p in own or p.vars.isdisjoint(steps):
            continue
        growth = [step_of(p, v) for v in steps if v in p.vars]
        if any(x is None or any(c < 0 for _, c in x.terms) for x in growth):
            raise s.refuse(label, f"the guard {p!r} < 0 of block {block.name} may exclude the first step of its reduction", block)
        start = substitute(p, steps)
        if not start.terms or any(c > 0 for _, c in start.terms):
            guards.append(start)
    return guards


def is_repeated(s: ScheduleState, block: Block, inside: Sequence[For]) -> bool:
    """Whether the loops may run an instance of the block more than once."""
    for each in (block, block.with_(predicate=()), _within(block, inside)):
        if each is None:
            continue
        spatial, reduced = digits_of(s, each), digits_of(s, each, "R")
        if spatial is not None and reduced is not None and all(f.var in spatial or f.var in reduced or f.extent == 1 for f in inside):
            return False
    return True


def _within(block: Block, inside: Sequence[For]) -> Block | None:
    """The block with the domain that the loops run for fixed values of the other loops, from 0; None if the others are not only added."""
    ranges = loop_ranges([(f.var, f.extent) for f in inside])
    iters, bindings = [], []
    for it, e in zip(block.iters, block.bindings, strict=True):
        own = substitute(e, dict.fromkeys(e.vars - ranges.keys(), ZERO))
        if not (e - own).vars.isdisjoint(ranges):
            return None
        low, high = interval(own, ranges)
        iters.append(Iter(it.var, high - low + 1, it.kind))
        bindings.append(own - low)
    return block.with_(iters=tuple(iters), bindings=tuple(bindings), predicate=())


def covers_domain(s: ScheduleState, block: Block) -> bool:
    """Whether the loops run every combination of values of the block's spatial iteration variables."""
    return not _is_conditional(s, block) and digits_of(s, block) is not None


def _is_conditional(s: ScheduleState, block: Block) -> bool:
    return any(type(n) is If for n in s.path(block.name))


def digits_of(s: ScheduleState, block: Block, kind: str = "S") -> set[Var] | None:
    """The loops that are digits of the iteration variables of a kind; None if this is not proven.

    Different iterations of these loops run different instances, and together they run every instance of the domain.  Bindings are divided
    into digits, as `split` and `fuse` make them: a variable bound to i_0 * n + i_1, with i_1 in [0, n), covers its extent if i_0 covers
    ceildiv(extent, n), and f // n together with f % n if f covers both.
    """
    loops = tuple([(f.var, f.extent) for f in s.loops_of(block.name)])
    key = (block.iters, block.bindings, block.predicate, loops, kind)
    if key not in s.digits:
        any_kind = (*key[:-1], "")
        if any_kind not in s.digits:
            s.digits[any_kind] = _unguarded(loops, block)
        unguarded = s.digits[any_kind]
        s.digits[key] = None if unguarded is None else _digits(loops, block, kind, *unguarded)
    found: set[Var] | None = s.digits[key]
    return found


def _digits(
    loops: Sequence[tuple[Var, Poly]],
    block: Block,
    kind: str,
    variables: Sequence[_Extent],
    ranges: Mapping[Var, Poly],
    replaced: Mapping[Var, set[Var]],
) -> set[Var] | None:
    others = {v for x in variables if x.kind != kind for v in x.expr.vars}
    free = {v: high + 1 for v, high in ranges.items() if v not in others}
    if any(n == ZERO for n in (*free.values(), *[x.extent for x in variables])):
        return None
    # Entries (e, n, d): the expression e must take all values in [0, ceildiv(n, d)).
    needed = [(x.expr, x.extent, ONE) for x in variables if x.kind == kind]
    used = {v for it, e in zip(block.iters, block.bindings, strict=True) if it.kind == kind for v in e.vars}
    found = {v for v, e in loops if e == ONE and v in used}
    deferred = 0
    while needed:
        e, n, d = needed.pop()
        extent = ceildiv(n, d)
        if not e.terms and minimum(extent, ONE) == extent:
            continue
        joined = next(((i, r) for i, (x, _, _) in enumerate(needed) if (r := _joined(x, e, extent)) is not None), None)
        if joined is not None:
            at, whole = joined
            _, outer, divisor = needed.pop(at)
            needed.append((whole, mul(ceildiv(outer, divisor), extent), ONE))
            deferred = 0
            continue
        digit = next((v for v in e.vars if v in free and _rest(e, v, free[v]) is not None), None)
        if digit is None:  # the rest of another expression may join it later
            needed.insert(0, (e, n, d))
            deferred += 1
            if deferred >= len(needed):
                return None
            continue
        deferred = 0
        step = free.pop(digit)
        found |= replaced.get(digit, {digit})
        rest = _rest(e, digit, step)
        if rest is not None and not (rest == ZERO and _covers(n, d, step)):
            needed.append((rest, n, mul(d, step)))
    return found


def _covers(n: Poly, d: Poly, step: Poly) -> bool:
    """Whether ceildiv(n, d) <= step is proven, which holds if n <= d * step."""
    extent = ceildiv(n, d)
    return is_at_most(extent, step) or _divided_once(step) == extent or minimum(n, mul(d, step)) == n


def _divided_once(p: Poly) -> Poly:
    """ceildiv(ceildiv(x, a), b) as the equal ceildiv(x, a * b)."""
    a = p.as_atom()
    if type(a) is not Op or a.op != "ceildiv":
        return p
    b = _divided_once(a.args[0]).as_atom()
    return ceildiv(b.args[0], mul(b.args[1], a.args[1])) if type(b) is Op and b.op == "ceildiv" else p


def _rest(e: Poly, v: Var, step: Poly) -> Poly | None:
    """q with `e` = q * step + v; None if there is none."""
    rest = e - poly(v)
    if v in rest.vars or not rest.terms:
        return None if rest.terms else rest
    q, r = divide_terms(rest, step)
    return None if r.terms else q
