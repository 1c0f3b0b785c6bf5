"""Test refusals of decompose_padding and pad_einsum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunesmith.ir.script.parser import parse
from tunesmith.schedule.schedule import Schedule

On = Callable[[str], Schedule]
Refuse = Callable[..., None]


def loops(s: Schedule, block: str) -> list[Any]:
    """The loops around the block, outermost first."""
    return s.get_loops(s.get_block(block))


def padding(store: str, before: str = "", after: str = "", init: str = "") -> Schedule:
    """A schedule of a function with one loop, whose block P contains `store`; the other statements are around the block."""
    lines = [
        "@T.prim_func",
        'def f(A: T.Buffer((8,), "int32"), P: T.Buffer((10,), "int32"), D: T.Buffer((10,), "int32")):',
        "    for i in T.serial(10):",
        *([f"        {before}"] if before else []),
        *[("    " if before.endswith(":") else "") + x for x in ('        with T.block("P"):', "            v = T.axis.spatial(10, i)")],
        ("    " if before.endswith(":") else "") + f"            {store}",
        *([f"        {x}" for x in after.split("\n")] if after else []),
    ]
    return Schedule(parse("\n".join(lines) + "\n"))


CHOICE = "P[v] = T.select(0 < v and v < 9, A[v - 1], 0)"


@pytest.mark.parametrize(
    "store",
    [
        "P[v] = A[T.min(v, 7)]",
        "P[9 - v] = T.select(v < 8, A[v], 0)",
        "P[v] = T.select(v < 8, A[v], D[v])",
        "P[v] = T.select(0 < v or v < 9, A[v], 0)",
        "P[v] = T.select(D[v] < 3, A[v], 0)",
        "P[v // 2] = T.select(v < 8, A[v], 0)",
    ],
)
def test_decompose_padding_padding(refuse: Refuse, store: str) -> None:
    s = padding(store)
    message = "block P is not one store, at its own iteration variables, of a value or a pad value"
    refuse("decompose_padding", "padding", message, s, lambda: s.decompose_padding(s.get_block("P"), loops(s, "P")[0]))


def test_decompose_padding_loop_of_block(on: On, refuse: Refuse) -> None:
    s = on("chain")
    message = "loop i is not around block B"
    refuse("decompose_padding", "loop-of-block", message, s, lambda: s.decompose_padding(s.get_block("B"), loops(s, "C")[0]))


def test_decompose_padding_loop_of_block_2(refuse: Refuse) -> None:
    s = padding(CHOICE, before="if i < 7:")
    message = "block P is inside an `if`"
    refuse("decompose_padding", "loop-of-block", message, s, lambda: s.decompose_padding(s.get_block("P"), loops(s, "P")[0]))


READER = 'with T.block("D"):\n    w = T.axis.spatial(10, i)\n    D[w] = P[w]'


def test_decompose_padding_unseen(refuse: Refuse) -> None:
    s = padding(CHOICE, after=READER)
    message = "block D in loop i accesses P, which would be filled before the loop"
    refuse("decompose_padding", "unseen", message, s, lambda: s.decompose_padding(s.get_block("P"), loops(s, "P")[0]))


def test_decompose_padding_unseen_2(refuse: Refuse) -> None:
    s = padding("P[v] = T.select(v < 8, P[v], 0)")
    refuse("decompose_padding", "unseen", "block P reads P", s, lambda: s.decompose_padding(s.get_block("P"), loops(s, "P")[0]))


def test_decompose_padding_in_blocks(refuse: Refuse) -> None:
    s = padding(CHOICE, after="D[i] = P[i]")
    message = "a plain store or the condition of an `if` accesses P"
    refuse("decompose_padding", "in-blocks", message, s, lambda: s.decompose_padding(s.get_block("P"), loops(s, "P")[0]))
