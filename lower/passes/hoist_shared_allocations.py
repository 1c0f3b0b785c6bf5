"""Hoist allocations of shared memory to directly inside the loops of thread blocks."""

from __future__ import annotations

from typing import Any

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import SHARED_SCOPES, is_block_axis
from tunesmith.ir.stmt import Allocate, For, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform
from tunesmith.lower.kernels import map_kernels
from tunesmith.lower.pass_infra import function_pass


@function_pass(requires="OPAQUE", needed_by="kernels, whose shared memory is allocated once")
def hoist_shared_allocations(func: PrimFunc, target: Target) -> PrimFunc:
    """Move allocations of shared memory with constant shapes out of all loops except block loops."""
    return map_kernels(func, _kernel)


def _kernel(n: Stmt) -> Stmt:
    if (type(n) is For and is_block_axis(n.thread)) or (type(n) is Allocate and _is_hoisted(n)):
        body = _kernel(n.body)
        return n if body is n.body else n.with_(body=body)
    found: list[Buffer] = []

    def on_allocate(a: Allocate, recurse: Any) -> Stmt:
        if not _is_hoisted(a):
            return a.map_children(recurse)
        found.append(a.buffer)
        inside: Stmt = recurse(a.body)
        return inside

    out = transform(n, {Allocate: on_allocate})
    for b in reversed(found):
        out = Allocate(b, out)
    return out


def _is_hoisted(n: Allocate) -> bool:
    return n.buffer.scope in SHARED_SCOPES and all(e.const is not None for e in n.buffer.shape)
