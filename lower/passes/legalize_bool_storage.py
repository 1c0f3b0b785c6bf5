"""Store bools in memory as bytes, 0 or 1, so that a vector of bools is a vector of bytes."""

from __future__ import annotations

from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Call, cast, compare, const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.intrinsics import PREFETCHES
from tunesmith.ir.stmt import Allocate, BufferStore
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform
from tunesmith.lower.pass_infra import function_pass


@function_pass(requires="FLAT", needed_by="code generators, whose memory has no bools")
def legalize_bool_storage(func: PrimFunc, target: Target) -> PrimFunc:
    """Turn buffers of bools into buffers of bytes: loads compare with 0, stores convert.  Callers see bools, as in DLPack.

    Rewrite:
        M[i] = A[i] < B[i]
        C[i] = T.if_then_else(M[i], A[i], B[i])
      ->
        M[i] = T.cast(A[i] < B[i], "uint8")
        C[i] = T.if_then_else(M[i] != T.uint8(0), A[i], B[i])
    """
    bytes_of: dict[Buffer, Buffer] = {b: _bytes(b) for b in func.buffers if b.dtype == "bool"}

    def on_load(n: BufferLoad, recurse: Any) -> Any:
        m = n.map_children(recurse)
        if n.buffer.dtype != "bool":
            return m
        return compare("ne", m.with_(buffer=bytes_of[n.buffer]), const(0, "uint8"))

    def on_call(n: Call, recurse: Any) -> Any:
        load = n.args[0] if n.name in PREFETCHES else None
        if type(load) is not BufferLoad or load.buffer.dtype != "bool":
            return n.map_children(recurse)
        return Call(n.name, (load.with_(buffer=bytes_of[load.buffer]),), "uint8")  # an address, not a value

    def on_store(n: BufferStore, recurse: Any) -> BufferStore:
        m = n.map_children(recurse)
        return m if n.buffer.dtype != "bool" else m.with_(buffer=bytes_of[n.buffer], value=cast("uint8", m.value))

    def on_allocate(n: Allocate, recurse: Any) -> Allocate:
        if n.buffer.dtype != "bool":
            return n.map_children(recurse)
        bytes_of[n.buffer] = _bytes(n.buffer)
        return Allocate(bytes_of[n.buffer], recurse(n.body))

    body = transform(func.body, {BufferLoad: on_load, Call: on_call, BufferStore: on_store, Allocate: on_allocate})
    if body is func.body and not bytes_of:
        return func
    params = tuple([bytes_of.get(p, p) if isinstance(p, Buffer) else p for p in func.params])
    return func.with_(params=params, allocs=tuple([bytes_of.get(b, b) for b in func.allocs]), body=body)


def _bytes(b: Buffer) -> Buffer:
    return b.like(dtype="uint8")
