"""Test refusals of winograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.ir.script.parser import parse
from tunesmith.schedule.schedule import Schedule

Refuse = Callable[..., None]
TERM = "A[vi + vk, vc] * W[vk, vc]"


def convolution(term: str = TERM, init: str = "0.0", out: str = "C[vi]", dtype: str = "float32", after: str = "") -> Schedule:
    return Schedule(
        parse(f"""
@T.prim_func
def f(A: T.Buffer((40, 4), "{dtype}"), W: T.Buffer((8, 4), "{dtype}"), C: T.Buffer((40,), "{dtype}")):
    for i, k, c in T.grid(8, 3, 4):
        with T.block("C"):
            vi, vk, vc = T.axis.remap("SRR", [i, k, c])
            with T.init():
                {out} = {init}
            {out} = {out} + {term}
    {after}
""")
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init": "1.0"}, "with an init of 0"),
        ({"term": "A[vi + vk, vc]"}, "is not of the form"),
        ({"term": "A[vi + vk, vc] * W[vk, vc] * 2.0"}, "is not of the form"),
        ({"term": "A[vi + vk, vc] * A[vk, vc]"}, "products of two buffers of the type of its output"),
        ({"dtype": "float16", "init": "T.float16(0)"}, "products of two buffers of the type of its output"),
        ({"out": "C[vi * 2]"}, "writes C at an index that is not an iteration variable"),
    ],
)
def test_winograd_convolution(refuse: Refuse, changes: dict[str, str], message: str) -> None:
    s = convolution(**changes)
    refuse("winograd", "convolution", message, s, lambda: s.winograd(s.get_block("C"), 2))


@pytest.mark.parametrize(
    "term",
    [
        "A[vi, vc] * W[vk, vc]",
        "A[2 * vi + vk, vc] * W[vk, vc]",
        "A[vi + 2 * vk, vc] * W[vk, vc]",
        "A[vi + vk, vc] * W[vi, vc]",
        "A[vi + vk, vk] * W[vk, vc]",
        "A[vi + vk, vc] * W[vk, vk]",
        "A[vi + vk + vc, vc] * W[vk, vc]",
    ],
)
def test_winograd_window(refuse: Refuse, term: str) -> None:
    s = convolution(term)
    refuse("winograd", "window", "no dimension of an operand of block C", s, lambda: s.winograd(s.get_block("C"), 2))


@pytest.mark.parametrize("tile", [-1, 0, 1, 7, 100])
def test_winograd_tile(refuse: Refuse, tile: int) -> None:
    s = convolution()
    refuse("winograd", "tile", f"tile={tile} for 3 taps: a tile has 2 to 6 outputs", s, lambda: s.winograd(s.get_block("C"), tile))


def test_winograd_channels(refuse: Refuse) -> None:
    s = Schedule(
        parse("""
@T.prim_func
def f(A: T.Buffer((10,), "float32"), W: T.Buffer((3,), "float32"), C: T.Buffer((8,), "float32")):
    for i, k in T.grid(8, 3):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi + vk] * W[vk]
""")
    )
    refuse("winograd", "channels", "sums only over the window", s, lambda: s.winograd(s.get_block("C"), 2))


def test_winograd_trivial(refuse: Refuse) -> None:
    s = convolution()
    s.split(s.get_loops(s.get_block("C"))[0], [None, 4])
    refuse("winograd", "trivial", "are not one for each iteration variable", s, lambda: s.winograd(s.get_block("C"), 2))


def test_winograd_in_blocks(refuse: Refuse) -> None:
    s = convolution(after="C[0] = 1.0")
    refuse("winograd", "in-blocks", "C", s, lambda: s.winograd(s.get_block("C"), 2))
