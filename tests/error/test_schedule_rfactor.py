"""Test refusals of rfactor."""

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


def test_rfactor_reduction(on: On, refuse: Refuse) -> None:
    s = on("row")
    refuse("rfactor", "reduction", "loop i does not contain exactly one reduction with an init", s, lambda: s.rfactor(loops(s, "C")[0]))


def test_rfactor_reduction_2(on: On, refuse: Refuse) -> None:
    s = on("scaled")
    refuse("rfactor", "reduction", "block L is not of the form C[...] = C[...] op value", s, lambda: s.rfactor(loops(s, "L")[1]))


INDEX_OF_EXTREME = """
@T.prim_func
def f(A: T.Buffer((4, 6), "int32"), C: T.Buffer((4,), "int32"), P: T.Buffer((4,), "int32")):
    for i, k in T.grid(4, 6):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            vk = T.axis.reduce(6, k)
            with T.init():
                C[vi] = -99
                P[vi] = -1
            P[vi] = T.select(A[vi, vk] > C[vi], T.cast("int32", vk), P[vi])
            C[vi] = T.max(C[vi], A[vi, vk])
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("T.select(A[vi, vk] > C[vi]", "T.select(A[vi, vk] >= C[vi]"),
        ("T.select(A[vi, vk] > C[vi]", "T.select(A[vi, vk] < C[vi]"),
        ("T.select(A[vi, vk] > C[vi]", "T.select(A[vi, vk] + 1 > C[vi]"),
        ('T.cast("int32", vk)', 'T.cast("int32", 5 - vk)'),
        ('T.cast("int32", vk)', 'T.cast("int32", vi)'),
        ("T.max(C[vi], A[vi, vk])", "T.max(C[vi], P[vi])"),
        ("T.max(C[vi], A[vi, vk])", "C[vi] + A[vi, vk]"),
        ("P[vi] = -1", "P[3 - vi] = -1"),
    ],
)
def test_rfactor_reduction_3(refuse: Refuse, old: str, new: str) -> None:
    assert old in INDEX_OF_EXTREME
    s = Schedule(parse(INDEX_OF_EXTREME.replace(old, new)))
    message = "block C is not of the form C[...] = C[...] op value, with a value that does not read C, nor the index of an extreme"
    refuse("rfactor", "reduction", message, s, lambda: s.rfactor(loops(s, "C")[1]))


def test_rfactor_reduction_4(refuse: Refuse) -> None:
    """The first of several extremes has the largest index."""
    s = Schedule(
        parse(INDEX_OF_EXTREME.replace("for i, k in T.grid(4, 6)", "for i, k, r in T.grid(4, 2, 3)").replace("(6, k)", "(6, r * 2 + k)"))
    )
    message = "the loops of block C do not run its reduction in ascending order"
    refuse("rfactor", "reduction", message, s, lambda: s.rfactor(loops(s, "C")[1]))


def test_rfactor_identity(on: On, refuse: Refuse) -> None:
    s = on("sums")
    refuse(
        "rfactor",
        "identity",
        "the init of block E is not the identity element of its reduction",
        s,
        lambda: s.rfactor(loops(s, "E")[1]),
    )


def test_rfactor_reduce_loop(on: On, refuse: Refuse) -> None:
    s = on("sums")
    refuse("rfactor", "reduce-loop", "loop i is not a pure reduction loop of block C", s, lambda: s.rfactor(loops(s, "C")[0]))


def test_rfactor_serial(on: On, refuse: Refuse) -> None:
    s = on("sums")
    _, k = loops(s, "C")
    s.unroll(k)
    refuse("rfactor", "serial", "loop k is unrolled", s, lambda: s.rfactor(k))


def test_rfactor_guard(on: On, refuse: Refuse) -> None:
    s = on("under_a_guard")
    refuse("rfactor", "guard", "block C has a guard that cannot be moved", s, lambda: s.rfactor(loops(s, "C")[2]))


def test_rfactor_factor_axis(on: On, refuse: Refuse) -> None:
    s = on("sums")
    for axis in (2, -3):
        message = f"the partial results have 2 dimensions, and factor_axis is {axis}"
        refuse("rfactor", "factor-axis", message, s, lambda axis=axis: s.rfactor(loops(s, "C")[1], axis))
