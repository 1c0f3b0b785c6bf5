"""Fold the lanes of a vector by halves."""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.codegen.llvm.text import llvm_type, vector_literal
from tunesmith.support import dtype as dt


def folded(combine: Callable[[str, int, str, str], str], dtype: str, v: str, op: Callable[[str], str]) -> str:
    """A scalar from all lanes of `v` by halves: LLVM's NaN-propagating reduction is sequential.

    Args:
        combine: from the LLVM type, its lanes, and two values.
        dtype: type of the vector; the number of lanes is a power of two.
        v: the vector.
        op: emits an instruction and returns its result.
    """
    scalar, lanes = dt.split(dtype)
    while lanes > 1:
        half = lanes // 2
        wide, narrow = llvm_type(dt.vector(scalar, lanes)), llvm_type(dt.vector(scalar, half))
        parts = []
        for first in (0, half):
            if half == 1:
                parts.append(op(f"extractelement {wide} {v}, i64 {first}"))
            else:
                ids = vector_literal([str(i) for i in range(first, first + half)], "i32")
                parts.append(op(f"shufflevector {wide} {v}, {wide} poison, <{half} x i32> {ids}"))
        v = combine(narrow, half, parts[0], parts[1])
        lanes = half
    return v
