"""Test refusals of tensorize."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.ir.script.parser import parse
from tunesmith.schedule.schedule import Schedule

Refuse = Callable[..., None]

UPDATE = 'C[vj] = C[vj] + T.cast("int32", A[vk]) * T.cast("int32", B[vj, vk])'
SOURCE = f"""
@T.prim_func
def f(A: T.Buffer((4,), "uint8"), B: T.Buffer((16, 4), "int8"), C: T.Buffer((16,), "int32")):
    for j, k in T.grid(16, 4):
        with T.block("C"):
            vj, vk = T.axis.remap("SR", [j, k])
            {UPDATE}
"""
NAME = "x86.vpdpbusd.512"
VECTORS = 'vi, vj, vk = T.axis.remap("SSR", [i, j, k])'
ROWS = [
    ("A: T.Buffer((4,)", "A: T.Buffer((8, 4)"),
    ("C: T.Buffer((16,)", "C: T.Buffer((8, 16)"),
    ("C[vj] = C[vj]", "C[vi, vj] = C[vi, vj]"),
    ("A[vk]", "A[vi, vk]"),
]


def changed(*pairs: tuple[str, str]) -> Schedule:
    text = SOURCE
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return Schedule(parse(text))


def first(s: Schedule) -> object:
    return s.get_loops(s.get_block("C"))[0]


def test_tensorize_known_intrinsic(refuse: Refuse) -> None:
    s = changed()
    message = "unknown tensor intrinsic 'x86.vpdpbusd'; worker processes know those of packages, and none that a program registers. Did you"
    refuse("tensorize", "known-intrinsic", message, s, lambda: s.tensorize(first(s), "x86.vpdpbusd"))


def test_tensorize_serial(refuse: Refuse) -> None:
    s = changed()
    s.parallel(first(s))
    refuse("tensorize", "serial", "loop j is parallel or annotated", s, lambda: s.tensorize(first(s), NAME))
    s = changed()
    s.tensorize(first(s), NAME)
    refuse("tensorize", "serial", "loop j is tensorized or annotated", s, lambda: s.tensorize(first(s), NAME))
    s = changed(("for j, k in T.grid(16, 4)", "for i, j, k in T.grid(8, 16, 4)"), ('vj, vk = T.axis.remap("SR", [j, k])', VECTORS), *ROWS)
    i, j, _ = s.get_loops(s.get_block("C"))
    s.vectorize(i)
    refuse("tensorize", "serial", "loop i around loop j is vectorized", s, lambda: s.tensorize(j, NAME))


def test_tensorize_nest(refuse: Refuse) -> None:
    s = changed((f"            {UPDATE}", f"            with T.init():\n                C[vj] = 0\n            {UPDATE}"))
    message = "loop j: block C initialises its result; use decompose_reduction first"
    refuse("tensorize", "nest", message, s, lambda: s.tensorize(first(s), NAME))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("(16, 4)", "(8, 4)"), ("((16,)", "((8,)")], "loop j has the extent 8, the description 16"),
        ([('T.Buffer((4,), "uint8")', 'T.Buffer((4,), "int8")')], "A has elements of int8, the description of uint8"),
        ([(' * T.cast("int32", B[vj, vk])', ' + T.cast("int32", B[vj, vk])')], "the stored value is another expression"),
        ([("T.Buffer((16, 4)", "T.Buffer((4, 16)"), ("B[vj, vk]", "B[vk, vj]")], "access B 1 elements apart, the description B 4"),
        ([("T.Buffer((4,)", "T.Buffer((8,)"), ("A[vk]", "A[vk * 2]")], "access A 2 elements apart, the description A 1"),
        ([("C[vj] = C[vj] +", "C[15 - vj] = C[15 - vj] +")], "access C -1 elements apart, the description C 1"),
        ([("B[vj, vk]", "B[vj, (vk + 1) % 4]")], "the elements of B are not equally spaced along the loops"),
        ([("A[vk]", "A[vk // 2 * 2]")], "the elements of A are not equally spaced along the loops"),
        ([("T.grid(16, 4)", "T.grid(4, 16)"), ('"SR", [j, k]', '"RS", [j, k]'), ("vj, vk =", "vk, vj =")], "loop j has the extent 4"),
    ],
)
def test_tensorize_description(refuse: Refuse, changes: list[tuple[str, str]], message: str) -> None:
    s = changed(*changes)
    refuse("tensorize", "description", message, s, lambda: s.tensorize(first(s), NAME))
