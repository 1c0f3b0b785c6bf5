"""Flatten every buffer to one dimension and every access to one row-major index."""

from __future__ import annotations

from typing import Any

from tunesmith.ir.analysis.size_ranges import symbol_ranges
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.poly import ZERO, Poly, Var
from tunesmith.ir.stmt import Allocate, BindIndex, BufferStore, For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import Handler, transform
from tunesmith.lower.pass_infra import function_pass
from tunesmith.lower.simplifier import Simplifier


def flat_index(buffer: Buffer, indices: tuple[Poly, ...]) -> Poly:
    """The row-major offset of `indices`, including the padding of rows."""
    out = ZERO
    for i, step in zip(indices, buffer.strides, strict=True):
        out = out + i * step
    return out


@function_pass(requires="OPAQUE", provides="FLAT")
def flatten_buffers(func: PrimFunc, target: Target) -> PrimFunc:
    """Flatten parameters, allocations and accesses; indices are simplified under the ranges of the loops."""
    s = Simplifier(symbol_ranges(func))
    flat: dict[Buffer, Buffer] = {b: _flat(b) for b in func.buffers}

    def on_access(n: Any, recurse: Any) -> Any:
        m = n.map_children(recurse)
        buffer, index = flat[n.buffer], s.index(flat_index(n.buffer, n.indices))
        return m if buffer is n.buffer and index == n.indices[0] else m.with_(buffer=buffer, indices=(index,))

    def on_allocate(n: Allocate, recurse: Any) -> Allocate:
        flat[n.buffer] = _flat(n.buffer)
        body = recurse(n.body)
        return n if body is n.body and flat[n.buffer] is n.buffer else Allocate(flat[n.buffer], body)

    def on_indirect_index(n: IndirectIndex | BindIndex, recurse: Any) -> IndirectIndex | BindIndex:
        s.ranges[n.var] = (0, max(s.bounds(n.extent)[1] - 1, 0))
        out: IndirectIndex | BindIndex = n.map_children(recurse)
        del s.ranges[n.var]
        return out

    def on_for(n: For, recurse: Any) -> For:
        s.ranges[n.var] = (0, max(s.bounds(n.extent)[1] - 1, 0))
        out: For = n.map_children(recurse)
        del s.ranges[n.var]
        return out

    bound: Handler = on_indirect_index
    accesses: dict[type, Handler] = {BufferLoad: on_access, BufferStore: on_access, IndirectIndex: bound, BindIndex: bound}
    body = transform(func.body, {**accesses, Allocate: on_allocate, For: on_for})
    if body is func.body and all(b is f for b, f in flat.items()):
        return func
    params: tuple[Buffer | Var, ...] = tuple([flat[p] if isinstance(p, Buffer) else p for p in func.params])
    return func.with_(params=params, allocs=tuple([flat[b] for b in func.allocs]), body=body)


def _flat(b: Buffer) -> Buffer:
    return b if len(b.shape) == 1 else b.like(shape=(b.size,), pad=0, align=())
