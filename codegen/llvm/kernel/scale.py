"""Multiply floats by powers of two in LLVM IR, for every exponent: `ldexp` of scalars and vectors."""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.codegen.llvm.text import llvm_type, suffix, vector_literal
from tunesmith.support import dtype as dt


def scaled(op: Callable[[str], str], call: Callable[[str, str, list[tuple[str, str]]], str], dtype: str, x: str, n: str) -> str:
    """x * 2**n as two products by powers of two: the first is exact, so that a denormal result is rounded once.

    Args:
        op: emits an instruction and returns its result.
        call: emits a call from the LLVM type of the result, the name, and the arguments with their types.
        dtype: type of x and n.
        x: a float, or a vector of floats.
        n: the exponents, integers stored as floats.
    """
    bias, shift = (1023, 52) if dt.element(dtype) == "float64" else (127, 23)
    lanes = dt.lanes(dtype)
    ints = dt.vector("int64" if shift == 52 else "int32", lanes)
    ty, it = llvm_type(dtype), llvm_type(ints)

    def number(v: int) -> str:
        return str(v) if lanes == 1 else vector_literal([str(v)] * lanes, it.split()[-1].rstrip(">"))

    whole = call(it, f"llvm.fptosi.sat.{suffix(ints)}.{suffix(dtype)}", [(ty, n)])
    whole = call(it, f"llvm.smax.{suffix(ints)}", [(it, whole), (it, number(-2 * bias + 4))])
    whole = call(it, f"llvm.smin.{suffix(ints)}", [(it, whole), (it, number(2 * bias))])
    half = op(f"ashr {it} {whole}, {number(1)}")
    for part in (half, op(f"sub {it} {whole}, {half}")):
        bits = op(f"shl {it} {op(f'add {it} {part}, {number(bias)}')}, {number(shift)}")
        x = op(f"fmul {ty} {x}, {op(f'bitcast {it} {bits} to {ty}')}")
    return x
