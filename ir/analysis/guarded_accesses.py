"""Enumerate the accesses of a buffer below a statement without blocks, with the loops and guards around each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import IsNegative, Select
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.node import Node
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.stmt import BindIndex, BufferStore, For, If, While


@dataclass(frozen=True, slots=True)
class GuardedAccess:
    """A load or store, and what decides whether and how often it is executed.

    Attributes:
        node: the access.
        loops: the loops between the statement and the access, outermost first.
        ranges: highest values of their variables, of those of indirect indices, and of the variables given to `guarded_accesses`.
        guards: expressions that are < 0 whenever the access is executed.
        exact: whether the guards are all of its conditions.
    """

    node: BufferLoad | BufferStore
    loops: tuple[For, ...]
    ranges: Mapping[Var, Poly]
    guards: tuple[Poly, ...]
    exact: bool

    @property
    def indices(self) -> tuple[Poly, ...]:
        """One index for each dimension."""
        return self.node.indices

    @property
    def is_write(self) -> bool:
        """Whether it is a store."""
        return type(self.node) is BufferStore

    @property
    def is_whole(self) -> bool:
        """Whether it accesses all elements from its indices on: it has neither stride nor mask, and a load is of one element."""
        n = self.node
        return n.stride is None and n.mask is None and (isinstance(n, BufferStore) or n.lanes == 1)


def guarded_accesses(root: Node, buffer: Buffer, outer: Mapping[Var, Poly] | None = None) -> list[GuardedAccess]:
    """The accesses of `buffer` below `root`, in the order of their execution.

    Args:
        root: a statement or expression without blocks.
        buffer: the buffer.
        outer: highest values of variables that are bound outside of `root`, to be part of `ranges`.
    """
    out: list[GuardedAccess] = []

    def visit(n: Any, loops: tuple[For, ...], ranges: Mapping[Var, Poly], guards: tuple[Poly, ...], exact: bool) -> None:
        kind = type(n)
        if kind is Poly:
            return
        if kind is For:
            visit(n.body, (*loops, n), {**ranges, n.var: n.extent - 1}, guards, exact)
        elif kind is IndirectIndex or kind is BindIndex:
            visit(n.value, loops, ranges, guards, exact)
            visit(n.body, loops, {**ranges, n.var: n.extent - 1}, guards, False)
        elif kind is If:
            visit(n.cond, loops, ranges, guards, exact)
            scalar = type(n.cond) is IsNegative and n.cond.lanes == 1
            visit(n.then, loops, ranges, (*guards, n.cond.index) if scalar else guards, exact and scalar)
            if n.orelse is not None:
                visit(n.orelse, loops, ranges, guards, False)
        elif kind is While:
            visit(n.cond, loops, ranges, guards, exact)
            visit(n.body, loops, ranges, guards, False)
        else:
            inner = exact and kind is not Select
            n.each_child(lambda k: visit(k, loops, ranges, guards, inner))
            if (kind is BufferLoad or kind is BufferStore) and n.buffer is buffer:
                out.append(GuardedAccess(n, loops, ranges, guards, exact))

    visit(root, (), outer or {}, (), True)
    return out
