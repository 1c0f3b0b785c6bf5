"""Order the evaluation of expressions: operands first, branches for select sides that must not be speculated.

Expressions with expanded functions share subtrees and are deeper than Python's stack; both walks keep an explicit stack and visit each
object once.
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
"""Depth of nested expressions that are emitted by recursion, with three Python stack frames each."""

_LEAVES = frozenset({Poly, Const, BufferLoad})


def operands_first(e: Expr, is_computed: Callable[[Any], bool]) -> Iterator[Expr]:
    """The operands to compute before `e`, bottom-up, without those that may have to be computed in a branch."""
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
    """Whether a side must not be speculated: it has a load that is not available yet, or an integer division."""
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
