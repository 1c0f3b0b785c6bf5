"""Move guards out of the loops that they do not depend on.

A GPU executes the loads of an unrolled loop one after the other if each has a guard of its own: around the loop, one branch lets all of
them start at once.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Expr, IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.stmt import For, If, Seq, Stmt, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform, walk, with_body
from tunesmith.lower.pass_infra import function_pass

KINDS = ("serial", "unrolled")
"""Loops that guards leave; the loops of threads enclose a kernel."""


@function_pass(requires="FLAT", level=2)
def hoist_guards(func: PrimFunc, target: Target) -> PrimFunc:
    """Move a guard around the whole body of a loop out of it, and join adjacent statements with equal guards.

    Rewrite:
        for k in range(64):
            if i < 1000: S1(k)
            if i < 1000: S2(k)
      ->
        if i < 1000:
            for k in range(64):
                S1(k)
                S2(k)
    """

    def on_for(n: For, recurse: Any) -> Stmt:
        out: For = n.map_children(recurse)
        guard = out.body
        if out.kind not in KINDS or type(guard) is not If or not _is_guard(guard) or n.var in guard.cond.index.vars:  # type: ignore[attr-defined]
            return out
        return If(guard.cond, out.with_(body=guard.then))

    def on_seq(n: Seq, recurse: Any) -> Stmt:
        out: Seq = n.map_children(recurse)
        groups = [list(group) for _, group in groupby(enumerate(out.stmts), _key)]
        return out if len(groups) == len(out.stmts) else seq([_joined([x for _, x in group]) for group in groups])

    return with_body(func, transform(func.body, {For: on_for, Seq: on_seq}))


def _is_guard(n: Stmt) -> bool:
    """Whether a statement is a branch on an index without memory accesses, and has no other branch."""
    return type(n) is If and n.orelse is None and type(n.cond) is IsNegative and n.cond.lanes == 1 and not _accesses_memory(n.cond)


def _accesses_memory(cond: Expr) -> bool:
    return any(type(x) in (BufferLoad, IndirectIndex) for x in walk(cond))


def _key(numbered: tuple[int, Stmt]) -> object:
    """Equal for adjacent statements with equal guards; a statement without one is alone."""
    number, n = numbered
    return n.cond.index if _is_guard(n) else number  # type: ignore[attr-defined]


def _joined(stmts: list[Stmt]) -> Stmt:
    first: Any = stmts[0]
    return first if len(stmts) == 1 else If(first.cond, seq([n.then for n in stmts]))  # type: ignore[attr-defined]
