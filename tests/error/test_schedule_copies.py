"""Test refusals of cache_read, cache_write, cache_reduction and set_scope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunesmith.schedule.schedule import Schedule

On = Callable[[str], Schedule]
Refuse = Callable[..., None]


def loops(s: Schedule, block: str) -> list[Any]:
    """The loops around the block, outermost first."""
    return s.get_loops(s.get_block(block))


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ([0], "dimension 1 of A must occur in the layout once"),
        ([0, 1, 1], "dimension 1 of A must occur in the layout once"),
        ([0, [1, "/", 2]], "dimension 1 of A must occur in the layout once, or as '/' and '%' with one factor"),
        ([[0, "/", 2], 1, [0, "%", 4]], "dimension 0 of A must occur"),
        ([0, 1, 2], "the layout names dimension 2, but A has 2 dimensions, counted from 0"),
        ([0, 1, -1], "the layout names dimension -1, but A has 2 dimensions"),
        ([0, 5], "the layout names dimension 5, but A has 2 dimensions"),
        ([0, [1, "*", 2]], "a layout entry is an int, [d, '/', f] or [d, '%', f]; got [1, '*', 2]"),
        ([0, "1"], "a layout entry is an int"),
        ([0, [1, "/", 0], [1, "%", 0]], "a dimension is split by a factor of at least 1; found 0"),
    ],
)
def test_cache_read_layout(on: On, refuse: Refuse, layout: list[Any], why: str) -> None:
    s = on("dense")
    refuse("cache_read", "layout", why, s, lambda: s.cache_read(s.get_block("C"), "A", "workspace", layout))


@pytest.mark.parametrize("order", [[0], [0, 1, 1], [0, 2], [1, 0, -1], [0, None], [0, [1]]])
def test_cache_write_layout(on: On, refuse: Refuse, order: list[Any]) -> None:
    s = on("dense")
    message = "C has 2 dimensions, each of which must occur in the layout once"
    refuse("cache_write", "layout", message, s, lambda: s.cache_write(s.get_block("C"), "register", order))


def test_cache_read_reads_it(on: On, refuse: Refuse) -> None:
    s = on("dense")
    refuse(
        "cache_read",
        "reads-it",
        "block C does not read a buffer named 'bias'; it reads A, W",
        s,
        lambda: s.cache_read(s.get_block("C"), "bias", "global"),
    )


@pytest.mark.parametrize("access", [1, -1])
def test_cache_read_access(on: On, refuse: Refuse, access: Any) -> None:
    s = on("dense")
    message = f"block C has no read {access!r} of A; its reads are 0: A["
    refuse("cache_read", "access", message, s, lambda: s.cache_read(s.get_block("C"), "A", "global", access=access))


def test_cache_read_made_before(on: On, refuse: Refuse) -> None:
    s = on("chain")
    s.compute_at(s.get_block("B"), loops(s, "C")[0])
    refuse(
        "cache_read", "made-before", "B is written by B in the nest of block C", s, lambda: s.cache_read(s.get_block("C"), "B", "workspace")
    )


def test_cache_read_scope(on: On, refuse: Refuse) -> None:
    s = on("dense")
    refuse(
        "cache_read",
        "scope",
        "unknown scope 'l9'; scopes are global, workspace, register",
        s,
        lambda: s.cache_read(s.get_block("C"), "A", "l9"),
    )


def test_cache_write_scope(on: On, refuse: Refuse) -> None:
    s = on("dense")
    refuse("cache_write", "scope", "unknown scope 'ram'", s, lambda: s.cache_write(s.get_block("C"), "ram"))


def test_cache_write_one_output(on: On, refuse: Refuse) -> None:
    s = on("odd")
    refuse("cache_write", "one-output", "block two writes 2 buffers", s, lambda: s.cache_write(s.get_block("two"), "workspace"))


def test_cache_write_only_writer(on: On, refuse: Refuse) -> None:
    s = on("dense")
    b = s.get_block("C")
    s.decompose_reduction(b, s.get_loops(b)[2])
    refuse("cache_write", "only-writer", "C is also written by C_init", s, lambda: s.cache_write(b, "workspace"))


def test_cache_write_own_values(on: On, refuse: Refuse) -> None:
    s = on("odd")
    refuse(
        "cache_write",
        "own-values",
        "block in_place reads earlier values of F",
        s,
        lambda: s.cache_write(s.get_block("in_place"), "workspace"),
    )


def test_cache_write_read_after(on: On, refuse: Refuse) -> None:
    s = on("chain")
    b = s.get_block("B")
    s.compute_at(b, loops(s, "C")[0])
    refuse("cache_write", "read-after", "B is read by C in the nest of block B", s, lambda: s.cache_write(b, "workspace"))


def test_cache_reduction_scope(on: On, refuse: Refuse) -> None:
    s = on("sums")
    refuse("cache_reduction", "scope", "unknown scope 'cache'", s, lambda: s.cache_reduction(s.get_block("C"), loops(s, "C")[0], "cache"))


def test_cache_reduction_reduction(on: On, refuse: Refuse) -> None:
    s = on("row")
    refuse(
        "cache_reduction",
        "reduction",
        "block C has no init, and is not of the form C[...] = C[...] + term",
        s,
        lambda: s.cache_reduction(s.get_block("C"), loops(s, "C")[0], "workspace"),
    )


def test_cache_reduction_loop_of_block(on: On, refuse: Refuse) -> None:
    s = on("sums")
    refuse(
        "cache_reduction",
        "loop-of-block",
        "loop i is not around block C",
        s,
        lambda: s.cache_reduction(s.get_block("C"), loops(s, "E")[0], "workspace"),
    )


def test_cache_reduction_guard(on: On, refuse: Refuse) -> None:
    s = on("sums")
    i, k = loops(s, "C")
    i_0, inner = s.split(i, [None, 4])
    parts = s.split(inner, [None, 3])
    s.reorder([i_0, k, *parts])
    refuse(
        "cache_reduction",
        "guard",
        "block C computes only the part of its footprint where -4 + 3*i_1_0 + i_1_1 < 0",
        s,
        lambda: s.cache_reduction(s.get_block("C"), k, "workspace"),
    )


def test_cache_reduction_blocked(on: On, refuse: Refuse) -> None:
    s = on("sums")
    _, k = loops(s, "C")
    k_0, k_1 = s.split(k, [None, 2])
    outer, _ = s.split(s.fuse([k_0, k_1]), [None, 3])
    refuse(
        "cache_reduction",
        "blocked",
        "loop k_0_k_1_fused_0 does not divide the reduction of block C into blocks",
        s,
        lambda: s.cache_reduction(s.get_block("C"), outer, "workspace"),
    )


def test_cache_reduction_read_after(on: On, refuse: Refuse) -> None:
    s = on("dense")
    i, _, _ = loops(s, "C")
    s.reverse_compute_at(s.get_block("D"), i)
    refuse("cache_reduction", "read-after", "C is used by D inside loop i", s, lambda: s.cache_reduction(s.get_block("C"), i, "workspace"))


def test_cache_reduction_dense(on: On, refuse: Refuse) -> None:
    s = on("sums")
    i, k = loops(s, "C")
    i_0, i_1 = s.split(i, [None, 2])
    s.reorder([i_1, i_0, k])
    refuse(
        "cache_reduction",
        "dense",
        "block C writes C with gaps in one iteration of i_1",
        s,
        lambda: s.cache_reduction(s.get_block("C"), i_1, "workspace"),
    )


def test_cache_reduction_box(on: On, refuse: Refuse) -> None:
    s = on("triangular_sums")
    refuse(
        "cache_reduction",
        "box",
        "the footprint of block C has an extent that depends on i",
        s,
        lambda: s.cache_reduction(s.get_block("C"), loops(s, "C")[0], "workspace"),
    )


def test_set_scope_scope(on: On, refuse: Refuse) -> None:
    s = on("chain")
    refuse("set_scope", "scope", "unknown scope 'L1'", s, lambda: s.set_scope(s.get_block("B"), "L1"))


def test_set_scope_intermediate(on: On, refuse: Refuse) -> None:
    s = on("chain")
    refuse(
        "set_scope",
        "intermediate",
        "block C does not write a single intermediate buffer",
        s,
        lambda: s.set_scope(s.get_block("C"), "workspace"),
    )
