"""Rearrange the lanes of several vectors: transpose and interleave."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunesmith.codegen.llvm.text import vector_literal


def transpose(values: Sequence[str], vector: str, lanes: int, op: Callable[[str], str]) -> list[str]:
    """`lanes` vectors, of which vector l holds lane l of all values; missing values are poison.

    log2(lanes) perfect shuffles of all elements; each moves one bit from the vector number to the lane number.

    Args:
        values: at most `lanes` LLVM values.
        vector: their LLVM type.
        lanes: a power of two.
        op: emits an instruction and returns its result.
    """
    rows = [*values, *["poison"] * (lanes - len(values))]
    half = lanes // 2
    picks = [vector_literal([str(first + k // 2 + k % 2 * lanes) for k in range(lanes)], "i32") for first in (0, half)]
    for _ in range(lanes.bit_length() - 1):
        shuffled: list[str] = []
        for a, b in zip(rows[:half], rows[half:], strict=True):
            none = a == "poison" and b == "poison"
            shuffled += ["poison" if none else op(f"shufflevector {vector} {a}, {vector} {b}, <{lanes} x i32> {ids}") for ids in picks]
        rows = shuffled
    return rows


def interleave(values: Sequence[str], element: str, lanes: int, count: int, op: Callable[[str], str]) -> tuple[str, str]:
    """The first `count` lanes of all values in turn: lane 0 of each, lane 1 of each, and so on; with its LLVM type.

    Args:
        values: LLVM values, a power of two.
        element: LLVM type of their elements.
        lanes: of each value.
        count: of them that are used.
        op: emits an instruction and returns its result.
    """
    if len(values) == 1:
        return values[0], f"<{lanes} x {element}>"
    # Values that are half of the number apart are interleaved first, so that the second half of the lanes ends up in between.
    half = len(values) // 2
    vector = f"<{lanes} x {element}>"
    picks = vector_literal([str(k // 2 + k % 2 * lanes) for k in range(2 * count)], "i32")
    pairs = [
        op(f"shufflevector {vector} {a}, {vector} {b}, <{2 * count} x i32> {picks}")
        for a, b in zip(values[:half], values[half:], strict=True)
    ]
    return interleave(pairs, element, 2 * count, 2 * count, op)
