"""Estimate the number of instructions of a program before vector math is expanded.

A call that will be expanded counts as the arithmetic that replaces it.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Binary, Broadcast, Call, Cast, Const, Expr, Ramp, Select
from tunesmith.ir.poly import Poly
from tunesmith.ir.stmt import Block, BufferStore, Evaluate, For, Stmt
from tunesmith.lower.vector_math_tables import OPERATIONS
from tunesmith.support import dtype as dt

UNROLLED = 16_384
"""Limit on the estimated instructions of all unrolled loops of a function; LLVM compiles as many in 1 to 2.5 s."""

DEVICE_UNROLLED = 4 * UNROLLED
"""The same limit for a GPU kernel: sketches unroll 2,048 multiply-adds per thread, estimated at ten instructions each."""

EMITTED = 65_536
"""Limit on the lines of LLVM IR of a function; LLVM compiles as many in 4 to 10 s."""

_SCALAR_SCALE = 14
"""Instructions of `ldexp` on machines without it: two multiplications and the construction of two factors."""
_ADDRESS = 1
"""Address instructions of a memory access."""


def expression_size(e: Expr, seen: set[int] | None = None) -> int:
    """Estimated instructions of an expression; a shared object counts once."""
    seen = set() if seen is None else seen
    total = 0
    stack: list[Any] = [e]
    while stack:
        n = stack.pop()
        if type(n) in FREE or id(n) in seen:
            continue
        seen.add(id(n))
        total += _own_size(n)
        n.each_child(stack.append)
    return total


FREE = frozenset({Poly, Const})


def _own_size(n: Any) -> int:
    t = type(n)
    if t is BufferLoad:
        return 1 + _ADDRESS
    if t is Call:
        return _function_size(n.name, dt.lanes(n.dtype))
    if t is Binary:
        if n.op == "pow" or (n.op in ("floordiv", "mod") and dt.is_float(n.dtype)):
            return _function_size(n.op, dt.lanes(n.dtype))
        return 2 if n.op in ("min", "max") else 4 if n.op in ("floordiv", "mod") else 1
    if t is Select and dt.lanes(n.cond.dtype) == 1:
        return 4  # branches
    return 2 if t in (Broadcast, Ramp, Cast) else 1


def _function_size(name: str, lanes: int) -> int:
    single, double = OPERATIONS.get(name, (1, 0))
    scaled = _SCALAR_SCALE if lanes < 16 and name in ("exp", "exp2", "sigmoid", "pow") else 0
    return single + 2 * double + scaled


def code_size(n: Stmt, lanes: int = 1) -> int:
    """Estimated instructions of a statement after unrolling and vectorization, with `lanes` elements per vector."""
    t: Any = type(n)
    if t is For:
        loop: Any = n
        return copies_of(loop, lanes) * code_size(loop.body, lanes) + 2
    if t is BufferStore:
        return 1 + _ADDRESS + expression_size(n.value)  # type: ignore[attr-defined]
    if t is Evaluate:
        return 1 + expression_size(n.value)  # type: ignore[attr-defined]
    total = 1
    kids: list[Any] = []
    n.each_child(kids.append)
    for k in kids:
        if isinstance(k, Stmt):
            total += code_size(k, lanes)
        elif type(k) not in FREE and t is not Block and isinstance(k, Expr):
            total += expression_size(k)
    return total


def copies_of(n: For, lanes: int) -> int:
    extent = n.extent.const
    if extent is None or n.kind not in ("unrolled", "vectorized"):
        return 1
    return extent if n.kind == "unrolled" else -(-extent // lanes)
