"""Divide a formula that is too deep or too large for the compiler passes into stages, each with its own tensor.

Passes traverse expressions recursively and as trees (`ir.expression_size`).  A sum of 2,000 terms is 2,000 levels deep, and a value that
is squared 40 times is a tree of 2**40 nodes; as stages both are a few short formulas.  Storing and loading a value does not change its
bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Const, Expr, Select
from tunesmith.ir.expression_size import LEAF, MAX_DEPTH, MAX_NODES, ExpressionSize, size_of
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.poly import Poly, Var
from tunesmith.support.errors import ScriptError

STAGE_DEPTH = 60
STAGE_NODES = 512
"""Depth and size from which a part becomes a stage, if the whole formula exceeds the limits of an expression."""

_LEAVES = (Poly, Const, BufferLoad)


def divide_formula(root: Expr, name: str, bound: frozenset[Var], stage: Callable[[Expr], Expr]) -> Expr:
    """`root` itself if it fits, otherwise the formula of the last stage.

    A part may become a stage if it is evaluated unconditionally and depends on no variable that the formula binds.

    Args:
        root: the formula.
        name: name of the tensor, for the error.
        bound: variables that the formula binds: those of its reduction.
        stage: makes a tensor of a part, and returns the load of its element.
    Raises:
        ScriptError: a part that cannot be divided is too deep or too large.
    """
    if size_of(root).fits:
        return root
    always = _always(root)
    made: dict[int, Any] = {}
    sizes: dict[int, ExpressionSize] = {}
    free: dict[int, bool] = {}
    alive: list[Any] = []  # keeps objects alive, so that their ids stay unique
    stack: list[tuple[Any, bool]] = [(root, False)]
    while stack:
        n, ready = stack.pop()
        if id(n) in made:
            continue
        kids: list[Any] = []
        if type(n) is not Poly:
            n.each_child(kids.append)
        if not ready and kids:
            stack.append((n, True))
            stack.extend([(k, False) for k in reversed(kids)])
            continue
        new = n.map_children(lambda k: made[id(k)]) if kids else n
        size = LEAF if isinstance(n, _LEAVES) else ExpressionSize.above([sizes[id(k)] for k in kids])
        free[id(n)] = n.vars.isdisjoint(bound) if type(n) is Poly else all([free[id(k)] for k in kids])
        large = size.depth >= STAGE_DEPTH or size.nodes >= STAGE_NODES
        if large and n is not root and id(n) in always and free[id(n)] and not isinstance(n, _LEAVES):
            new, size = stage(new), LEAF
        made[id(n)], sizes[id(n)] = new, size
        alive.append(new)
    size = sizes[id(root)]
    if not size.fits:
        raise ScriptError(
            f"compute {name}: the formula has {size.nodes} nodes as a tree, and depth {size.depth}; at most {MAX_NODES} nodes and depth "
            f"{MAX_DEPTH} are compiled, and it could not be divided. Move parts of it to a separate compute"
        )
    out: Expr = made[id(root)]
    return out


def _always(root: Expr) -> set[int]:
    """The parts, by identity, that are evaluated unconditionally."""
    found: set[int] = set()
    stack: list[Any] = [root]
    while stack:
        n = stack.pop()
        if id(n) in found:
            continue
        found.add(id(n))
        if type(n) is Select:
            stack.append(n.cond)
        elif type(n) is IndirectIndex:
            stack.append(n.value)
        elif type(n) is not Poly:
            n.each_child(stack.append)
    return found
