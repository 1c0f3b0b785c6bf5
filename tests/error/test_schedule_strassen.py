"""Test refusals of strassen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.ir.script.parser import parse
from tunesmith.schedule.schedule import Schedule

Refuse = Callable[..., None]


def product(term: str = "A[vi, vk] * B[vk, vj]", init: str = "0.0", out: str = "C[vi, vj]", dtype: str = "float32") -> Schedule:
    return Schedule(
        parse(f"""
@T.prim_func
def f(A: T.Buffer((8, 8), "{dtype}"), B: T.Buffer((8, 8), "{dtype}"), C: T.Buffer((16, 8), "{dtype}")):
    for i, j, k in T.grid(8, 8, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                {out} = {init}
            {out} = {out} + {term}
""")
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init": "1.0"}, "with an init of 0"),
        ({"term": "A[vi, vk]"}, "is not of the form"),
        ({"term": "A[vi, vk] * B[vk, vj] * 2.0"}, "is not of the form"),
        ({"term": "A[vi, vk] * A[vk, vj]"}, "products of two buffers of the type of its output"),
        ({"dtype": "float16", "init": "T.float16(0)"}, "products of two buffers of the type of its output"),
        ({"out": "C[vi * 2, vj]"}, "writes C at an index that is not an iteration variable"),
        ({"out": "C[vi, vi]"}, "not every spatial variable of block C is one index of C"),
    ],
)
def test_strassen_product(refuse: Refuse, changes: dict[str, str], message: str) -> None:
    s = product(**changes)
    refuse("strassen", "product", message, s, lambda: s.strassen(s.get_block("C"), [0, 1, 2]))


@pytest.mark.parametrize(
    ("axes", "term", "message"),
    [
        ([0, 1], "A[vi, vk] * B[vk, vj]", "pass three positions among the 3 iteration variables"),
        ([0, 1, 3], "A[vi, vk] * B[vk, vj]", "pass three positions among the 3 iteration variables"),
        ([0, 1, -1], "A[vi, vk] * B[vk, vj]", "pass three positions among the 3 iteration variables"),
        ([0, 0, 2], "A[vi, vk] * B[vk, vj]", "the first two are spatial variables"),
        ([0, 2, 1], "A[vi, vk] * B[vk, vj]", "the first two are spatial variables"),
        ([0, 1, 2], "A[vi, vk] * B[vk, vi]", "is not an index of one operand"),
        ([0, 1, 2], "A[vi, vi] * B[vk, vj]", "is not an index of one operand"),
        ([0, 1, 2], "A[vi, vk] * B[7 - vk, vj]", "is not an index of one operand"),
        ([0, 1, 2], "A[vi, vk] * B[vk, vj + vi - vi]", ""),
    ],
)
def test_strassen_axes(refuse: Refuse, axes: list[int], term: str, message: str) -> None:
    s = product(term)
    if not message:
        s.strassen(s.get_block("C"), axes)
        return
    refuse("strassen", "axes", message, s, lambda: s.strassen(s.get_block("C"), axes))


def test_strassen_axes_of_one_element(refuse: Refuse) -> None:
    s = Schedule(
        parse("""
@T.prim_func
def f(A: T.Buffer((1, 8), "float32"), B: T.Buffer((8, 8), "float32"), C: T.Buffer((1, 8), "float32")):
    for i, j, k in T.grid(1, 8, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
""")
    )
    refuse("strassen", "axes", "need constant extents of 2 or more", s, lambda: s.strassen(s.get_block("C"), [0, 1, 2]))


@pytest.mark.parametrize("panel", [0, -4])
def test_strassen_panel(refuse: Refuse, panel: int) -> None:
    s = product()
    refuse("strassen", "panel", "a panel has at least 1 column", s, lambda: s.strassen(s.get_block("C"), [0, 1, 2], panel))


def test_strassen_trivial(refuse: Refuse) -> None:
    s = product()
    s.split(s.get_loops(s.get_block("C"))[0], [None, 4])
    refuse("strassen", "trivial", "", s, lambda: s.strassen(s.get_block("C"), [0, 1, 2]))


def test_strassen_in_blocks(refuse: Refuse) -> None:
    s = Schedule(
        parse("""
@T.prim_func
def f(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32"), C: T.Buffer((8, 8), "float32")):
    for i, j, k in T.grid(8, 8, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
    C[0, 0] = 1.0
""")
    )
    refuse("strassen", "in-blocks", "", s, lambda: s.strassen(s.get_block("C"), [0, 1, 2]))
