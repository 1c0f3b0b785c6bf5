"""Order nests of unrolled loops so that the vectors that stay alive fit the registers.

The straight-line code of an unrolled nest runs in the order of its loops.  LLVM loads every operand once and keeps it until its last use,
and it does not change the order much: an operand that an outer loop uses again stays alive through the loops inside that it depends on.
Of a tile C[i, j] += A[i] * B[j] the loops (i, j) keep one A and all B, the loops (j, i) one B and all A.  Of a window
C[j] += A[j + k] * B[k] the loops (k, j) keep all A but one, because the next k uses them again; the loops (j, k) keep a few A and all B.

Rewrite, for 16 vector registers and vectors of 8:
    for i in T.unroll(2):
        for j in T.unroll(6):
            for v in T.vectorized(8):
                C[i, j, v] += A[j] * B[i, v]
  ->
    for j in T.unroll(6):
        for i in T.unroll(2):
            for v in T.vectorized(8):
                C[i, j, v] += A[j] * B[i, v]

Loops of reductions keep their order, so the terms of every element are added as before.  Tiles that fit the registers stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod
from typing import Any

from tunesmith.ir.analysis.access_regions import accesses
from tunesmith.ir.arith.linear import linear
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly, Var, poly, substitute
from tunesmith.ir.stmt import Block, BufferStore, For, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform, with_body
from tunesmith.lower.pass_infra import function_pass
from tunesmith.support import dtype as dt

MOST_LOOPS = 5
"""Loops of a nest whose orders are compared; longer nests stay."""


@function_pass(requires="SCHEDULED", level=2)
def order_unrolled_loops(func: PrimFunc, target: Target) -> PrimFunc:
    """Order the perfect nests of unrolled loops around one vectorized loop and one block; `func` itself when all stay."""
    if not target.is_cpu:
        return func

    def on_for(n: For, recurse: Any) -> Stmt:
        nest = _nest(n)
        return n.map_children(recurse) if nest is None else _ordered(nest, target)

    return with_body(func, transform(func.body, {For: on_for}))


@dataclass(frozen=True, slots=True)
class _Nest:
    """Unrolled loops (outermost first) around a vectorized loop around a block."""

    unrolled: tuple[For, ...]
    vectorized: For
    block: Block


def _nest(n: Stmt) -> _Nest | None:
    """The nest that begins at a loop, if its unrolled loops may run in any order."""
    unrolled: list[For] = []
    while type(n) is For and n.kind == "unrolled" and not n.annotations and n.extent.const is not None:
        unrolled.append(n)
        n = n.body
    if not 2 <= len(unrolled) <= MOST_LOOPS or type(n) is not For or n.kind != "vectorized" or n.extent.const is None:
        return None
    block = n.body
    if type(block) is not Block or not _independent(block, [x.var for x in unrolled], n.var):
        return None
    return _Nest(tuple(unrolled), n, block)


def _independent(block: Block, loops: Sequence[Var], lanes: Var) -> bool:
    """Whether elements are independent: each loop of a spatial variable stores other elements, and no element loads another one."""
    store = block.body
    if type(store) is not BufferStore:
        return False
    for it, binding in zip(block.iters, block.bindings, strict=True):
        if it.kind == "S" and not binding.vars.isdisjoint(loops) and poly(it.var) not in store.indices:
            return False
    spatial, reducing = _loops_of(block, "S"), _loops_of(block, "R")
    if lanes in reducing or any((x in spatial) == (x in reducing) for x in loops):
        return False
    return all(a.indices == store.indices for a in accesses(block) if a.buffer is store.buffer)


def _loops_of(block: Block, kind: str) -> frozenset[Var]:
    """The loops that variables of a kind depend on."""
    return frozenset().union(*[b.vars for it, b in zip(block.iters, block.bindings, strict=True) if it.kind == kind])


def _ordered(nest: _Nest, target: Target) -> Stmt:
    """The nest in the order that keeps the fewest vectors alive, if its own order keeps more than the registers hold."""
    store, bound = nest.block.body, {it.var: b for it, b in zip(nest.block.iters, nest.block.bindings, strict=True)}
    assert type(store) is BufferStore
    found = accesses(nest.block)
    widest = max([dt.bits(a.buffer.dtype) for a in found])
    lanes = max(target.vector_lanes("float32") * 32 // widest, 1)
    vectors = -(-_size(nest.vectorized) // lanes)
    # Accesses of equal indices are one operand.
    at = {(a.buffer, a.indices): tuple([substitute(e, bound) for e in a.indices]) for a in found if a.buffer is not store.buffer}
    operands = [_Operand(indices, vectors if any(nest.vectorized.var in e.vars for e in indices) else 1) for indices in at.values()]
    reducing = _loops_of(nest.block, "R")
    accumulators = vectors * prod(_size(x) for x in nest.unrolled if x.var not in reducing)

    def alive(order: Sequence[For]) -> int:
        return sum(x.alive(order) for x in operands)

    if accumulators + alive(nest.unrolled) < target.vector_registers:
        return nest.unrolled[0]
    fixed = [x for x in nest.unrolled if x.var in reducing]
    orders = [order for order in permutations(nest.unrolled) if [x for x in order if x.var in reducing] == fixed]
    best = min(orders, key=alive)
    if best == nest.unrolled:
        return nest.unrolled[0]
    body: Stmt = nest.vectorized
    for x in reversed(best):
        body = x.with_(body=body)
    return body


@dataclass(frozen=True, slots=True)
class _Operand:
    """A load of the block, with indices in terms of the loops, and the vectors of one iteration of the unrolled loops."""

    indices: tuple[Poly, ...]
    vectors: int

    def alive(self, order: Sequence[For]) -> int:
        """Vectors that are alive at once: of the loops that the load depends on, inside of one that loads the same elements again."""
        sizes = [self.vectors]
        for n, x in enumerate(order):
            if self._depends(x) and any(not self._depends(y) or self._overlaps(y, x) for y in order[:n] if _size(y) > 1):
                sizes.append(_size(x))
        return prod(sizes)

    def _depends(self, x: For) -> bool:
        return any(x.var in e.vars for e in self.indices)

    def _overlaps(self, x: For, y: For) -> bool:
        """Whether a step of one loop is one of the other, as in j + k."""
        return any(
            x.var in e.vars
            and y.var in e.vars
            and (split := linear(e, x.var, ()))
            and (other := linear(e, y.var, ()))
            and split[0] == other[0]
            for e in self.indices
        )


def _size(loop: For) -> int:
    assert loop.extent.const is not None
    return loop.extent.const
