"""Measure expressions as trees, and reject those that are too deep or too large for the passes.

Passes walk expressions recursively and visit a shared subexpression once per use.  Both limits, on depth and on the number of nodes of the
expanded tree, keep every compiler pass within Python's stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Const, Expr
from tunesmith.ir.node import Node
from tunesmith.ir.poly import Poly
from tunesmith.support.errors import ScriptError

MAX_DEPTH = 120
"""Maximum nesting depth.  A level takes up to five frames of Python's stack, which has 1,000; scripts have the same limit."""

MAX_NODES = 1 << 16
"""Maximum nodes of an expression, shared parts counted once per use.  A pass takes about a microsecond per node."""


@dataclass(frozen=True, slots=True)
class ExpressionSize:
    """Size of an expression: nodes of the expanded tree, and depth of the longest path; a leaf has depth 1."""

    nodes: int
    depth: int

    @classmethod
    def above(cls, parts: Sequence[ExpressionSize]) -> ExpressionSize:
        """The size of a node with these children."""
        return cls(1 + sum([p.nodes for p in parts]), 1 + max([p.depth for p in parts], default=0))

    @property
    def fits(self) -> bool:
        """Whether both limits hold, so that every pass can walk the expression."""
        return self.nodes <= MAX_NODES and self.depth <= MAX_DEPTH


LEAF = ExpressionSize(1, 1)


def size_of(root: Expr, inlined: Mapping[Buffer, ExpressionSize] | None = None) -> ExpressionSize:
    """The size of an expression.

    Args:
        root: the expression; shared parts are visited once.
        inlined: sizes counted for loads of these buffers, as if their producers were inlined.
    """
    known: dict[int, ExpressionSize] = {}
    swap = inlined or {}
    stack: list[tuple[Any, bool]] = [(root, False)]
    while stack:
        n, ready = stack.pop()
        if id(n) in known:
            continue
        if isinstance(n, (Poly, Const)):
            known[id(n)] = LEAF
        elif not isinstance(n, Node):
            known[id(n)] = LEAF  # not an expression: the verifier reports it
        elif isinstance(n, BufferLoad):
            known[id(n)] = swap.get(n.buffer, LEAF)
        else:
            kids: list[Any] = []
            n.each_child(kids.append)
            if ready:
                known[id(n)] = ExpressionSize.above([known[id(k)] for k in kids])
            else:
                stack.append((n, True))
                stack.extend([(k, False) for k in kids])
    return known[id(root)]


def check_size(root: Expr, what: str) -> None:
    """Raise ScriptError when an expression exceeds the limits; `what` names it in the message."""
    size = size_of(root)
    if not size.fits:
        raise ScriptError(
            f"{what} has {size.nodes} nodes, expanded as a tree, and depth {size.depth}; the limits are {MAX_NODES} nodes and depth "
            f"{MAX_DEPTH}. Store parts of it to separate buffers"
        )
