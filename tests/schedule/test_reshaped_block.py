"""Test reverse_compute_at of blocks that read the produced buffer in another shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ops import tensor_expression as te
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import ScheduleError

Apply = Callable[..., Schedule]
Golden = Callable[..., None]
Read = Callable[[Any], Callable[..., Any]]


def program(shape: Sequence[int], read: Read) -> PrimFunc:
    """C, of the given shape, is computed from the elements of B, a matrix of 6 x 8."""
    a = te.placeholder((6, 8), name="A")
    bias = te.placeholder(shape[-1:], name="bias")
    b = te.compute((6, 8), lambda i, j: a[i, j] * 2.0, name="B")
    c = te.compute(shape, lambda *at: read(b)(*at) + bias[at[-1]], name="C")
    return te.create_prim_func([a, bias, c])


READS: dict[str, tuple[Sequence[int], Read]] = {
    "flat": ((48,), lambda b: lambda c: b[c // 8, c % 8]),
    "split": ((6, 2, 4), lambda b: lambda i, j, k: b[i, j * 4 + k]),
    "regrouped": ((4, 12), lambda b: lambda i, j: b[(i * 12 + j) // 8, (i * 12 + j) % 8]),
    "transposed": ((8, 3, 2), lambda b: lambda j, i, k: b[i * 2 + k, j]),
    "unit": ((1, 6, 8), lambda b: lambda z, i, j: b[i, j]),
}


def into(at: int) -> Callable[[Schedule], None]:
    def steps(s: Schedule) -> None:
        i, j = s.get_loops(s.get_block("B"))
        tiles = s.split(i, [None, *s.sample_tile(i, 2, "a", [range(1, 20)], waste=20.0)])
        s.reverse_compute_at(s.get_block("C"), [*tiles, j][at])
        s.parallel(tiles[0])

    return steps


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("name", READS)
def test_every_read(apply: Apply, name: str, at: int) -> None:
    for tile in (1, 4, 6, 7):
        apply(program(*READS[name]), into(at), [[tile]])


def test_text(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(program(*READS["regrouped"]), into(0), [[2]]).func))


def test_a_sum_of_one_element(apply: Apply) -> None:
    """The index 0 of a dimension of extent 1 is a shape, too."""
    a = te.placeholder((5,), name="A")
    k = te.reduce_axis((0, 5), name="k")
    b = te.compute((1,), lambda i: te.sum(a[k], axis=k), name="B")
    c = te.compute((1, 1), lambda i, j: b[0] + 1.0, name="C")
    apply(te.create_prim_func([a, c]), lambda s: s.reverse_compute_at(s.get_block("C"), s.get_loops(s.get_block("B"))[0]))


@pytest.mark.parametrize(
    ("shape", "read"),
    [
        ((48,), lambda b: lambda c: b[c // 6, c % 6]),
        ((40,), lambda b: lambda c: b[c // 8, c % 8]),
        ((6, 8), lambda b: lambda i, j: b[5 - i, j]),
        ((48,), lambda b: lambda c: b[c % 6, c // 6]),
        ((8, 6), lambda b: lambda i, j: b[(i * 6 + j) // 8, j]),
    ],
)
def test_reads_that_are_no_reshape(shape: Sequence[int], read: Read) -> None:
    s = Schedule(program(shape, read))
    with pytest.raises(ScheduleError, match=r"reverse_compute_at refused \[elementwise\]"):
        s.reverse_compute_at(s.get_block("C"), s.get_loops(s.get_block("B"))[0])


def test_loops_that_do_not_cover_the_domain() -> None:
    """The new nest would run instances that the old one does not."""
    s = Schedule(program(*READS["flat"]))
    func = s.func
    (c,) = s.loops_of("C")
    s.set_body(func.body.with_(stmts=(func.body.stmts[0], c.with_(extent=c.extent - 8))))
    with pytest.raises(ScheduleError, match=r"reverse_compute_at refused \[domain\]"):
        s.reverse_compute_at(s.get_block("C"), s.get_loops(s.get_block("B"))[0])


def test_sampled_shapes_are_refused() -> None:
    """With a size of 1 an index such as c % t is 0, so the program would have another form."""
    s = Schedule(program(*READS["split"]), parametric=True)
    f = s.sample_categorical([1, 2])
    copy = s.cache_read(s.get_block("C"), "B", "global", [0, [1, "/", f], [1, "%", f]])
    with pytest.raises(ScheduleError, match=r"reverse_compute_at refused \[elementwise\]"):
        s.reverse_compute_at(s.get_block("C"), s.get_loops(copy)[0])
