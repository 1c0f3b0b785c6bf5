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


# ---- pad_einsum


def contraction(body: str, init: str = "C[vi] = 0.0", where: str = "", more: str = "") -> Schedule:
    return Schedule(
        parse(
            f"""
@T.prim_func
def f(A: T.Buffer((4, 6), "float32"), w: T.Buffer((4,), "float32"), C: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 6):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            {where or "pass"}
            with T.init():
                {init}
            {body}
        {more or "pass"}
""".replace("            pass\n", "").replace("        pass\n", "")
        )
    )


SUM = "C[vi] = C[vi] + A[vi, vk]"


@pytest.mark.parametrize(
    ("body", "init", "message"),
    [
        ("C[vi] = T.max(C[vi], A[vi, vk])", "C[vi] = 0.0", "is not of the form C[...] = C[...] + term"),
        (SUM, "C[vi] = 1.0", "the init of block C is not 0"),
        (SUM, "C[vi] = w[vi]", "the init of block C is not 0"),
        ("C[vi] = C[vi] + A[vi, 5 - vk]", "C[vi] = 0.0", "accesses A at an index that is neither an iteration variable nor a sum of them"),
        ("C[vi] = C[vi] + (A[vi, vk] + w[vi])", "C[vi] = 0.0", "the term of block C is not a product of operands"),
        ("C[vi] = C[vi] + A[vi, vk] * T.exp(w[vi])", "C[vi] = 0.0", "the term of block C is not a product of operands"),
        ("C[vi] = C[vi] + A[vi, vk] * w[vi]", "C[vi] = 0.0", "w is not indexed by vk, so that a padded term may not be 0"),
    ],
)
def test_pad_einsum_einsum(refuse: Refuse, body: str, init: str, message: str) -> None:
    s = contraction(body, init)
    refuse("pad_einsum", "einsum", message, s, lambda: s.pad_einsum(s.get_block("C"), [1, 4]))


def test_pad_einsum_einsum_2(refuse: Refuse) -> None:
    s = Schedule(
        parse("""
@T.prim_func
def f(A: T.Buffer((4, 4), "float32"), C: T.Buffer((4, 4), "float32")):
    for i, j, k in T.grid(4, 4, 4):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * A[vj, vk]
""")
    )
    message = "block C accesses A in parts of different sizes"
    refuse("pad_einsum", "einsum", message, s, lambda: s.pad_einsum(s.get_block("C"), [3, 1, 1]))


def test_pad_einsum_einsum_3(refuse: Refuse) -> None:
    """A padded reduction variable in a sum: elements of the operand would be multiplied by a padded 0, which may be NaN."""
    s = Schedule(
        parse("""
@T.prim_func
def f(X: T.Buffer((9,), "float32"), W: T.Buffer((3,), "float32"), C: T.Buffer((7,), "float32")):
    for i, r in T.grid(7, 3):
        with T.block("C"):
            vi, vr = T.axis.remap("SR", [i, r])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + X[vi + vr] * W[vr]
""")
    )
    message = "accesses X at an index that is neither an iteration variable nor a sum of them"
    refuse("pad_einsum", "einsum", message, s, lambda: s.pad_einsum(s.get_block("C"), [1, 4]))


@pytest.mark.parametrize("split", [True, False])
def test_pad_einsum_trivial(refuse: Refuse, split: bool) -> None:
    s = contraction(SUM, where="" if split else "T.where(i < 3)")
    if split:
        s.split(loops(s, "C")[0], [None, 2])
    message = "the loops around block C are not one for each iteration variable; pad before splitting loops"
    refuse("pad_einsum", "trivial", message, s, lambda: s.pad_einsum(s.get_block("C"), [1, 4]))


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ([4], "block C has 2 iteration variables, and 1 factors are given"),
        ([1, 1], "all factors are 1"),
        ([1, 0], "a factor must be at least 1; found 0"),
        ([1, 2**31], "a factor must be at most 2147483647"),
    ],
)
def test_pad_einsum_padding(refuse: Refuse, factors: list[int], message: str) -> None:
    s = contraction(SUM)
    refuse("pad_einsum", "padding", message, s, lambda: s.pad_einsum(s.get_block("C"), factors))


def test_pad_einsum_in_blocks(refuse: Refuse) -> None:
    s = Schedule(parse(str(contraction(SUM).func) + "\n    A[0, 0] = 1.0\n"))
    message = "a plain store or the condition of an `if` accesses A"
    refuse("pad_einsum", "in-blocks", message, s, lambda: s.pad_einsum(s.get_block("C"), [1, 4]))
