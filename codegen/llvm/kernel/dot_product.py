"""Emit dot products in the lanes of vectors: AVX-512 VNNI, AVX-VNNI, AVX512-BF16."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunesmith.codegen.llvm.text import llvm_type
from tunesmith.ir.expr import Call
from tunesmith.support import dtype as dt

_FAMILY = {"vpdpbusd": ("avx512.vpdpbusd", "i8", 4), "vdpbf16ps": ("avx512bf16.dpbf16ps", "bfloat", 2)}
"""LLVM's name without the width, its type of an operand's elements, and the elements of a lane."""
DOT_PRODUCTS = tuple(_FAMILY)


def declared(instruction: str, lanes: int) -> tuple[str, str, str]:
    """LLVM's type of the sums, its type of the other operands, and the name of its intrinsic."""
    family, element, group = _FAMILY[instruction]
    out = "float" if element == "bfloat" else "i32"
    return f"<{lanes} x {out}>", f"<{lanes * group} x {element}>", f"llvm.x86.{family}.{lanes * 32}"


def dot_product(e: Call, values: Sequence[str], op: Callable[[str], str], call: Callable[[str, str, list[tuple[str, str]]], str]) -> str:
    """The sum of a vector and the products of two others, by groups of neighbouring elements.

    Args:
        e: a call of one of `DOT_PRODUCTS`.
        values: its operands.
        op: emits an instruction and returns its result.
        call: emits a call from the LLVM type of the result, the name, and the arguments with their types.
    """
    out, operand, name = declared(e.name, dt.lanes(e.dtype))
    total, *given = values
    parts = [(operand, op(f"bitcast {llvm_type(a.dtype)} {v} to {operand}")) for a, v in zip(e.args[1:], given, strict=True)]
    return call(out, name, [(out, total), *parts])
