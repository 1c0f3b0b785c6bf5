"""Group the operations of a block by the iteration variables that they depend on: a compiler computes the others' once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunesmith.ir.analysis.access_regions import writes
from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Expr
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.stmt import BindIndex, Block

Variables = frozenset[Var]


def operation_groups(block: Block, kind: Callable[[Any], tuple[str, int] | None]) -> dict[Variables, dict[str, int]]:
    """Operations of one instance of a block's body, by the iteration variables that their values depend on, then by kind.

    Args:
        block: a block.
        kind: maps an expression to its kind and the number of its operations, or to None if it has none; conditions on indices of kind
            "mask" are not entered.
    """
    own = frozenset([it.var for it in block.iters])
    changed = {a.buffer for a in writes(block)}
    bound: dict[Var, Variables] = {}
    out: dict[Variables, dict[str, int]] = {}

    def visit(n: Any) -> Variables:
        if type(n) is Poly:
            return frozenset().union(*[bound.get(v, frozenset([v]) & own) for v in n.vars])
        if isinstance(n, (IndirectIndex, BindIndex)):
            bound[n.var] = visit(n.value)
        counted = kind(n) if isinstance(n, Expr) else None
        found: Variables = own if type(n) is BufferLoad and n.buffer in changed else frozenset()
        kids: list[Any] = []
        n.each_child(kids.append)
        found = found.union(*[visit(k) for k in kids])
        if counted is not None:
            group = out.setdefault(found, {})
            group[counted[0]] = group.get(counted[0], 0) + counted[1]
        return found

    visit(block.body)
    return out
