"""Refuse steps on blocks that conflict with statements outside of blocks, or with conditions around them.

A step that moves, adds or deletes blocks analyses the accesses of blocks only.  A store outside of blocks, or the condition of an `if`,
accesses buffers too, and a block inside an `if` does not always run.
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
    """Whether the statement accesses memory outside of blocks, or in a condition."""
    return any(True for _ in _outside(n))


def check_in_blocks(s: ScheduleState, block: Block, label: str, buffer: Buffer | None = None) -> None:
    """Refuse a step if a statement outside of blocks, or the condition of an `if`, accesses the data of the block.

    Args:
        s: the schedule.
        block: the block that the step moves, extends or deletes.
        label: label of the refusal.
        buffer: the buffer to check; None for all buffers that the block accesses.
    """
    others = [x for n in _outside(s.func.body) for x in walk(n) if isinstance(x, (BufferLoad, BufferStore))]
    if not others:
        return
    mine = [a for a in accesses(block) if buffer is None or a.buffer is buffer]
    for x in others:
        if any(a.buffer is x.buffer and (a.is_write or type(x) is BufferStore) for a in mine):
            what = f"a plain store or the condition of an `if` accesses {x.buffer.name}, which block {block.name} accesses too"
            raise s.refuse(label, f'{what}. Put it into `with T.block("name"):`', block)


def check_unconditional(s: ScheduleState, block: Block, label: str, within: Stmt | None = None) -> None:
    """Refuse a block inside an `if` (inside `within`, if given): a step that moves it would lose the condition."""
    path = s.path(block.name)
    inside = path[path.index(within) :] if within in path else path
    if any(type(n) is If for n in inside):
        raise s.refuse(label, f"block {block.name} is inside an `if`, whose condition would be lost. Write the condition as T.where", block)


def _outside(n: Any) -> Iterable[Any]:
    """Statements and conditions outside of blocks that access memory."""
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
