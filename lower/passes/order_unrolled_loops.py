"""Order nests of unrolled loops so that the vectors that stay alive fit the registers.

The straight-line code of an unrolled nest runs in the order of its loops.  LLVM loads every operand once and keeps it until its last use,
and it does not change the order much: an operand that does not depend on an outer loop stays alive through the loops inside that it does
depend on.  Of a tile C[i, j] += A[i] * B[j] the loops (i, j) keep one A and all B, (j, i) one B and all A.

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

Loops of reductions keep their places, so every element is computed as before.  Tiles that fit the registers in any order keep theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod
from typing import Any

from tunesmith.ir.analysis.access_regions import accesses
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.stmt import Block, BufferStore, For, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform, with_body
from tunesmith.lower.pass_infra import function_pass
from tunesmith.support import dtype as dt

MOST_LOOPS = 5
"""Loops of a nest whose orders are compared; longer nests stay."""


@function_pass(requires="SCHEDULED")
def order_unrolled_loops(func: PrimFunc, target: Target) -> PrimFunc:
    """Order the perfect nests of unrolled spatial loops around one vectorized loop and one block; `func` itself when all stay."""
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
    if type(block) is not Block or not _independent(block, [x.var for x in unrolled]):
        return None
    return _Nest(tuple(unrolled), n, block)


def _independent(block: Block, loops: Sequence[Var]) -> bool:
    """Whether the iterations of the loops store different elements and load none that another of them stores."""
    store = block.body
    if type(store) is not BufferStore:
        return False
    for it, binding in zip(block.iters, block.bindings, strict=True):
        if not binding.vars.isdisjoint(loops) and (it.kind != "S" or poly(it.var) not in store.indices):
            return False
    return all(a.indices == store.indices for a in accesses(block) if a.buffer is store.buffer)


def _ordered(nest: _Nest, target: Target) -> Stmt:
    """The nest in the order that keeps the fewest vectors alive, if its own order keeps more than the registers hold."""
    store = nest.block.body
    assert type(store) is BufferStore
    bound = {it.var: b.vars for it, b in zip(nest.block.iters, nest.block.bindings, strict=True)}
    operands: set[tuple[Any, frozenset[Var]]] = set()
    widest = dt.bits(store.buffer.dtype)
    for a in accesses(nest.block):
        widest = max(widest, dt.bits(a.buffer.dtype))
        if a.buffer is not store.buffer:
            operands.add(((a.buffer, a.indices), frozenset([x for e in a.indices for v in e.vars for x in bound.get(v, ())])))
    lanes = max(target.vector_lanes("float32") * 32 // widest, 1)
    vectors = -(-_size(nest.vectorized) // lanes)
    used = [depends for _, depends in operands]
    accumulators = vectors * prod(_size(x) for x in nest.unrolled)

    def alive(order: Sequence[For]) -> int:
        return sum(_alive(order, depends) * (vectors if nest.vectorized.var in depends else 1) for depends in used)

    if accumulators + alive(nest.unrolled) < target.vector_registers:
        return nest.unrolled[0]
    best = min(permutations(nest.unrolled), key=alive)
    if best == nest.unrolled:
        return nest.unrolled[0]
    body: Stmt = nest.vectorized
    for x in reversed(best):
        body = x.with_(body=body)
    return body


def _size(loop: For) -> int:
    assert loop.extent.const is not None
    return loop.extent.const


def _alive(order: Sequence[For], depends: frozenset[Var]) -> int:
    """Values of an operand that are alive at once: the loops that it depends on, inside of the outermost that uses it again."""
    sizes: list[int] = []
    repeated = False
    for x in order:
        if x.var in depends:
            sizes += [_size(x)] if repeated else []
        else:
            repeated |= _size(x) > 1
    return prod(sizes)
