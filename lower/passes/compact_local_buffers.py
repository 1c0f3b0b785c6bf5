"""Compact a thread-local buffer accessed with a constant stride to the elements used.

For example, if an index is `128 * c + x` with x below 4, the dimension is split into one of c and one of x.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.stmt import Allocate, BufferStore, For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform, with_body
from tunesmith.lower.pass_infra import function_pass

Linear = list[tuple[int, int, Poly]]
"""Terms of an index: (coefficient, highest value of the variable, term)."""


@function_pass(requires="OPAQUE", level=2)
def compact_local_buffers(func: PrimFunc, target: Target) -> PrimFunc:
    """Compact all allocations of scope local."""

    def on_allocate(n: Allocate, recurse: Any) -> Any:
        m = n.map_children(recurse)
        return compacted(m) if m.buffer.scope == "local" else m

    return with_body(func, transform(func.body, {Allocate: on_allocate}))


def compacted(n: Allocate) -> Allocate:
    """The allocation with dimensions split at gaps that no access uses; the same object if there are none."""
    found: list[tuple[Poly, ...]] = []
    highest: dict[Var, int] = {}

    def collect(x: Any) -> None:
        if type(x) is For:
            highest[x.var] = -1 if x.extent.const is None else x.extent.const - 1
        if type(x) in (BufferLoad, BufferStore) and x.buffer is n.buffer:
            found.append(x.indices)
        x.each_child(lambda k: None if type(k) is Poly else collect(k))

    collect(n.body)
    steps: list[int] = []
    shape: list[int | Poly] = []
    for d, extent in enumerate(n.buffer.shape):
        terms = [_linear_terms(at[d], highest) for at in found]
        step, low, high = _best_split([t for t in terms if t is not None], extent.const) if None not in terms else (0, 0, 0)
        steps.append(step)
        shape += [high, low] if step else [extent]
    if not any(steps):
        return n
    new = n.buffer.like(shape=shape)

    def on_access(x: Any, recurse: Any) -> Any:
        m = x.map_children(recurse)
        if x.buffer is not n.buffer:
            return m
        at: list[Poly] = []
        for step, index in zip(steps, m.indices, strict=True):
            at += _split_index(index, step) if step else [index]
        return m.with_(buffer=new, indices=tuple(at))

    body = transform(n.body, {BufferLoad: on_access, BufferStore: on_access})
    return compacted(Allocate(new, body))


def _linear_terms(index: Poly, highest: dict[Var, int]) -> Linear | None:
    """The terms of an index; None unless each is a positive constant times an inner loop variable."""
    out: Linear = []
    for m, c in index.terms:
        v = m[0] if len(m) == 1 else None
        if not isinstance(v, Var) or highest.get(v, -1) < 0 or c < 1:
            return None
        out.append((c, highest[v], Poly(((m, c),))))
    return out


def _best_split(accesses: list[Linear], extent: int | None) -> tuple[int, int, int]:
    """(step, extent of the inner dimension, extent of the outer dimension) with the fewest elements; step 0 if there is no gap."""
    best, least = (0, 0, 0), extent or 0
    for step in sorted({c for terms in accesses for c, _, _ in terms if c > 1}):
        low = max([1 + sum(c * h for c, h, _ in terms if c % step) for terms in accesses])
        high = max([1 + sum(c // step * h for c, h, _ in terms if not c % step) for terms in accesses])
        if low < step and low * high < least:
            best, least = (step, low, high), low * high
    return best


def _split_index(index: Poly, step: int) -> list[Poly]:
    """[outer, inner] index of a linear index split at `step`."""
    outer = {m: c // step for m, c in index.terms if not c % step}
    inner = {m: c for m, c in index.terms if c % step}
    return [Poly(tuple(outer.items())), Poly(tuple(inner.items()))]
