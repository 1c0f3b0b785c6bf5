"""Order the evaluation of expressions: which operands are computed first, and which sides of a choice need a branch.

An expression whose functions were expanded shares its parts, and is deeper than Python's stack; both walks use a stack of their own and
visit an object once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Binary, Const, Expr, Select
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.poly import Poly
from tunesmith.support import dtype as dt

NESTED = 64
"""Expressions inside one another that are computed by recursion, with three frames of Python's stack each."""

_LEAVES = frozenset({Poly, Const, BufferLoad})


def operands_first(e: Expr, is_computed: Callable[[Any], bool]) -> Iterator[Expr]:
    """What has to be computed before `e`, from the leaves up: all but what may have to be computed in a branch."""
    stack: list[tuple[Any, bool]] = [(e, False)]
    while stack:
        n, ready = stack.pop()
        if type(n) in _LEAVES or is_computed(n):
            continue
        if ready:
            if n is not e:
                yield n
            continue
        stack.append((n, True))
        kids: list[Any] = []
        if type(n) is Select and dt.lanes(n.cond.dtype) == 1:
            kids.append(n.cond)
        elif type(n) is IndirectIndex:
            kids.append(n.value)
        else:
            n.each_child(kids.append)
        stack.extend([(k, False) for k in reversed(kids)])


def needs_branch(e: Select, is_computed: Callable[[Any], bool]) -> bool:
    """Whether a side must not be computed in vain: it reads what was not read yet, or divides integers."""
    stack: list[Any] = [e.a, e.b]
    seen: set[int] = set()
    while stack:
        x = stack.pop()
        if type(x) is Poly or type(x) is Const or id(x) in seen or is_computed(x):
            continue
        seen.add(id(x))
        if type(x) is BufferLoad or (type(x) is Binary and x.op in ("floordiv", "mod") and type(x.b) is not Const):
            return True
        x.each_child(stack.append)
    return False
