"""Test refusals of bind, cooperative_fetch, pad_rows, add_unit_loop, and compute_at with shared_by."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunesmith.ir.script.syntax import T
from tunesmith.schedule.primitive import PRIMITIVES
from tunesmith.schedule.schedule import Schedule

On = Callable[[str], Schedule]
Refuse = Callable[..., None]


@pytest.mark.parametrize("name", ["bind", "cooperative_fetch", "pad_rows", "add_unit_loop"])
def test_every_label_has_a_refusal(name: str) -> None:
    text = inspect.getdoc(PRIMITIVES[name].function) or ""
    labels = re.findall(r"^    ([a-z-]+): ", text.partition("Requires:")[2].partition("\nKeeps:")[0], re.MULTILINE)
    tested = Path(__file__).read_text()
    assert labels
    assert [x for x in labels if f'refuse("{name}", "{x}"' not in tested] == []


def loops(s: Schedule, block: str) -> list[Any]:
    """The loops around the block, outermost first."""
    return s.get_loops(s.get_block(block))


# ---- bind


def test_bind_known_thread(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse("bind", "known-thread", "there is no thread axis 'threadIdx.w'; there are blockIdx.x, ", s, lambda: s.bind(i, "threadIdx.w"))


def test_bind_serial(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    s.parallel(i)
    refuse("bind", "serial", "loop i is already parallel", s, lambda: s.bind(i, "threadIdx.x"))


def test_bind_serial_2(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    s.bind(i, "threadIdx.x")
    refuse("bind", "serial", "loop i is already thread", s, lambda: s.bind(i, "blockIdx.x"))


@T.prim_func
def scan(A: T.Buffer((4, 12), "int32"), B: T.Buffer((4, 12), "int32")):
    for i, j in T.grid(4, 12):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = (B[vi, vj - 1] if vj > 0 else 0) + A[vi, vj]


@pytest.mark.parametrize("axis", ["blockIdx.x", "threadIdx.x", "vthread.x"])
def test_bind_independent(refuse: Refuse, axis: str) -> None:
    s = Schedule(scan)
    i, j = loops(s, "B")
    what = "different iterations of loop j may access one element of B: block B writes B[i, j] and block B reads B[i, -1 + j]"
    refuse("bind", "independent", what, s, lambda: s.bind(j, axis))
    s.bind(i, axis)


@pytest.mark.parametrize("axis", ["blockIdx.x", "vthread.x"])
def test_bind_data_parallel(on: On, refuse: Refuse, axis: str) -> None:
    """Threads can combine their values; thread blocks and virtual threads cannot."""
    s = on("sums")
    k = loops(s, "C")[1]
    refuse("bind", "data-parallel", "block C reduces over loop k; use rfactor first", s, lambda: s.bind(k, axis))


def test_bind_data_parallel_2(on: On, refuse: Refuse) -> None:
    """The loop is only a part of the reduction."""
    s = on("sums")
    _, inner = s.split(loops(s, "C")[1], [None, 2])
    refuse("bind", "data-parallel", "block C reduces over loop k_1; use rfactor first", s, lambda: s.bind(inner, "threadIdx.x"))


def test_bind_data_parallel_3(on: On, refuse: Refuse) -> None:
    """The loop contains more than the block."""
    s = on("sums")
    i, k = loops(s, "C")
    s.reorder([k, i])
    refuse("bind", "data-parallel", "block C reduces over loop k; use rfactor first", s, lambda: s.bind(k, "threadIdx.x"))


def test_bind_data_parallel_4(on: On, refuse: Refuse) -> None:
    """`L[i] = A[i, k] - L[i]` cannot be reassociated."""
    s = on("scaled")
    k = loops(s, "L")[1]
    refuse("bind", "data-parallel", "block L reduces over loop k; use rfactor first", s, lambda: s.bind(k, "threadIdx.x"))


def test_bind_data_parallel_5(on: On, refuse: Refuse) -> None:
    """After decompose_reduction the block has no init."""
    s = on("sums")
    b = s.get_block("C")
    k = s.get_loops(b)[1]
    s.decompose_reduction(b, k)
    refuse("bind", "data-parallel", "block C reduces over loop k; use rfactor first", s, lambda: s.bind(k, "threadIdx.x"))


def test_bind_nested(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, j = loops(s, "C")
    s.bind(i, "threadIdx.x")
    refuse("bind", "nested", "a loop of blockIdx.x would be inside a loop of threadIdx.x", s, lambda: s.bind(j, "blockIdx.x"))


def test_bind_nested_2(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, j = loops(s, "C")
    s.bind(j, "blockIdx.y")
    refuse("bind", "nested", "a loop of blockIdx.y would be inside a loop of vthread.x", s, lambda: s.bind(i, "vthread.x"))


@pytest.mark.parametrize("axis", ["blockIdx.x", "vthread.y"])
def test_bind_nested_3(on: On, refuse: Refuse, axis: str) -> None:
    s = on("chain")
    i, j = loops(s, "C")
    s.bind(i, axis)
    refuse("bind", "nested", f"a loop of {axis} would be inside a loop of {axis}", s, lambda: s.bind(j, axis))


def test_bind_agree(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, j = loops(s, "C")
    s.bind(i, "threadIdx.x")
    what = "loops i and j of threadIdx.x have different extents, 4 and 6"
    refuse("bind", "agree", what, s, lambda: s.bind(j, "threadIdx.x"))


def test_bind_alike(on: On, refuse: Refuse) -> None:
    """The body of the inner loop must not depend on the outer thread loop."""
    s = on("chain")
    t, j = s.split(loops(s, "C")[0], [None, 2])
    s.bind(t, "threadIdx.x")
    what = f"block C depends on loop {s.loop(t).var.name} of threadIdx.x"
    refuse("bind", "alike", what, s, lambda: s.bind(j, "threadIdx.x"))


def test_threads_of_other_nests_may_have_other_extents(on: On) -> None:
    s = on("chain")
    s.bind(loops(s, "B")[0], "threadIdx.x")
    s.bind(loops(s, "C")[1], "threadIdx.x")


def test_bind_loop_exists(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    s.split(i, [None, 4])
    refuse("bind", "loop-exists", "", s, lambda: s.bind(i, "threadIdx.x"))


# ---- cooperative_fetch


def test_cooperative_fetch_threads_around(on: On, refuse: Refuse) -> None:
    s = on("chain")
    s.bind(loops(s, "C")[0], "blockIdx.x")
    b = s.get_block("C")
    refuse("cooperative_fetch", "threads-around", "block C is in no threadIdx loop", s, lambda: s.cooperative_fetch(b))


def test_cooperative_fetch_own_loops(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, j = loops(s, "C")
    s.bind(i, "threadIdx.x")
    s.unroll(j)
    b = s.get_block("C")
    refuse("cooperative_fetch", "own-loops", "block C has no loops of its own", s, lambda: s.cooperative_fetch(b))


def test_cooperative_fetch_positive(on: On, refuse: Refuse) -> None:
    s = on("chain")
    s.bind(loops(s, "C")[0], "threadIdx.x")
    b = s.get_block("C")
    what = "a round has at least one element; found 0"
    refuse("cooperative_fetch", "positive", what, s, lambda: s.cooperative_fetch(b, 0))


def test_cooperative_fetch_alike(on: On, refuse: Refuse) -> None:
    s = on("chain")
    s.bind(loops(s, "C")[0], "threadIdx.x")
    b = s.get_block("C")
    refuse("cooperative_fetch", "alike", "block C depends on loop i of threadIdx.x", s, lambda: s.cooperative_fetch(b))


def test_cooperative_fetch_data_parallel(on: On, refuse: Refuse) -> None:
    s = on("sums")
    s.bind(loops(s, "C")[0], "threadIdx.x")
    b = s.get_block("C")
    refuse("cooperative_fetch", "data-parallel", "block C is a reduction", s, lambda: s.cooperative_fetch(b))


def test_cooperative_fetch_block_exists(on: On, refuse: Refuse) -> None:
    s = on("chain")
    b = s.get_block("B")
    s.compute_inline(b)
    refuse("cooperative_fetch", "block-exists", "", s, lambda: s.cooperative_fetch(b))


# ---- pad_rows


def test_pad_rows_intermediate(on: On, refuse: Refuse) -> None:
    s = on("row")
    b = s.get_block("C")
    refuse("pad_rows", "intermediate", "block C does not write a single intermediate buffer", s, lambda: s.pad_rows(b, 4))


def test_pad_rows_intermediate_2(on: On, refuse: Refuse) -> None:
    s = on("odd")
    b = s.get_block("two")
    refuse("pad_rows", "intermediate", "block two does not write a single intermediate buffer", s, lambda: s.pad_rows(b, 4))


def test_pad_rows_positive(on: On, refuse: Refuse) -> None:
    s = on("chain")
    b = s.get_block("B")
    refuse("pad_rows", "positive", "rows are padded by 0 elements or more; found -1", s, lambda: s.pad_rows(b, -1))


def test_pad_rows_bounded(on: On, refuse: Refuse) -> None:
    s = on("chain")
    b = s.get_block("B")
    refuse("pad_rows", "bounded", "rows are padded by at most 1024 elements; found 1025", s, lambda: s.pad_rows(b, 1025))
    refuse("pad_rows", "bounded", "rows are padded by at most 1024 elements", s, lambda: s.pad_rows(b, 2**36))
    s.pad_rows(b, 1024)


def test_pad_rows_block_exists(on: On, refuse: Refuse) -> None:
    s = on("chain")
    b = s.get_block("B")
    s.compute_inline(b)
    refuse("pad_rows", "block-exists", "", s, lambda: s.pad_rows(b, 1))


# ---- add_unit_loop


def test_add_unit_loop_loop_exists(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    s.split(i, [None, 4])
    refuse("add_unit_loop", "loop-exists", "", s, lambda: s.add_unit_loop(i))


# ---- compute_at


def test_compute_at_shared_by(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, j = loops(s, "C")
    b = s.get_block("B")
    what = "loop j is not around loop i"
    refuse("compute_at", "shared-by", what, s, lambda: s.compute_at(b, i, shared_by=[j]))


def test_compute_at_shared_by_2(on: On, refuse: Refuse) -> None:
    s = on("chain")
    _, j = loops(s, "C")
    b = s.get_block("B")
    what = "loop j is not around loop j"
    refuse("compute_at", "shared-by", what, s, lambda: s.compute_at(b, j, shared_by=[j]))


def test_compute_at_shared_by_3(on: On, refuse: Refuse) -> None:
    """The loop is in another nest."""
    s = on("chain")
    other, _ = loops(s, "D")
    _, j = loops(s, "C")
    b = s.get_block("B")
    refuse("compute_at", "shared-by", "loop i is not around loop j", s, lambda: s.compute_at(b, j, shared_by=[other]))
