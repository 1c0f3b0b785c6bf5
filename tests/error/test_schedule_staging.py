"""Test refusals of read_at, write_at and rolling_buffer."""

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


# ---- rolling_buffer


def rolled(
    read: str = "B[v] + B[v + 2]",
    make: str = "A[w] * 2",
    consumer: str = "i",
    where: str = "",
    axis: str = "T.axis.spatial(16, i + k)",
    more: str = "",
    before: str = "",
) -> Schedule:
    """Block B computes three elements in each iteration of i, of which block C reads some."""
    guard = f"                {where}\n" if where else ""
    return Schedule(
        parse(
            f"""
@T.prim_func
def f(A: T.Buffer((32,), "int32"), C: T.Buffer((32,), "int32")):
    B = T.alloc_buffer((32,), "int32")
    for i in T.serial(8):
        {before or "pass"}
        for k in T.serial(3):
            with T.block("B"):
                w = {axis}
{guard}                B[w] = {make}
        with T.block("C"):
            v = T.axis.spatial(8, {consumer})
            C[v] = {read}
        {more or "pass"}
""".replace("        pass\n", "")
        )
    )


def roll(s: Schedule) -> Callable[[], None]:
    return lambda: s.rolling_buffer(s.get_block("B"), "B")


def test_rolling_buffer_intermediate(on: On, refuse: Refuse) -> None:
    s = on("chain")
    message = "block C does not write an intermediate buffer 'C' at its own iteration variables"
    refuse("rolling_buffer", "intermediate", message, s, lambda: s.rolling_buffer(s.get_block("C"), "C"))
    s = rolled(make="A[w] + T.if_then_else(0 < w, B[w - 1], 0)")
    refuse("rolling_buffer", "intermediate", "block B reads earlier values of B", s, roll(s))


def test_rolling_buffer_sliding(on: On, refuse: Refuse) -> None:
    s = on("windows")
    message = "block S and its consumers are in no common loop; use compute_at first"
    refuse("rolling_buffer", "sliding", message, s, lambda: s.rolling_buffer(s.get_block("S"), "S"))
    s = rolled(axis="T.axis.spatial(16, k)")
    refuse("rolling_buffer", "sliding", "loop i does not move the footprint of block B along one dimension", s, roll(s))


def test_rolling_buffer_overlap(refuse: Refuse) -> None:
    s = rolled(axis="T.axis.spatial(32, i * 3 + k)", read="B[v * 3]")
    refuse("rolling_buffer", "overlap", "consecutive footprints of block B share no element; found 3", s, roll(s))
    s = rolled(axis="T.axis.spatial(16, 7 - i + k)", read="B[7 - v]")
    refuse("rolling_buffer", "overlap", "loop i does not move the footprint of block B forward; found -1", s, roll(s))


def test_rolling_buffer_serial(refuse: Refuse) -> None:
    s = rolled()
    s.parallel(loops(s, "C")[0])
    refuse("rolling_buffer", "serial", "loop i is parallel; its iterations must run in order", s, roll(s))


def test_rolling_buffer_serial_2(on: On, refuse: Refuse) -> None:
    s = on("windows")
    (i,) = loops(s, "D")
    block, inner = s.split(i, [None, 3])
    s.compute_at(s.get_block("S"), inner)
    s.bind(block, "blockIdx.x")
    message = "the footprint of block S depends on loop i_0, which is bound to a thread axis"
    refuse("rolling_buffer", "serial", message, s, lambda: s.rolling_buffer(s.get_block("S"), "S"))


def test_rolling_buffer_after(refuse: Refuse) -> None:
    message = "may read elements of B that block B computes in another iteration of i"
    for s in (
        rolled(read="B[v] + B[v + 3]"),
        rolled(read="B[T.max(v - 1, 0)]"),
        rolled(before='with T.block("D"):\n            x = T.axis.spatial(8, i)\n            C[x + 8] = B[x]'),
    ):
        refuse("rolling_buffer", "after", message, s, roll(s))


def test_rolling_buffer_dense(refuse: Refuse) -> None:
    s = rolled(axis="T.axis.spatial(16, i + k * 2)")
    refuse("rolling_buffer", "dense", "block B writes B with gaps in one iteration of i", s, roll(s))


def test_rolling_buffer_box(refuse: Refuse) -> None:
    s = Schedule(
        parse("""
@T.prim_func
def f(A: T.Buffer((16,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((16,), "int32")
    for i in T.serial(8):
        for k in T.serial(i + 1):
            with T.block("B"):
                w = T.axis.spatial(16, i + k)
                B[w] = A[w]
        with T.block("C"):
            v = T.axis.spatial(8, i)
            C[v] = B[v]
""")
    )
    message = "the footprint of block B has an extent that depends on i: 1 + i"
    refuse("rolling_buffer", "box", message, s, roll(s))


def test_rolling_buffer_complete(refuse: Refuse) -> None:
    s = Schedule(
        parse("""
@T.prim_func
def f(A: T.Buffer((10, 4), "int32"), C: T.Buffer((4, 8), "int32")):
    B = T.alloc_buffer((10,), "int32")
    for r, i in T.grid(4, 8):
        for k in T.serial(3):
            with T.block("B"):
                w = T.axis.spatial(10, i + k)
                vr = T.axis.reduce(4, r)
                with T.init():
                    B[w] = 0
                B[w] = B[w] + A[w, vr]
        with T.block("C"):
            v, u = T.axis.remap("SS", [i, r])
            C[u, v] = B[v] + B[v + 2]
""")
    )
    refuse("rolling_buffer", "complete", "block B still reduces outside the body of loop i", s, roll(s))


def test_rolling_buffer_guard(refuse: Refuse) -> None:
    s = rolled(where="T.where(i + k * 2 < 11)")
    refuse("rolling_buffer", "guard", "of block B may differ between iterations of i", s, roll(s))


def test_rolling_buffer_unchanged(refuse: Refuse) -> None:
    s = rolled(more='with T.block("D"):\n            x = T.axis.spatial(8, i)\n            A[x + 2] = 1')
    message = "block D writes A, which block B reads, in loop i, and its values may differ between iterations"
    refuse("rolling_buffer", "unchanged", message, s, roll(s))


def test_rolling_buffer_in_blocks(refuse: Refuse) -> None:
    s = rolled(more="C[i] = B[i]")
    message = "a plain store or the condition of an `if` accesses B"
    refuse("rolling_buffer", "in-blocks", message, s, roll(s))
