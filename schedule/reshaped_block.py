"""Rewrite a block that reads a buffer in another shape, so that it runs over the elements of that buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.ir.analysis.access_regions import plain_iter, reads
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.poly import ONE, ZERO, Param, Poly, Var, floordiv, mod, poly, product, substitute
from tunesmith.ir.stmt import Block, Iter
from tunesmith.ir.visit import transform
from tunesmith.schedule.order import in_loops


def reshaped(block: Block, buffer: Buffer) -> Block | None:
    """The block with iteration variables that are the indices at which it reads `buffer`; None if this is not proven.

    Dimensions and iteration variables form groups.  In a group the indices must be the digits of one number, to the base of the buffer's
    extents, of which the iteration variables are the digits to the base of theirs: B[c // 8, c % 8] and B[i * 12 + j] for example.  The new
    bindings may be complex; the caller replaces them.
    """
    at = next((a.indices for a in reads(block) if a.buffer is buffer and any(plain_iter(e, block) is None for e in a.indices)), None)
    if at is None or block.init is not None:
        return None
    values: dict[Var, Poly] = {}
    fresh = {d: Iter(Var(f"r{d}"), n, "S") for d, n in enumerate(buffer.shape) if plain_iter(at[d], block) is None}
    for dims, iters in _groups(block, at):
        extents, bases = [it.extent for it in iters], [buffer.shape[d] for d in dims]
        sampled = any(isinstance(v, Param) for e in (*extents, *bases) for v in e.vars)
        expected = _digits(_number([it.var for it in iters], extents), bases)
        if sampled or any(d not in fresh for d in dims) or expected != [at[d] for d in dims] or product(extents) != product(bases):
            return None
        number = _number([fresh[d].var for d in dims], bases)
        values |= dict(zip([it.var for it in iters], _digits(number, extents), strict=True))
    indices = tuple([poly(fresh[d].var) if d in fresh else e for d, e in enumerate(at)])

    def on_load(n: BufferLoad, recurse: Any) -> BufferLoad:
        return n.with_(indices=indices) if n.buffer is buffer and n.indices == at else n.map_children(recurse)

    own = {p for it, e in zip(block.iters, block.bindings, strict=True) if it.var in values for p in (e - it.extent, -e - 1)}
    kept = [(it, e) for it, e in zip(block.iters, block.bindings, strict=True) if it.var not in values]
    return block.with_(
        iters=(*[it for it, _ in kept], *fresh.values()),
        bindings=(*[e for _, e in kept], *in_loops(block, tuple([at[d] for d in fresh]))),
        predicate=tuple([p for p in block.predicate if p not in own]),
        body=transform(block.body, {BufferLoad: on_load, Poly: lambda p, _: substitute(p, values)}),
    )


def _groups(block: Block, at: Sequence[Poly]) -> list[tuple[list[int], list[Iter]]]:
    """Dimensions that are not indexed by one variable, with the iteration variables that index them; groups share no variable."""
    own = {it.var for it in block.iters}
    groups: list[tuple[list[int], set[Var]]] = []
    for d, e in enumerate(at):
        if plain_iter(e, block) is not None:
            continue
        dims, used = [d], set(e.vars & own)
        for group in [g for g in groups if not g[1].isdisjoint(used)]:
            groups.remove(group)
            dims, used = [*group[0], *dims], used | group[1]
        groups.append((sorted(dims), used))
    plain = {e.as_var() for e in at}
    return [(dims, [it for it in block.iters if it.var in used and it.var not in plain]) for dims, used in groups]


def _number(digits: Sequence[Var], bases: Sequence[Poly]) -> Poly:
    total = ZERO
    for v, n in zip(digits, bases, strict=True):
        total = total * n + v
    return total


def _digits(number: Poly, bases: Sequence[Poly]) -> list[Poly]:
    """The digits of `number`, which is less than the product of `bases`, most significant first."""
    out: list[Poly] = []
    step = ONE
    for n in reversed(bases):
        quotient = floordiv(number, step)
        out.insert(0, mod(quotient, n) if len(out) < len(bases) - 1 else quotient)
        step = step * n
    return out
