"""Measure expressions as the trees that passes walk, and refuse those that are too deep or too large.

Passes walk an expression by recursion, and an expression that is shared is walked once for each use.  So both its depth and the
number of its nodes, written out as a tree, have a limit; within it each pass of the compiler stays within Python's stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Const, Expr
from tunesmith.ir.node import Node
from tunesmith.ir.poly import Poly
from tunesmith.support.errors import ScriptError

MAX_DEPTH = 120
"""Expressions inside one another.  A level takes up to five frames of Python's stack, which has 1,000; scripts have the same limit."""

MAX_NODES = 1 << 16
"""Nodes of one expression, a shared part counted at each use.  A pass takes about a microsecond for each."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large an expression is: nodes as a tree, and the longest way to a leaf; a leaf has depth 1."""

    nodes: int
    depth: int

    @property
    def fits(self) -> bool:
        """Whether every pass can walk it."""
        return self.nodes <= MAX_NODES and self.depth <= MAX_DEPTH


LEAF = Size(1, 1)


def size_of(root: Expr, inlined: Mapping[Buffer, Size] | None = None) -> Size:
    """The size of an expression.

    Args:
        root: it; shared parts are visited once, whatever the size of the tree.
        inlined: buffers whose loads count as expressions of these sizes.
    """
    known: dict[int, Size] = {}
    swap = inlined or {}
    stack: list[tuple[Any, bool]] = [(root, False)]
    while stack:
        n, ready = stack.pop()
        if id(n) in known:
            continue
        t = type(n)
        if t is Poly or t is Const:
            known[id(n)] = LEAF
        elif not isinstance(n, Node):
            known[id(n)] = LEAF  # no expression, which is for others to say
        elif t is BufferLoad:
            known[id(n)] = swap.get(n.buffer, LEAF)  # type: ignore[attr-defined]
        else:
            kids: list[Any] = []
            n.each_child(kids.append)
            if ready:
                parts = [known[id(k)] for k in kids]
                known[id(n)] = Size(1 + sum([p.nodes for p in parts]), 1 + max([p.depth for p in parts], default=0))
            else:
                stack.append((n, True))
                stack.extend([(k, False) for k in kids])
    return known[id(root)]


def check_size(root: Expr, what: str) -> None:
    """Raise ScriptError when passes cannot walk an expression; `what` names it."""
    size = size_of(root)
    if not size.fits:
        raise ScriptError(
            f"{what} has {size.nodes} nodes, written out as a tree, and depth {size.depth}; at most {MAX_NODES} nodes and depth "
            f"{MAX_DEPTH} are compiled. Store parts of it to buffers of their own"
        )
