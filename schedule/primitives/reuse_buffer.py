"""Store an intermediate result in the output buffer that is computed from it, element by element."""

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
from tunesmith.schedule.dependence_checks import pair_conditions, require_one
from tunesmith.schedule.footprints import is_tiling
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def reuse_buffer(s: ScheduleState, block: BlockRV, into: BlockRV) -> None:
    """Store the result of `block` in the buffer that `into` writes, and remove its own buffer.

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
        intermediate: the block writes one buffer, which is an intermediate, not in registers, and has no other writer.
        output: `into` is one store without reduction, to a parameter of the function that no other statement accesses.
        same-shape: both buffers have the same shape and type.
        in-place: `into` reads the intermediate buffer only at the element that it writes.
        order: the intermediate buffer is accessed only inside the loops around both blocks; there `into` comes after the block
            and after all other accesses.
        apart: different iterations of each of these common loops access different elements.
        once: the other loops of `into` visit each of its elements once.
        guard: a guard of `into` excludes no element of the buffer, or the block has the same guard, on common loops.
        covers: `into` writes every element that the block writes in the same iteration of the common loops.
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
    parent, common, made, used = _places(s, p, q, old)
    for f in common:
        found = [x for x in loop_accesses(f.body) if x.buffer in (old, new)]
        for w in found:
            for x in found if w.is_write else ():
                what = f"different iterations of loop {f.var.name} may access the same element of {old.name}"
                require_one(s, pair_conditions(w, x, f.var), "apart", what, f)
    (at,) = [t for t in loop_accesses(parent.stmts[used]) if t.buffer is new]
    _check_once(s, q, at)
    _check_guards(s, p, q, at, {f.var for f in common})
    for w in loop_accesses(parent.stmts[made]):
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
        raise s.refuse("output", f"{new.name} is not a parameter that only block {q.name} accesses", q)
    found = [t.indices for t in loop_accesses(q) if t.buffer is old]
    if not found or any(i is None for i in found[0]) or any(i != t.indices for i in found for t in loop_accesses(q) if t.is_write):
        raise s.refuse("in-place", f"block {q.name} does not read {old.name} exactly where it writes {new.name}", q)
    return old, new


def _count(ts: list[LoopAccess], buffer: Buffer, is_write: bool) -> int:
    return sum(t.buffer is buffer and t.is_write == is_write for t in ts)


def _places(s: ScheduleState, p: Block, q: Block, old: Buffer) -> tuple[Seq, list[For], int, int]:
    """The sequence in which the two blocks separate, the loops around it, and the positions of their statements."""
    paths = s.path(p.name), s.path(q.name)
    shared: list[Any] = [x for x, y in zip(*paths, strict=False) if x is y]
    if p is q or type(shared[-1] if shared else None) is not Seq:
        raise s.refuse("order", f"blocks {p.name} and {q.name} do not follow each other in one sequence", q)
    parent: Seq = shared[-1]
    made, used = [parent.stmts.index(path[len(shared)]) for path in paths]
    if made > used:
        raise s.refuse("order", f"block {p.name} comes after block {q.name}", q)

    def found(n: Any) -> int:
        return sum(t.buffer is old for t in loop_accesses(n))

    if found(parent) != found(s.func.body) or found(parent.stmts[used]) != found(q) or any(found(x) for x in parent.stmts[used + 1 :]):
        raise s.refuse("order", f"{old.name} is used outside the loops around {p.name} and {q.name}, or not before {q.name}", q)
    return parent, [f for f in shared if type(f) is For], made, used


def _check_once(s: ScheduleState, q: Block, at: LoopAccess) -> None:
    """Refuse loops that do not visit each element once: a second visit would read an element that is already replaced."""
    indices = [e for e in at.indices if e is not None]
    own = [{v for v in e.vars if v in at.ranges} for e in indices]
    separate = sum(map(len, own)) == len(at.ranges) and set().union(*own) == set(at.ranges)
    if not separate or any(span(e, at.ranges) is None or not is_tiling(e, at.ranges) for e in indices):
        raise s.refuse("once", f"the loops of block {q.name} do not visit each element of {at.buffer.name} once", q)


def _check_guards(s: ScheduleState, p: Block, q: Block, at: LoopAccess, common: set[Var]) -> None:
    for g in q.predicate:
        if g in p.predicate and all(v in common or isinstance(v, Param) for v in g.vars):
            continue
        alternatives = []
        for e, n in zip(at.indices, at.buffer.shape, strict=True):
            assert e is not None
            # In the buffer e - n < 0 and -e - 1 < 0 hold, so a guard `x < 0` holds if x <= e - n or x <= -e - 1.
            alternatives += [[high, ONE - c] for c, x in _multiples(g, e) if (high := _highest(x - e + n, at.ranges)) is not None]
            alternatives += [[high] for high in [_highest(g + e + 1, at.ranges)] if high is not None]
        require_one(s, alternatives, "guard", f"block {q.name} writes only where {g!r} < 0", q)


def _multiples(g: Poly, e: Poly) -> list[tuple[Poly, Poly]]:
    """Pairs of a factor c and an expression that, for c > 0, is negative exactly where `g` is: for c = 1 and for steps of `e`.

    A loop over groups of c elements has a guard x - ceildiv(n, c), and x < ceildiv(n, c) is equivalent to x * c < n.
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
    """Refuse elements of the intermediate result that `q` does not overwrite: they would remain in the output."""
    for x, y, n in zip(made.indices, at.indices, at.buffer.shape, strict=True):
        stored, overwritten = span(x, made.ranges), span(y, at.ranges)
        assert overwritten is not None
        low, high = overwritten
        message = f"block {q.name} does not overwrite all elements of {at.buffer.name} that would hold values of {made.buffer.name}"
        require_one(s, [[low], *([] if stored is None else [[low - stored[0]]])], "covers", message, q)
        require_one(s, [[n - 1 - high], *([] if stored is None else [[stored[1] - high]])], "covers", message, q)
