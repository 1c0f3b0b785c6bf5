"""Emit shifts by any count in LLVM IR; out-of-range counts leave only the sign, as in numpy."""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.codegen.llvm.text import llvm_type, vector_literal
from tunesmith.ir.expr import Binary, Broadcast, Const
from tunesmith.support import dtype as dt


def shifted(e: Binary, a: str, b: str, emit: Callable[[str], str]) -> str:
    """The value of a shift.

    Args:
        e: the shift (shl or shr), of scalars or vectors.
        a: the LLVM value to shift.
        b: the LLVM value of the count; a constant below the width needs no test.
        emit: emits an instruction and returns its result.
    """
    ty, lanes, width = llvm_type(e.a.dtype), dt.lanes(e.a.dtype), dt.bits(e.a.dtype)
    kind = "shl" if e.op == "shl" else "lshr" if dt.is_unsigned(e.a.dtype) else "ashr"
    count = e.b.a if isinstance(e.b, Broadcast) else e.b
    if isinstance(count, Const) and 0 <= count.value < width:
        return emit(f"{kind} {ty} {a}, {b}")

    def number(value: int) -> str:
        return str(value) if lanes == 1 else vector_literal([str(value)] * lanes, llvm_type(dt.element(e.a.dtype)))

    flags = "i1" if lanes == 1 else f"<{lanes} x i1>"
    fits = emit(f"icmp ult {ty} {b}, {number(width)}")
    safe = emit(f"select {flags} {fits}, {ty} {b}, {ty} {number(width - 1 if kind == 'ashr' else 0)}")
    out = emit(f"{kind} {ty} {a}, {safe}")
    return out if kind == "ashr" else emit(f"select {flags} {fits}, {ty} {out}, {ty} {number(0)}")
