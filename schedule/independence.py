"""Prove that the iterations of a loop may run at the same time, or in another order.

Two iterations conflict if both access one element and at least one of them writes it.  An intermediate buffer that is used only inside
the loop becomes private to an iteration when it is allocated; lowering refuses it if a value passes from one iteration to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tunesmith.ir.analysis.access_regions import accesses, plain_iter, writes
from tunesmith.ir.analysis.dependence import LoopAccess, loop_accesses, shared_iterations
from tunesmith.ir.analysis.reduction_update import reassociable_update, reduction_update
from tunesmith.ir.arith.simplify import simplify
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Op, Var
from tunesmith.ir.stmt import Allocate, Block, For
from tunesmith.ir.visit import blocks_under, walk
from tunesmith.schedule.domain import digits_of
from tunesmith.schedule.order import is_settled
from tunesmith.schedule.state import ScheduleState
from tunesmith.support.errors import ScheduleError


def check_independent(
    s: ScheduleState,
    loop: For,
    label: str,
    *,
    within_blocks: bool = False,
    private: bool = True,
    same_values: bool = True,
    simplified: bool = False,
) -> None:
    """Refuse a loop whose iterations conflict.

    Args:
        s: the schedule.
        loop: the loop.
        label: label of the refusal.
        within_blocks: compare only instances of the same block, because barriers order different blocks.
        same_values: iterations may write one element if all of them write the same value.
        private: an intermediate buffer that is used only inside the loop is private to an iteration.
        simplified: simplify indices by the ranges of loops first; those that primitives make are simple already.
    """
    if loop.extent.const == 1:
        return
    found = [_simplified(a) for a in loop_accesses(loop)] if simplified else loop_accesses(loop)
    inner = {n.buffer for n in walk(loop.body) if type(n) is Allocate}  # each iteration has its own
    written = [b for b in dict.fromkeys(a.buffer for a in found if a.is_write) if b not in inner]
    own = [b for b in written if private and b in s.func.allocs]
    if own:
        everywhere = Counter(a.buffer for a in loop_accesses(s.func.body))
        inside = Counter(a.buffer for a in found)
        written = [b for b in written if b not in own or inside[b] != everywhere[b]]
    instances = _Instances(s)
    for a, b in _conflicting(found, written):
        if within_blocks and a.block is not b.block:
            continue
        if loop.var in instances.shared(a, b, loop.var) or (same_values and _writes_same_value(s, a, b, (loop,))):
            continue
        raise s.refuse(label, _conflict(a, b, loop), loop)


def check_marked_loops(func: PrimFunc) -> None:
    """Refuse a hand-written program with a parallel or vectorized loop whose iterations conflict.

    Scheduled programs need no such check, because the primitives make it.

    Raises:
        ScheduleError: iterations of a loop conflict; the message underlines the loop.
    """
    s = ScheduleState(func)
    for f in [n for n in walk(func.body) if type(n) is For and n.kind in ("parallel", "vectorized")]:
        s.step = "parallel" if f.kind == "parallel" else "vectorize"
        inside = blocks_under(f)
        reduced = [b for b in inside if any(it.kind == "R" and f.var in e.vars for it, e in zip(b.iters, b.bindings, strict=True))]
        if f.kind == "parallel" and reduced:
            raise s.refuse("data-parallel", f"block {reduced[0].name} reduces over loop {f.var.name}", f)
        if f.kind == "vectorized" and _is_folded(f, reduced):
            continue
        if f.kind != "parallel" or not is_independent(s, f, same_values=False):  # digits of a fused loop are found as they are
            check_independent(s, f, "independent", private=f.kind == "parallel", same_values=f.kind != "parallel", simplified=True)


def _simplified(a: LoopAccess) -> LoopAccess:
    """The access with indices simplified by the ranges of its loops, as far as these are numbers."""
    known = {v: (0, last) for v, n in a.ranges.items() if (last := n.const) is not None and last >= 0}
    if not any(type(x) is Op for p in a.indices if p is not None for m, _ in p.terms for x in m):
        return a
    return replace(a, indices=tuple([simplify(p, known) if p is not None and p.vars <= known.keys() else p for p in a.indices]))


def _is_folded(loop: For, reduced: Sequence[Block]) -> bool:
    """Whether the loop is a horizontal reduction: one update that can be reassociated, without an init, inside a block or not."""
    n: object = loop.body
    while type(n) is For and n.kind == "vectorized":
        n = n.body
    if type(n) is Block:
        return n in reduced and n.init is None and reassociable_update(n) is not None
    return reduction_update(n) is not None


def is_independent(s: ScheduleState, loop: For, private: bool = True, same_values: bool = True) -> bool:
    """Whether `parallel` would accept the loop, for rules that test before they schedule; the rest is that of `check_independent`."""
    try:
        check_independent(s, loop, "independent", private=private, same_values=same_values)
    except ScheduleError:
        return False
    return True


class _Instances:
    """The loops whose iterations two accesses must share to access one element; within a block, mostly those of one instance."""

    def __init__(self, s: ScheduleState) -> None:
        self._state = s
        self._digits: dict[str, set[Var] | None] = {}

    def shared(self, a: LoopAccess, b: LoopAccess, wanted: Var | None = None) -> set[Var]:
        """Loops around both accesses whose iterations must be equal; if `wanted` is among them, others may be missing."""
        block = a.block
        if block is None or b.block is not block:
            return shared_iterations(a, b, wanted)
        if block.name not in self._digits:
            self._digits[block.name] = digits_of(self._state, block) if is_one_element(block) else None
        # Accesses to one element belong to one instance, up to its reduction steps.
        return self._digits[block.name] or shared_iterations(a, b, wanted)


def is_one_element(block: Block) -> bool:
    """Whether all accesses to the buffers that the block writes use one tuple of indices with every spatial iteration variable."""
    made = {w.buffer: w.indices for w in writes(block)}
    spatial = {n for n, it in enumerate(block.iters) if it.kind == "S" and it.extent != 1}
    return all(a.indices == made[a.buffer] for a in accesses(block) if a.buffer in made) and all(
        spatial <= {plain_iter(e, block) for e in at} for at in made.values()
    )


def _conflicting(found: Sequence[LoopAccess], buffers: Sequence[Buffer]) -> Iterator[tuple[LoopAccess, LoopAccess]]:
    """Pairs of accesses to one of the buffers, the first a write, without duplicates."""
    for buffer in buffers:
        mine: dict[object, LoopAccess] = {}
        for x in found:
            if x.buffer is buffer:
                mine.setdefault((x.indices, x.is_write, x.loops, None if x.block is None else x.block.name), x)
        each = list(mine.values())
        for i, a in enumerate(each):
            yield from ((a, b) for b in each[i:] if a.is_write) if a.is_write else ((b, a) for b in each[i + 1 :] if b.is_write)


def _writes_same_value(s: ScheduleState, a: LoopAccess, b: LoopAccess, loops: tuple[For, ...]) -> bool:
    """Whether both are stores of one block that writes the same value to an element in every iteration of the loops."""
    block = a.block
    if block is None or b.block is not block or not (a.is_write and b.is_write) or block.init is not None:
        return False
    made = {w.buffer for w in writes(block)}
    if any(not x.is_write and x.buffer in made for x in accesses(block)):
        return False
    return is_settled(s, block, loops)


def _conflict(a: LoopAccess, b: LoopAccess, loop: For) -> str:
    def name(x: LoopAccess) -> str:
        what = "writes" if x.is_write else "reads"
        at = ", ".join("?" if i is None else str(i) for i in x.indices)
        return f"block {x.block.name if x.block else '?'} {what} {x.buffer.name}[{at}]"

    first, second = name(a), name(b)
    pair = first if first == second else f"{first} and {second}"
    return (
        f"different iterations of loop {loop.var.name} may access one element of {a.buffer.name}: {pair}. Choose a loop whose iterations "
        "use different elements, or split the reduction with rfactor"
    )


def check_order(s: ScheduleState, block: Block, old: Sequence[For], new: Sequence[For], label: str) -> None:
    """Refuse a new order of the loops around one block if dependences between its instances forbid it.

    Loops whose iterations are equal for all conflicting instances may have any position.  The others keep their order, except loops of a
    reduction that can be reassociated.

    Args:
        s: the schedule.
        block: the block in the nest.
        old: the loops, outermost first; the first contains all others.
        new: the same loops in the new order.
        label: label of the refusal.
    """
    found = loop_accesses(old[0])
    written = list(dict.fromkeys(a.buffer for a in found if a.is_write))
    reassociable = reassociable_update(block) is not None
    instances = _Instances(s)
    for a, b in _conflicting(found, written):
        shared = instances.shared(a, b)
        before, after = ([f.var for f in loops if f.var not in shared] for loops in (old, new))
        if before == after or (reassociable and (block.init is None or _starts_first(s, block, before))):
            continue
        if not _writes_same_value(s, a, b, tuple(old)):
            names = ", ".join(v.name for v in before)
            raise s.refuse(label, f"instances of block {block.name} depend on each other along {names}, which must keep their order", block)


def _starts_first(s: ScheduleState, block: Block, loops: Sequence[Var]) -> bool:
    """Whether the loops bind only reduction variables, and the reduction starts once, in their first iteration."""
    used: dict[str, set[Var]] = {"S": set(), "R": set()}
    for it, e in zip(block.iters, block.bindings, strict=True):
        used[it.kind] |= e.vars
    if not all(v in used["R"] and v not in used["S"] for v in loops):
        return False
    return any(digits_of(s, each, "R") is not None for each in (block, block.with_(predicate=())))
