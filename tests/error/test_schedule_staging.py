"""Test refusals of read_at and write_at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunesmith.ir.script.parser import parse
from tunesmith.schedule.schedule import Schedule

On = Callable[[str], Schedule]
Refuse = Callable[..., None]


def loops(s: Schedule, block: str) -> list[Any]:
    """The loops around the block, outermost first."""
    return s.get_loops(s.get_block(block))


def test_read_at_scope(on: On, refuse: Refuse) -> None:
    s = on("dense")
    refuse("read_at", "scope", "unknown scope 'l9'", s, lambda: s.read_at(loops(s, "C")[0], s.get_block("C"), "A", "l9"))


def test_read_at_inside(on: On, refuse: Refuse) -> None:
    s = on("dense")
    message = "block D is not inside loop i"
    refuse("read_at", "inside", message, s, lambda: s.read_at(loops(s, "C")[0], s.get_block("D"), "C", "global"))


def test_read_at_reads_it(on: On, refuse: Refuse) -> None:
    s = on("dense")
    message = "block C does not read a buffer named 'D'; it reads A, W"
    refuse("read_at", "reads-it", message, s, lambda: s.read_at(loops(s, "C")[0], s.get_block("C"), "D", "global"))


def test_read_at_made_before(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, j = loops(s, "C")
    s.compute_at(s.get_block("B"), j)
    message = "B is written by B in the statement of block C"
    refuse("read_at", "made-before", message, s, lambda: s.read_at(i, s.get_block("C"), "B", "workspace"))


def test_read_at_box(on: On, refuse: Refuse) -> None:
    s = on("triangle")
    message = "the footprint of block C has an extent that depends on i: 1 + i"
    refuse("read_at", "box", message, s, lambda: s.read_at(loops(s, "C")[0], s.get_block("C"), "B", "workspace"))


def test_read_at_in_blocks(refuse: Refuse) -> None:
    func = parse(
        '@T.prim_func\ndef f(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):\n    for i in range(8):\n        A[i] = 1\n'
        '        with T.block("C"):\n            v = T.axis.spatial(8, i)\n            C[v] = A[v]\n'
    )
    s = Schedule(func)
    message = "a plain store or the condition of an `if` accesses A, which block C accesses too"
    refuse("read_at", "in-blocks", message, s, lambda: s.read_at(loops(s, "C")[0], s.get_block("C"), "A", "workspace"))


def test_write_at_inside(on: On, refuse: Refuse) -> None:
    s = on("dense")
    message = "block D is not inside loop i"
    refuse("write_at", "inside", message, s, lambda: s.write_at(loops(s, "C")[0], s.get_block("D"), "D", "global"))


def test_write_at_writes_it(on: On, refuse: Refuse) -> None:
    s = on("dense")
    message = "block C does not write a buffer named 'A'; it writes C"
    refuse("write_at", "writes-it", message, s, lambda: s.write_at(loops(s, "C")[0], s.get_block("C"), "A", "global"))
