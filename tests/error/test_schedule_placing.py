"""Test refusals of compute_at, reverse_compute_at, inlining, decompose_reduction and rfactor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly
from tunesmith.lower.size_ranges import SizeRanges
from tunesmith.lower.size_versions import version_for
from tunesmith.ops import tensor_expression as te
from tunesmith.schedule.schedule import Schedule

On = Callable[[str], Schedule]
Refuse = Callable[..., None]


def loops(s: Schedule, block: str) -> list[Any]:
    """The loops around the block, outermost first."""
    return s.get_loops(s.get_block(block))


def test_compute_at_intermediate(on: On, refuse: Refuse) -> None:
    s = on("chain")
    refuse(
        "compute_at",
        "intermediate",
        "block C must write one intermediate buffer at its own iteration variables",
        s,
        lambda: s.compute_at(s.get_block("C"), loops(s, "D")[0]),
    )


def test_compute_at_intermediate_2(on: On, refuse: Refuse) -> None:
    s = on("odd")
    refuse(
        "compute_at",
        "intermediate",
        "block diagonal must write one intermediate buffer at its own iteration variables, each once",
        s,
        lambda: s.compute_at(s.get_block("diagonal"), loops(s, "in_place")[0]),
    )


def test_compute_at_consumers_inside(on: On, refuse: Refuse) -> None:
    s = on("flip")
    refuse(
        "compute_at",
        "consumers-inside",
        "consumer D of B is not inside loop i, or B already is",
        s,
        lambda: s.compute_at(s.get_block("B"), loops(s, "C")[0]),
    )


def test_compute_at_consumers_inside_2(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, _ = loops(s, "C")
    s.compute_at(s.get_block("B"), i)
    refuse(
        "compute_at",
        "consumers-inside",
        "consumer C of B is not inside loop i, or B already is",
        s,
        lambda: s.compute_at(s.get_block("B"), i),
    )


def test_compute_at_consumers_inside_3(on: On, refuse: Refuse) -> None:
    s = on("odd")
    refuse(
        "compute_at",
        "consumers-inside",
        "block unread has no consumer inside loop i",
        s,
        lambda: s.compute_at(s.get_block("unread"), loops(s, "in_place")[0]),
    )


def test_compute_at_only_writer(on: On, refuse: Refuse) -> None:
    s = on("dense")
    b = s.get_block("C")
    s.decompose_reduction(b, s.get_loops(b)[2])
    refuse("compute_at", "only-writer", "C has another writer", s, lambda: s.compute_at(b, loops(s, "D")[0]))


def test_compute_at_box(on: On, refuse: Refuse) -> None:
    s = on("triangle")
    refuse(
        "compute_at",
        "box",
        "the footprint of block B has an extent that depends on i: 1 + i",
        s,
        lambda: s.compute_at(s.get_block("B"), loops(s, "C")[0]),
    )


def test_compute_at_box_of_sizes(refuse: Refuse) -> None:
    """A row of n elements needs an upper bound of n."""
    n = te.var("n")
    x = te.placeholder((8, n), name="X")
    b = te.compute((8, n), lambda i, j: x[i, j] + x[i, j], "B")
    func = te.create_prim_func([x, te.compute((8, n), lambda i, j: b[i, j] * b[i, j], "C")], "rows")
    s = Schedule(func)
    message = "the footprint of block B has an extent that depends on n: n. Tune the function for a range of its sizes"
    refuse("compute_at", "box", message, s, lambda: s.compute_at(s.get_block("B"), loops(s, "C")[0]))
    bounded = Schedule(version_for(func, SizeRanges.of({"n": (3, 20)})))
    bounded.compute_at(bounded.get_block("B"), loops(bounded, "C")[0])


def test_compute_at_guard(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, _ = loops(s, "B")
    _, inner = s.split(i, [None, 4])
    s.split(inner, [None, 3])
    refuse(
        "compute_at",
        "guard",
        "block B has a guard that cannot be moved: -4 + 3*i_1_0 + i_1_1 < 0",
        s,
        lambda: s.compute_at(s.get_block("B"), loops(s, "C")[0]),
    )


def test_reverse_compute_at_elementwise(on: On, refuse: Refuse) -> None:
    s = on("sums")
    refuse(
        "reverse_compute_at", "elementwise", "block E is a reduction", s, lambda: s.reverse_compute_at(s.get_block("E"), loops(s, "C")[0])
    )


def test_reverse_compute_at_elementwise_2(on: On, refuse: Refuse) -> None:
    s = on("flip")
    refuse(
        "reverse_compute_at",
        "elementwise",
        "block D reads B at 3 + -1*vi, not at an iteration variable",
        s,
        lambda: s.reverse_compute_at(s.get_block("D"), loops(s, "B")[0]),
    )


def test_reverse_compute_at_producer_inside(on: On, refuse: Refuse) -> None:
    s = on("chain")
    refuse(
        "reverse_compute_at",
        "producer-inside",
        "no block inside loop i writes a buffer that C reads",
        s,
        lambda: s.reverse_compute_at(s.get_block("C"), loops(s, "D")[0]),
    )


def test_reverse_compute_at_producer_inside_2(on: On, refuse: Refuse) -> None:
    s = on("chain")
    refuse(
        "reverse_compute_at",
        "producer-inside",
        "block C is already inside loop i",
        s,
        lambda: s.reverse_compute_at(s.get_block("C"), loops(s, "C")[0]),
    )


def test_reverse_compute_at_complete(on: On, refuse: Refuse) -> None:
    s = on("dense")
    i, j, k = loops(s, "C")
    s.reorder([i, k, j])
    refuse("reverse_compute_at", "complete", "block C still reduces outside loop j", s, lambda: s.reverse_compute_at(s.get_block("D"), j))


def test_reverse_compute_at_ready(on: On, refuse: Refuse) -> None:
    s = on("dense")
    s.decompose_reduction(s.get_block("C"), loops(s, "C")[0])
    refuse(
        "reverse_compute_at",
        "ready",
        "block D cannot move up before block C, which accesses the same data",
        s,
        lambda: s.reverse_compute_at(s.get_block("D"), loops(s, "C_init")[0]),
    )


def test_reverse_compute_at_dense(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, j = loops(s, "B")
    i_0, i_1 = s.split(i, [None, 2])
    s.reorder([i_1, i_0, j])
    refuse(
        "reverse_compute_at",
        "dense",
        "block B writes B with gaps in one iteration of i_1",
        s,
        lambda: s.reverse_compute_at(s.get_block("C"), i_1),
    )


def test_reverse_compute_at_one_box(on: On, refuse: Refuse) -> None:
    s = on("flip")
    refuse(
        "reverse_compute_at",
        "one-box",
        "block C would read elements that loop i has not written yet",
        s,
        lambda: s.reverse_compute_at(s.get_block("C"), loops(s, "B")[0]),
    )


def test_reverse_compute_at_box(on: On, refuse: Refuse) -> None:
    s = on("triangular_sums")
    refuse(
        "reverse_compute_at",
        "box",
        "the footprint of block D has an extent that depends on i: 1 + i",
        s,
        lambda: s.reverse_compute_at(s.get_block("D"), loops(s, "C")[0]),
    )


def test_reverse_compute_at_guard(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, j = loops(s, "B")
    i_0, inner = s.split(i, [None, 4])
    parts = s.split(inner, [None, 3])
    s.reorder([i_0, *parts, j])
    refuse(
        "reverse_compute_at",
        "guard",
        "block B computes only the part of its footprint where -4 + 3*i_1_0 + i_1_1 < 0",
        s,
        lambda: s.reverse_compute_at(s.get_block("C"), i_0),
    )


def test_compute_inline_pointwise(on: On, refuse: Refuse) -> None:
    s = on("dense")
    refuse("compute_inline", "pointwise", "block C is not a single store without reduction", s, lambda: s.compute_inline(s.get_block("C")))


def test_compute_inline_pointwise_2(on: On, refuse: Refuse) -> None:
    s = on("odd")
    refuse("compute_inline", "pointwise", "block in_place reads the buffer it writes", s, lambda: s.compute_inline(s.get_block("in_place")))


def test_compute_inline_intermediate(on: On, refuse: Refuse) -> None:
    s = on("chain")
    refuse(
        "compute_inline",
        "intermediate",
        "C is a parameter of the function or has another writer",
        s,
        lambda: s.compute_inline(s.get_block("C")),
    )


def test_compute_inline_has_consumer(on: On, refuse: Refuse) -> None:
    s = on("odd")
    refuse("compute_inline", "has-consumer", "nothing reads U", s, lambda: s.compute_inline(s.get_block("unread")))


def _too_large() -> Schedule:
    """A program with two stages of depth 80."""
    x = a = te.placeholder((4,), name="A")
    for name in ("B", "C"):

        def formula(i: Poly, x: te.Tensor = x) -> Expr:
            made: Expr = x[i]
            for _ in range(80):
                made = made + 1.0
            return made

        x = te.compute((4,), formula, name)
    return Schedule(te.create_prim_func([a, x], "f"))


def test_compute_inline_size(refuse: Refuse) -> None:
    s = _too_large()
    message = "with B inlined, block C has an expression of 321 nodes and depth 161; at most 65536 nodes and depth 120"
    refuse("compute_inline", "size", message, s, lambda: s.compute_inline(s.get_block("B")))


def test_reverse_compute_inline_size(refuse: Refuse) -> None:
    s = _too_large()
    message = "with B inlined, block C has an expression of 321 nodes and depth 161; at most 65536 nodes and depth 120"
    refuse("reverse_compute_inline", "size", message, s, lambda: s.reverse_compute_inline(s.get_block("C")))


def test_reverse_compute_inline_pointwise(on: On, refuse: Refuse) -> None:
    s = on("sums")
    refuse(
        "reverse_compute_inline",
        "pointwise",
        "block C is not a single store without reduction",
        s,
        lambda: s.reverse_compute_inline(s.get_block("C")),
    )


def test_reverse_compute_inline_pointwise_2(on: On, refuse: Refuse) -> None:
    s = on("dense")
    refuse(
        "reverse_compute_inline",
        "pointwise",
        "block C is not a single store without reduction",
        s,
        lambda: s.reverse_compute_inline(s.get_block("D")),
    )


def test_reverse_compute_inline_one_producer(on: On, refuse: Refuse) -> None:
    s = on("row")
    refuse("reverse_compute_inline", "one-producer", "block C has 0 producers", s, lambda: s.reverse_compute_inline(s.get_block("C")))


def test_reverse_compute_inline_one_producer_2(on: On, refuse: Refuse) -> None:
    s = on("flip")
    refuse("reverse_compute_inline", "one-producer", "B has another reader", s, lambda: s.reverse_compute_inline(s.get_block("C")))


def test_reverse_compute_inline_one_producer_3(on: On, refuse: Refuse) -> None:
    s = on("mirror")
    refuse(
        "reverse_compute_inline",
        "one-producer",
        "block C does not read B at its own iteration variables",
        s,
        lambda: s.reverse_compute_inline(s.get_block("C")),
    )


def test_reverse_compute_inline_one_producer_4(on: On, refuse: Refuse) -> None:
    s = on("mirror")
    refuse(
        "reverse_compute_inline",
        "one-producer",
        "block E does not read each element of D once",
        s,
        lambda: s.reverse_compute_inline(s.get_block("E")),
    )


def test_reverse_compute_inline_intermediate(on: On, refuse: Refuse) -> None:
    s = on("chain")
    refuse(
        "reverse_compute_inline",
        "intermediate",
        "C is a parameter of the function or has another writer",
        s,
        lambda: s.reverse_compute_inline(s.get_block("D")),
    )


def test_reverse_compute_inline_same_domain(on: On, refuse: Refuse) -> None:
    s = on("half")
    refuse(
        "reverse_compute_inline",
        "same-domain",
        "blocks B and C run over different extents, 4 and 8",
        s,
        lambda: s.reverse_compute_inline(s.get_block("C")),
    )


def test_decompose_reduction_reduction(on: On, refuse: Refuse) -> None:
    s = on("row")
    refuse("decompose_reduction", "reduction", "block C has no init", s, lambda: s.decompose_reduction(s.get_block("C"), loops(s, "C")[0]))


def test_decompose_reduction_loop_of_block(on: On, refuse: Refuse) -> None:
    s = on("sums")
    refuse(
        "decompose_reduction",
        "loop-of-block",
        "loop k is not around block C",
        s,
        lambda: s.decompose_reduction(s.get_block("C"), loops(s, "E")[1]),
    )


def test_decompose_reduction_reduce_inside(on: On, refuse: Refuse) -> None:
    s = on("sums")
    i, k = loops(s, "C")
    s.reorder([k, i])
    refuse(
        "decompose_reduction",
        "reduce-inside",
        "loop k outside i is part of the reduction",
        s,
        lambda: s.decompose_reduction(s.get_block("C"), i),
    )


def test_decompose_reduction_once(on: On, refuse: Refuse) -> None:
    """Every column of D recomputes S."""
    s = on("scaled")
    s.compute_at(s.get_block("S"), loops(s, "D")[1])
    refuse(
        "decompose_reduction",
        "once",
        "loop i contains other blocks, and may compute an element of S more than once",
        s,
        lambda: s.decompose_reduction(s.get_block("S"), loops(s, "S")[0]),
    )


def test_decompose_reduction_once_2(on: On, refuse: Refuse) -> None:
    """Adjacent iterations recompute shared elements."""
    s = on("windows")
    i_0, _ = s.split(loops(s, "D")[0], [None, 3])
    s.compute_at(s.get_block("S"), i_0)
    refuse(
        "decompose_reduction",
        "once",
        "loop i_0 contains other blocks, and may compute an element of S more than once",
        s,
        lambda: s.decompose_reduction(s.get_block("S"), i_0),
    )


def test_compute_at_index(on: On, refuse: Refuse) -> None:
    s = on("chain")
    message = "index is 1; the possible positions in loop i are 0 to 0, or -1, -2"
    refuse("compute_at", "index", message, s, lambda: s.compute_at(s.get_block("B"), loops(s, "C")[0], index=1))


def test_reverse_compute_at_index(on: On, refuse: Refuse) -> None:
    s = on("chain")
    message = "index is -3; the possible positions in loop i are 1 to 1, or -1, -2"
    refuse("reverse_compute_at", "index", message, s, lambda: s.reverse_compute_at(s.get_block("C"), loops(s, "B")[0], index=-3))


def test_sample_compute_location_concrete(refuse: Refuse) -> None:
    a = te.placeholder((6,), name="A")
    b = te.compute((6,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((6,), lambda i: b[i] + 1.0, name="C")
    s = Schedule(te.create_prim_func([a, c]), parametric=True)
    message = "a location cannot stay open, like a size: make a sketch for each element of compute_locations, here -2, -1, 0"
    refuse("sample_compute_location", "concrete", message, s, lambda: s.sample_compute_location(s.get_block("B")))


def test_sample_compute_location_decision(on: On, refuse: Refuse) -> None:
    s = on("chain")
    b = s.get_block("B")
    message = "location 2 is not one of -2, -1, 0, 1"
    refuse("sample_compute_location", "decision", message, s, lambda: s.sample_compute_location(b, decision=[2]))
    message = "1 integers >= -2 are needed, got [-3]"
    refuse("sample_compute_location", "decision", message, s, lambda: s.sample_compute_location(b, decision=[-3]))


def test_compute_at_over_whole_dimensions_of_others(on: On, refuse: Refuse) -> None:
    s = on("dense")
    what = "iteration variable 2 of block C does not index its buffer; those that do are 0, 1"
    refuse("compute_at", "whole", what, s, lambda: s.compute_at(s.get_block("C"), loops(s, "D")[0], whole=(2,)))
