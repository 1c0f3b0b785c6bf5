"""Load vectors with a small constant stride by contiguous loads and shuffles."""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.codegen.cpu.strided_pieces import strided_pieces
from tunesmith.codegen.llvm.text import vector_literal


def strided_load(element: str, size: int, lanes: int, stride: int, at: str, op: Callable[[str], str]) -> str:
    """The vector of elements `stride` apart; no element before the first or after the last one is read.

    Args:
        element: LLVM type of an element.
        size: its bytes.
        lanes: number of elements.
        stride: one of `STRIDES`.
        at: pointer to the element of the first lane.
        op: emits an instruction and returns its result.
    """
    vector = f"<{lanes} x {element}>"
    out = ""
    for first, picks in strided_pieces(lanes, stride):
        pointer = op(f"getelementptr inbounds i8, ptr {at}, i64 {first * size}") if first else at
        loaded = op(f"load {vector}, ptr {pointer}, align {size}")
        a, b = (out, loaded) if out else (loaded, "poison")
        out = op(f"shufflevector {vector} {a}, {vector} {b}, <{lanes} x i32> {vector_literal([str(i) for i in picks], 'i32')}")
    return out
