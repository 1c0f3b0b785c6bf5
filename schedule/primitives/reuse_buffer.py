"""reuse_buffer: an intermediate result lives in the output that is computed from it, element by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunesmith.ir.analysis.access_regions import writes
from tunesmith.ir.analysis.dependence import LoopAccess, loop_accesses, span
from tunesmith.ir.analysis.guards import step_of
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.poly import ONE, Op, Param, Poly, Var, ceildiv
from tunesmith.ir.stmt import Block, BufferStore, For, Seq
from tunesmith.ir.visit import substitute
from tunesmith.schedule.dependence_checks import require_one, separation_conditions
from tunesmith.schedule.footprints import is_tiling
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def reuse_buffer(s: ScheduleState, block: BlockRV, into: BlockRV) -> None:
    """Keep what `block` computes in the buffer that `into` writes; its own buffer disappears.

    Rewrite: `reuse_buffer(B, C)`
        B = T.alloc_buffer((16,))
        for i in T.serial(16):
            B[i] = A[i] * 2.0
        for i in T.serial(16):
            C[i] = B[i] + 1.0
      ->
        for i in T.serial(16):
            C[i] = A[i] * 2.0
        for i in T.serial(16):
            C[i] = C[i] + 1.0
    Requires:
        intermediate: the block writes one buffer, which is an intermediate one, not in registers, and nothing else writes that.
        output: `into` is one store without reduction, to a parameter of the function that nothing else touches.
        same-shape: both buffers have the same shape and type.
        in-place: `into` reads the intermediate buffer only at the element that it writes.
        order: nothing touches the intermediate buffer outside the loops that hold both blocks; inside them the block comes
            before `into`, and `into` after everything else that touches it.
        apart: different iterations of each of these loops touch different elements.
        once: the other loops of `into` give each of its elements once.
        guard: a guard of `into` leaves out no element of the buffer, or is one of the block too, on the loops that hold both.
        covers: `into` writes every element that the block writes in the same iteration of these loops.
        block-exists: the blocks are still in the program.
    Keeps: results (source: reuse_buffer of Exo).
    """
    p, q = s.block(block), s.block(into)
    old, new = _buffers(s, p, q)
    where = f"{old.name} and {new.name} differ in shape or type"
    if len(old.shape) != len(new.shape) or old.dtype != new.dtype:
        raise s.refuse("same-shape", where, q)
    for m, n in zip(old.shape, new.shape, strict=True):
        s.require("eq0", m - n, "same-shape", where)
    row, common, made, used = _places(s, p, q, old)
    for f in common:
        mine = [t for t in loop_accesses(f.body) if t.buffer in (old, new)]
        for w in mine:
            for t in mine if w.is_write else ():
                what = f"different iterations of loop {f.var.name} may touch the same element of {old.name}"
                require_one(s, separation_conditions(w, t, f.var), "apart", what, f)
    (at,) = [t for t in loop_accesses(row.stmts[used]) if t.buffer is new]
    _check_once(s, q, at)
    _check_guards(s, p, q, at, {f.var for f in common})
    for w in loop_accesses(row.stmts[made]):
        if w.buffer is old and w.is_write:
            _check_covers(s, q, w, at)
    s.set_body(substitute(s.func.body, {}, {old: new}))
    s.func = s.func.with_(allocs=tuple([x for x in s.func.allocs if x is not old]))


def _buffers(s: ScheduleState, p: Block, q: Block) -> tuple[Buffer, Buffer]:
    """The intermediate buffer and the output."""
    everything = loop_accesses(s.func.body)
    outs = list(dict.fromkeys(a.buffer for a in writes(p)))
    if len(outs) != 1 or outs[0] not in s.func.allocs or outs[0].scope == "register":
        raise s.refuse("intermediate", f"block {p.name} does not write a single intermediate buffer in memory", p)
    old = outs[0]
    if _count(everything, old, True) != _count(loop_accesses(p), old, True):
        raise s.refuse("intermediate", f"{old.name} has another writer", p)
    if type(q.body) is not BufferStore or q.init is not None or any(it.kind == "R" for it in q.iters):
        raise s.refuse("output", f"block {q.name} is not a single store without reduction", q)
    new = q.body.buffer
    if new not in s.func.params or _count(everything, new, True) != 1 or _count(everything, new, False):
        raise s.refuse("output", f"{new.name} is not a parameter that only block {q.name} touches", q)
    found = [t.indices for t in loop_accesses(q) if t.buffer is old]
    if not found or any(i is None for i in found[0]) or any(i != t.indices for i in found for t in loop_accesses(q) if t.is_write):
        raise s.refuse("in-place", f"block {q.name} does not read {old.name} just where it writes {new.name}", q)
    return old, new


def _count(ts: list[LoopAccess], buffer: Buffer, is_write: bool) -> int:
    return sum(t.buffer is buffer and t.is_write == is_write for t in ts)


def _places(s: ScheduleState, p: Block, q: Block, old: Buffer) -> tuple[Seq, list[For], int, int]:
    """The sequence that parts the two blocks, the loops around it, and at which of its statements they are."""
    ways = s.path(p.name), s.path(q.name)
    shared: list[Any] = [x for x, y in zip(*ways, strict=False) if x is y]
    if p is q or type(shared[-1] if shared else None) is not Seq:
        raise s.refuse("order", f"blocks {p.name} and {q.name} do not stand one after the other", q)
    row: Seq = shared[-1]
    made, used = [row.stmts.index(way[len(shared)]) for way in ways]
    if made > used:
        raise s.refuse("order", f"block {p.name} comes after block {q.name}", q)

    def found(n: Any) -> int:
        return sum(t.buffer is old for t in loop_accesses(n))

    if found(row) != found(s.func.body) or found(row.stmts[used]) != found(q) or any(found(x) for x in row.stmts[used + 1 :]):
        raise s.refuse("order", f"{old.name} is used outside the loops around {p.name} and {q.name}, or not before {q.name}", q)
    return row, [f for f in shared if type(f) is For], made, used


def _check_once(s: ScheduleState, q: Block, at: LoopAccess) -> None:
    """Reading an element that has been replaced already would be wrong: each is visited once, and none is left out."""
    indices = [e for e in at.indices if e is not None]
    own = [{v for v in e.vars if v in at.ranges} for e in indices]
    apart = sum(map(len, own)) == len(at.ranges) and set().union(*own) == set(at.ranges)
    if not apart or any(span(e, at.ranges) is None or not is_tiling(e, at.ranges) for e in indices):
        raise s.refuse("once", f"the loops of block {q.name} do not give each element of {at.buffer.name} once", q)


def _check_guards(s: ScheduleState, p: Block, q: Block, at: LoopAccess, common: set[Var]) -> None:
    for g in q.predicate:
        if g in p.predicate and all(v in common or isinstance(v, Param) for v in g.vars):
            continue
        ways = []
        for e, n in zip(at.indices, at.buffer.shape, strict=True):
            assert e is not None
            # Inside the buffer e < n and e >= 0 hold, and so does a guard that is not above e - n, or not above -e - 1.
            ways += [[high, ONE - c] for c, x in _multiples(g, e) if (high := _highest(x - e + n, at.ranges)) is not None]
            ways += [[high] for high in [_highest(g + e + 1, at.ranges)] if high is not None]
        require_one(s, ways, "guard", f"block {q.name} writes only where {g!r} < 0", q)


def _multiples(g: Poly, e: Poly) -> list[tuple[Poly, Poly]]:
    """Factors c, and what is negative just where `g` is if they are positive: c * g, for 1 and for what takes `e` as far as 1 takes `g`.

    Loops that were cut into groups of c have guards x - ceildiv(n, c), and x < ceildiv(n, c) means x * c < n.
    """
    out = [(ONE, g)]
    for v in g.vars:
        c = step_of(e, v)
        if step_of(g, v) != ONE or c is None or not c.terms:
            continue
        ceilings = [m[0] for m, k in g.terms if k == -1 and len(m) == 1 and type(m[0]) is Op and m[0].op == "ceildiv" and m[0].args[1] == c]
        out.append((c, (g + ceildiv(*ceilings[0].args)) * c - ceilings[0].args[0] if ceilings else g * c))
    return out


def _highest(e: Poly, ranges: Mapping[Var, Poly]) -> Poly | None:
    ends = span(e, ranges)
    return None if ends is None else ends[1]


def _check_covers(s: ScheduleState, q: Block, made: LoopAccess, at: LoopAccess) -> None:
    """All that is made and lies in the buffer is replaced: what is not would stay behind in the output."""
    for x, y, n in zip(made.indices, at.indices, at.buffer.shape, strict=True):
        theirs, mine = span(x, made.ranges), span(y, at.ranges)
        assert mine is not None
        low, high = mine
        message = f"block {q.name} does not write all of {at.buffer.name} that would hold values of {made.buffer.name}"
        require_one(s, [[low], *([] if theirs is None else [[low - theirs[0]]])], "covers", message, q)
        require_one(s, [[n - 1 - high], *([] if theirs is None else [[theirs[1] - high]])], "covers", message, q)
