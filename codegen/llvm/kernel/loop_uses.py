"""Collect the buffers, addresses and variables that each loop uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.poly import ZERO, Poly, Var, split_constant, substitute
from tunesmith.ir.stmt import BufferStore, For


@dataclass(slots=True)
class LoopUse:
    """The uses of one loop.

    Attributes:
        addresses: (buffer, varying part of an address), in program order, with the variables of inner loops at 0.
        buffers: all accessed buffers, including those of inner parallel loops.
        variables: all variables that occur, including bound ones.
    """

    addresses: dict[tuple[Buffer, Poly], None] = field(default_factory=dict)
    buffers: set[Buffer] = field(default_factory=set)
    variables: set[Var] = field(default_factory=set)


class LoopUses:
    """The uses of loops, each computed once from those of its inner loops.

    Args:
        parallel: the function is the body of a parallel loop, in which inner parallel loops run serially.
    """

    def __init__(self, parallel: bool) -> None:
        self._parallel = parallel
        self._loops: dict[For, LoopUse] = {}

    def of(self, n: For) -> LoopUse:
        """The uses of the loop."""
        known = self._loops.get(n)
        if known is not None:
            return known
        use = self._loops[n] = LoopUse(variables=set(n.extent.vars))
        seen: set[Any] = set()
        stack: list[Any] = [n.body]
        while stack:
            x = stack.pop()
            t = type(x)
            if t is Poly:
                if not x.vars <= use.variables:
                    use.variables |= x.vars
                continue
            if x in seen:
                continue
            seen.add(x)
            if t is For:
                inner = self.of(x)
                use.buffers |= inner.buffers
                use.variables |= inner.variables
                if x.kind != "parallel" or self._parallel:
                    for b, p in inner.addresses:
                        use.addresses[b, split_constant(substitute(p, {x.var: ZERO}))[0]] = None
                continue
            if t is BufferLoad or t is BufferStore:
                use.buffers.add(x.buffer)
                use.addresses[x.buffer, split_constant(x.indices[0])[0]] = None
            kids: list[Any] = []
            x.each_child(kids.append)
            stack.extend(reversed(kids))
        return use
