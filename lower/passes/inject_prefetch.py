"""Prefetch the operand of the next iteration of a loop, spread evenly over the current iteration.

The first tile of rows that uses a panel of weights waits for memory and runs at a fraction of the speed of later tiles.  A prefetch of
the whole panel at once would delay other loads; spread over all tiles it costs a few instructions (source: the prefetch directive of
Halide, but evenly in time).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Call
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectVar
from tunesmith.ir.poly import ZERO, Poly, Var, evaluate, poly
from tunesmith.ir.stmt import Block, Evaluate, For, Stmt, annotation, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import path_to_block, substitute, transform, walk, with_body
from tunesmith.lower.pass_infra import function_pass
from tunesmith.support import dtype as dt

MAX_LINES = 8
"""Limit on the cache lines per prefetch site: an operand that needs more per iteration is used once, and no prefetch helps it."""


@function_pass(requires="SCHEDULED", level=2)
def inject_prefetch(func: PrimFunc, target: Target) -> PrimFunc:
    """Add prefetches to loops with the annotations `prefetch_operand` (a buffer) and `prefetch_ahead` (iterations, 0 for none).

    The innermost serial loop around a load of the operand begins with prefetches to the second-level cache.  There are none if the
    address does not increase with the loop, extents are not constant, or the load has an indirect index.
    """
    if not any(k == "prefetch_ahead" for n in walk(func.body) if type(n) is For for k, _ in n.annotations):
        return func

    def on_for(n: For, recurse: Any) -> Stmt:
        ahead, operand = annotation(n, "prefetch_ahead"), annotation(n, "prefetch_operand")
        m: For = n.map_children(recurse)
        if ahead is None:
            return m
        m = m.with_(annotations=tuple([(k, v) for k, v in m.annotations if k not in ("prefetch_ahead", "prefetch_operand")]))
        if not isinstance(ahead, Poly) or not ahead.const or not isinstance(operand, str):
            return m
        return _spread(m, operand, ahead.const, target)

    return with_body(func, transform(func.body, {For: on_for}))


def _spread(loop: For, operand: str, ahead: int, target: Target) -> Stmt:
    blocks = [b for b in walk(loop.body) if type(b) is Block]
    found = [(b, x) for b in blocks for x in walk(b.body) if type(x) is BufferLoad and x.buffer.name == operand]
    if not found:
        return loop
    block, load = found[0]
    path = path_to_block(loop, block.name) or []
    inner = [x for x in path if type(x) is For and x is not loop and x.kind == "serial"]
    if not inner or any(x.extent.const is None for x in inner) or any(e.const is None for e in load.buffer.shape):
        return loop
    if any(isinstance(v, IndirectVar) for i in load.indices for v in i.vars):
        return loop
    # The first element that an iteration of the loop reads, and its distance in memory to that of the next iteration.
    index = [substitute(i, {it.var: b for it, b in zip(block.iters, block.bindings, strict=True)}) for i in load.indices]
    within = {x.var: ZERO for x in path if type(x) is For and x is not loop}
    first = tuple([substitute(i, within) for i in index])
    step = _offset(first, loop.var, load.buffer.shape, 1) - _offset(first, loop.var, load.buffer.shape, 0)
    times = 1
    for x in inner:
        times *= x.extent.const or 1
    if step <= 0:
        return loop
    share = -(-step // times)
    line = target.cache_line // dt.nbytes(load.buffer.dtype)
    if share > MAX_LINES * line:
        return loop
    done, size = ZERO, 1
    for x in reversed(inner):
        done, size = done + poly(x.var) * size, size * (x.extent.const or 1)
    start = done * share + step * ahead
    fetches = [
        Evaluate(Call("prefetch_l2", (BufferLoad(load.buffer, (*first[:-1], first[-1] + start + at)),), load.dtype))
        for at in range(0, share, line)
    ]
    return transform(loop, {For: lambda n, recurse: _with_prefetches(n, fetches) if n is inner[-1] else n.map_children(recurse)})


def _offset(index: Sequence[Poly], var: Var, shape: Sequence[Poly], value: int) -> int:
    """The row-major offset of an element, with `var` at `value` and all other variables at 0."""
    out = 0
    for i, extent in zip(index, shape, strict=True):
        values = dict.fromkeys(i.vars, 0) | {var: value}
        out = out * (extent.const or 1) + evaluate(i, values)
    return out


def _with_prefetches(n: For, fetches: Sequence[Stmt]) -> For:
    return n.with_(body=seq([*fetches, n.body]))
