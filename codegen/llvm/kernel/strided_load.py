"""Load vectors with a small constant stride by contiguous loads and shuffles, which are faster than a gather."""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.codegen.llvm.text import vector_literal

STRIDES = (-1, 2, 3, 4)
"""Strides for which the contiguous loads, one for each element of the stride, are fewer than the elements of a gather."""


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

    def load(offset: int) -> str:
        pointer = op(f"getelementptr inbounds i8, ptr {at}, i64 {offset * size}") if offset else at
        return op(f"load {vector}, ptr {pointer}, align {size}")

    def shuffle(a: str, b: str, picks: list[int]) -> str:
        return op(f"shufflevector {vector} {a}, {vector} {b}, <{lanes} x i32> {vector_literal([str(i) for i in picks], 'i32')}")

    if stride < 0:
        return shuffle(load(1 - lanes), "poison", list(range(lanes))[::-1])
    last = stride * (lanes - 1)
    out, done = "", 0
    for piece in range(stride):
        first = min(piece * lanes, last + 1 - lanes)
        held = [lane for lane in range(done, lanes) if stride * lane < first + lanes]
        loaded = load(first)
        picks = list(range(done))
        if not out:
            picks += [stride * lane - first for lane in held]
            out = shuffle(loaded, "poison", picks + [0] * (lanes - len(picks)))
        else:
            picks += [lanes + stride * lane - first for lane in held]
            out = shuffle(out, loaded, picks + [0] * (lanes - len(picks)))
        done += len(held)
    return out
