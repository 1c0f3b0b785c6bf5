"""Keep the value that a loop stores and reads again in its next iteration in a register.

A recurrence otherwise reads its last result back from memory, and waits several cycles for each store to reach the load behind it.

Rewrite:
    for j in T.serial(7):
        C[j + 1] = C[j] + A[j + 1]
  ->
    C_last = T.alloc_buffer((1,), "float32", "register")
    C_last[0] = C[0]
    for j in T.serial(7):
        C_last[0] = C_last[0] + A[j + 1]
        C[j + 1] = C_last[0]

Source: scalar replacement of array references, Callahan, Carr and Kennedy, "Improving Register Allocation for Subscripted Variables",
PLDI 1990.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tunesmith.ir.analysis.size_ranges import symbol_ranges
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Expr, Select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import ONE, ZERO, Poly, poly, substitute
from tunesmith.ir.stmt import Allocate, BufferStore, For, Seq, Stmt, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform, with_body
from tunesmith.lower.pass_infra import function_pass
from tunesmith.lower.simplifier import Simplifier
from tunesmith.support import dtype as dt
from tunesmith.support.arguments import as_count

MAX_FORWARDED = 16
"""Limit on the values that one loop keeps: more would not fit the registers of a processor."""


@function_pass(requires="FLAT", level=2)
def forward_stores(func: PrimFunc, target: Target, *, most: int = MAX_FORWARDED) -> PrimFunc:
    """Forward stores of an iteration to the loads of the next one.

    Only innermost serial loops with at least one iteration, whose body is a sequence of stores, are rewritten: then no condition decides
    whether the load before the loop is executed.

    Args:
        func: the function.
        target: not used.
        most: limit on the values that one loop keeps; a loop with more keeps none.
    """
    as_count("most", most, 0, "forward_stores keeps at least 0 values")
    s = Simplifier(symbol_ranges(func))

    def on_for(n: For, recurse: Any) -> Stmt:
        if n.kind == "serial" and s.bounds(n.extent)[0] >= 1 and (body := _stores(n.body)) is not None:
            return _forward(n, body, s, most)
        s.ranges[n.var] = (0, max(s.bounds(n.extent)[1] - 1, 0))
        out: Stmt = n.map_children(recurse)
        del s.ranges[n.var]
        return out

    return with_body(func, transform(func.body, {For: on_for}))


def _stores(body: Stmt) -> list[BufferStore] | None:
    """The statements of a body that only stores; None for other bodies."""
    stmts = body.stmts if isinstance(body, Seq) else (body,)
    stores = [x for x in stmts if isinstance(x, BufferStore)]
    return stores if len(stores) == len(stmts) else None


def _forward(n: For, stores: Sequence[BufferStore], s: Simplifier, most: int) -> Stmt:
    """The loop with the values of its recurrences in registers; `n` itself if it has none."""
    last: dict[int, BufferLoad] = {}
    s.ranges[n.var] = (0, max(s.bounds(n.extent)[1] - 1, 0))
    for k, x in enumerate(stores):
        found = _previous(n, x)
        if found is not None and _is_read(found, stores[: k + 1]) and all(y is x or _apart(n, x, y, s) for y in stores):
            last[k] = found
    del s.ranges[n.var]
    if not last or len(last) > most:
        return n
    registers = {k: Buffer(f"{x.buffer.name}_last", (x.lanes,), x.buffer.dtype, "register") for k, x in last.items()}
    before = [_write(registers[k], x.map_children(lambda p: substitute(p, {n.var: ZERO}))) for k, x in last.items()]
    current = {_place(x): _read(registers[k]) for k, x in last.items()}
    body: list[Stmt] = []
    for k, x in enumerate(stores):
        value = transform(x.value, {BufferLoad: lambda load, _: current.get(_place(load), load)})
        if k not in last:
            body.append(x if value is x.value else x.with_(value=value))
            continue
        body += [_write(registers[k], value), x.with_(value=_read(registers[k]))]
        # Later statements of the iteration that read what the iteration before stored read it from memory.
        del current[_place(last[k])]
    out: Stmt = seq([*before, n.with_(body=seq(body))])
    for b in registers.values():
        out = Allocate(b, out)
    return out


def _previous(n: For, x: BufferStore) -> BufferLoad | None:
    """The load of what the iteration before stored; None if each iteration stores to the same place, or to a part of a vector."""
    (index,) = x.indices
    before = substitute(index, {n.var: poly(n.var) - 1})
    return None if before == index or x.mask is not None else BufferLoad(x.buffer, (before,), dt.lanes(x.value.dtype), x.stride)


def _place(x: BufferLoad) -> tuple[Any, ...]:
    """What is loaded: equal for loads of the same elements."""
    return (x.buffer, x.indices[0], x.lanes, None if x.lanes == 1 or x.stride is None or x.stride == ONE else x.stride, x.mask)


def _is_read(load: BufferLoad, stores: Sequence[BufferStore]) -> bool:
    """Whether the statements load it unconditionally; a load in a branch may be out of bounds in the first iteration."""

    def always(n: Any) -> bool:
        if type(n) is BufferLoad:
            return _place(n) == _place(load)
        if type(n) is Select:
            return always(n.cond)
        if type(n) is Binary and n.op in ("and", "or"):
            return always(n.a)
        found: list[bool] = []
        if type(n) is not Poly:
            n.each_child(lambda k: found.append(always(k)))
        return any(found)

    return any(always(x.value) for x in stores)


def _apart(n: For, x: BufferStore, y: BufferStore, s: Simplifier) -> bool:
    """Whether `y` never stores to what `x` stored in its iteration or the one before."""
    if x.buffer is not y.buffer:
        return True
    before = substitute(x.indices[0], {n.var: poly(n.var) - 1})
    for index in (x.indices[0], before):
        low, high = s.bounds(s.index(y.indices[0] - index))
        if not (low >= _span(x, s) or high <= -_span(y, s)):
            return False
    return True


def _span(x: BufferStore, s: Simplifier) -> int:
    """Limit on the distance from the first element that `x` stores to the end of the last."""
    lanes = dt.lanes(x.value.dtype)
    if lanes == 1:
        return 1
    low, high = (1, 1) if x.stride is None else s.bounds(x.stride)
    return (lanes - 1) * high + 1 if low > 0 else sys.maxsize


def _read(register: Buffer) -> BufferLoad:
    lanes = register.shape[0].as_int()
    return BufferLoad(register, (ZERO,), lanes, ONE if lanes > 1 else None)


def _write(register: Buffer, value: Expr) -> BufferStore:
    return BufferStore(register, (ZERO,), value, None if register.shape[0].const == 1 else ONE)
