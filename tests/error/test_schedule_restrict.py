"""Test refusals of restrict_reduction."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.ir.script.parser import parse
from tunesmith.schedule.schedule import Schedule

Refuse = Callable[..., None]
TERM = "T.select((vi + vk) % 2 == 0, A[(vi + vk) // 2], 0.0) * W[vk]"


def schedule(term: str = TERM, extent: int = 4, op: str = "C[vi] + ", more: str = "") -> Schedule:
    return Schedule(
        parse(f"""
@T.prim_func
def f(A: T.Buffer((40,), "float32"), W: T.Buffer((8,), "float32"), C: T.Buffer((12,), "float32"), D: T.Buffer((12, 8), "float32")):
    for i, k in T.grid(12, {extent}):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = {op}{term}
{more}
""")
    )


@pytest.mark.parametrize(
    ("term", "op"),
    [("W[vk]", "C[vi] + "), (TERM, "C[vi] * "), (TERM.replace("0.0", "1.0"), "C[vi] + "), (f"{TERM} + 1.0", "C[vi] + ")],
)
def test_restrict_reduction_sum(refuse: Refuse, term: str, op: str) -> None:
    s = schedule(f"({term})", op=op)
    message = "block C is no sum of terms T.select(condition, x, 0), or of products with them"
    refuse("restrict_reduction", "sum", message, s, lambda: s.restrict_reduction(s.get_block("C"), 1))


@pytest.mark.parametrize("variable", [0, 2, -1])
def test_restrict_reduction_variable(refuse: Refuse, variable: int) -> None:
    s = schedule()
    message = f"block C has no reduction variable of constant extent at position {variable}"
    refuse("restrict_reduction", "variable", message, s, lambda: s.restrict_reduction(s.get_block("C"), variable))


@pytest.mark.parametrize("condition", ["vk < 2", "(vi + vk) % 3 < 2", "(vi + 2 * vk) % 4 == 0", "(vi + vk // 2) % 2 == 0", "vi % 2 == 0"])
def test_restrict_reduction_congruence(refuse: Refuse, condition: str) -> None:
    s = schedule(TERM.replace("(vi + vk) % 2 == 0", condition))
    message = "the condition of block C has no part (e + vk) % m == t"
    refuse("restrict_reduction", "congruence", message, s, lambda: s.restrict_reduction(s.get_block("C"), 1))


def test_restrict_reduction_divisible(refuse: Refuse) -> None:
    s = schedule(extent=5)
    refuse(
        "restrict_reduction", "divisible", "the extent 5 of vk is no multiple of 2", s, lambda: s.restrict_reduction(s.get_block("C"), 1)
    )


@pytest.mark.parametrize("step", ["split", "unroll", "fuse"])
def test_restrict_reduction_trivial(refuse: Refuse, step: str) -> None:
    s = schedule()
    i, k = s.get_loops(s.get_block("C"))
    if step == "fuse":
        s.fuse([i, k])
    else:
        s.split(k, [None, 2]) if step == "split" else s.unroll(k)
    message = "iteration variable vk of block C is not a serial loop of its own with the extent 4"
    refuse("restrict_reduction", "trivial", message, s, lambda: s.restrict_reduction(s.get_block("C"), 1))


def test_restrict_reduction_single_block(refuse: Refuse) -> None:
    s = schedule(more='        with T.block("D"):\n            vi, vk = T.axis.remap("SS", [i, k])\n            D[vi, vk] = W[vk]')
    message = "loop k contains other blocks; distribute them first"
    refuse("restrict_reduction", "single-block", message, s, lambda: s.restrict_reduction(s.get_block("C"), 1))
