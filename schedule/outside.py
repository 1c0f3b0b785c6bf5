"""Code that steps on blocks do not see: statements outside of blocks, and conditions around them.

A step that moves, adds or deletes blocks reasons about the accesses of blocks.  A store beside them, or the condition of an `if`, uses
buffers too, and a block under an `if` does not always run.  Steps refuse where one of these matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tunesmith.ir.analysis.access_regions import accesses
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.stmt import Block, BufferStore, Evaluate, If, Stmt
from tunesmith.ir.visit import walk
from tunesmith.schedule.state import ScheduleState


def acts_outside_of_blocks(n: Stmt) -> bool:
    """Whether the statement uses memory outside of blocks, or under a condition."""
    return any(True for _ in _outside(n))


def check_in_blocks(s: ScheduleState, block: Block, label: str, buffer: Buffer | None = None) -> None:
    """Refuse a step where a statement outside of blocks, or the condition of an `if`, works on the same data as the block.

    Args:
        s: the schedule.
        block: what the step moves, adds to or deletes.
        label: of the refusal.
        buffer: the only one that matters; None for all that the block accesses.
    """
    others = [x for n in _outside(s.func.body) for x in walk(n) if isinstance(x, (BufferLoad, BufferStore))]
    if not others:
        return
    mine = [a for a in accesses(block) if buffer is None or a.buffer is buffer]
    for x in others:
        if any(a.buffer is x.buffer and (a.is_write or type(x) is BufferStore) for a in mine):
            what = f"a plain store or the condition of an `if` uses {x.buffer.name}, which block {block.name} works on"
            raise s.refuse(label, f'{what}. Put it into `with T.block("name"):`', block)


def check_unconditional(s: ScheduleState, block: Block, label: str, within: Stmt | None = None) -> None:
    """Refuse a block under an `if`, inside the statement `within` if one is given: what the step puts elsewhere would run without it."""
    path = s.path(block.name)
    inside = path[path.index(within) :] if within in path else path
    if any(type(n) is If for n in inside):
        raise s.refuse(label, f"block {block.name} runs under an `if`, which would be left behind. Write the condition as T.where", block)


def _outside(n: Any) -> Iterable[Any]:
    """Statements and conditions that no block holds, and that access memory."""
    t = type(n)
    if t is Block:
        return
    if t in (BufferStore, Evaluate):
        yield n
        return
    if t is If:
        yield from (x for x in (n.cond,) if any(isinstance(x, BufferLoad) for x in walk(n.cond)))
        yield from _outside(n.then)
        if n.orelse is not None:
            yield from _outside(n.orelse)
        return
    kids: list[Any] = []
    n.each_child(kids.append)
    for k in kids:
        if isinstance(k, Stmt):
            yield from _outside(k)
