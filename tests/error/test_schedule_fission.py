"""Test refusals of fission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.syntax import T
from tunesmith.schedule.schedule import Schedule

On = Callable[[str], Schedule]
Refuse = Callable[..., None]


@T.prim_func
def pair(A: T.Buffer((8, 6), "float32"), B: T.Buffer((8, 6), "float32"), C: T.Buffer((8, 6), "float32")):
    for i, j in T.grid(8, 6):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + 1.0


@T.prim_func
def recurrence(A: T.Buffer((9,), "float32"), B: T.Buffer((9,), "float32"), C: T.Buffer((10,), "float32")):
    """B reads the element of C that the iteration before wrote."""
    for i in T.serial(9):
        with T.block("B"):
            vi = T.axis.spatial(9, i)
            B[vi] = A[vi] + C[vi]
        with T.block("C"):
            vi = T.axis.spatial(9, i)
            C[vi + 1] = B[vi] * 0.5


@T.prim_func
def anti(A: T.Buffer((9,), "float32"), B: T.Buffer((10,), "float32"), C: T.Buffer((9,), "float32")):
    """C reads the element of B that the next iteration overwrites."""
    for i in T.serial(9):
        with T.block("B"):
            vi = T.axis.spatial(9, i)
            B[vi] = A[vi] * 2.0
        with T.block("C"):
            vi = T.axis.spatial(9, i)
            C[vi] = B[vi + 1] + 1.0


@T.prim_func
def row_buffer(A: T.Buffer((9, 4), "float32"), C: T.Buffer((9, 4), "float32")):
    """B holds one row at a time."""
    B = T.alloc_buffer((4,), "float32")
    for i in T.serial(9):
        for j in T.serial(4):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vj] = A[vi, vj] * 2.0
        for j in T.serial(4):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[3 - vj] + 1.0


def divide(s: Schedule, block: str, depth: int = 0) -> Callable[[], Any]:
    b = s.get_block(block)
    return lambda: s.fission(s.get_loops(b)[depth], b)


def test_fission_serial(refuse: Refuse) -> None:
    s = Schedule(pair)
    s.parallel(s.get_loops(s.get_block("B"))[0])
    message = "loop i is parallel or annotated; divide before marking loops"
    refuse("fission", "serial", message, s, divide(s, "B"))


@pytest.mark.parametrize(("block", "depth"), [("C", 1), ("B", 0), ("C", 0)])
def test_fission_statements(refuse: Refuse, block: str, depth: int) -> None:
    """The last block of the loop, and an outer loop with one statement."""
    s = Schedule(pair)
    message = f"no statement of loop {'ij'[depth]} follows one that contains block {block}"
    refuse("fission", "statements", message, s, divide(s, block, depth))


def test_fission_statements_of_another_nest(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, _ = s.get_loops(s.get_block("B"))
    message = "no statement of loop i follows one that contains block C"
    refuse("fission", "statements", message, s, lambda: s.fission(i, s.get_block("C")))


@pytest.mark.parametrize(("func", "buffer"), [(recurrence, "C"), (anti, "B"), (row_buffer, "B")], ids=lambda x: getattr(x, "name", ""))
def test_fission_order(refuse: Refuse, func: PrimFunc, buffer: str) -> None:
    s = Schedule(func)
    message = (
        f"a later iteration of loop i in block B may access the same element of {buffer} as block C in an earlier one, and would run "
        "before it. Keep both in one loop, or give the buffer a dimension for the loop"
    )
    refuse("fission", "order", message, s, divide(s, "B"))


def test_fission_loop_exists(refuse: Refuse) -> None:
    s = Schedule(pair)
    b = s.get_block("B")
    _, j = s.get_loops(b)
    s.fission(j, b)
    refuse("fission", "loop-exists", "loop j (l1) was consumed by fission (step 2)", s, lambda: s.fission(j, b))
