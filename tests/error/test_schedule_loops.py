"""Test refusals of split, fuse, reorder, parallel, vectorize, unroll and sampling."""

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


def test_split_serial(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    s.bind(i, "threadIdx.x")
    refuse("split", "serial", "loop i is thread or annotated; split before marking loops", s, lambda: s.split(i, [None, 4]))


def test_split_serial_2(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    s.annotate(i, "prefetch", 4)
    refuse("split", "serial", "loop i is serial or annotated", s, lambda: s.split(i, [None, 4]))


def test_split_one_unknown(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse("split", "one-unknown", "at most one factor may be None", s, lambda: s.split(i, [None, 2, None]))


def test_split_one_unknown_2(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse("split", "one-unknown", "there must be a factor", s, lambda: s.split(i, []))


def test_split_positive(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse("split", "positive", "a factor must be at least 1; found 0", s, lambda: s.split(i, [None, 2, 0]))


def test_split_bounded(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse("split", "bounded", "a factor must be at most 2147483647; found 2147483648", s, lambda: s.split(i, [None, 2**31]))


def test_split_bounded_2(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    s.vectorize(i)
    refuse("split", "bounded", "a factor must be at most 512; found 513", s, lambda: s.split(i, [None, 513]))


def test_split_covers(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse("split", "covers", "the factors do not cover the loop: the first must be at least 4; found 3", s, lambda: s.split(i, [3, 4]))


def test_fuse_at_least_one(on: On, refuse: Refuse) -> None:
    s = on("row")
    refuse("fuse", "at-least-one", "no loops were given", s, lambda: s.fuse([]))


def test_fuse_nested(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, j = loops(s, "C")
    refuse("fuse", "nested", "loop i is not the only statement of loop j", s, lambda: s.fuse([j, i]))


def test_fuse_nested_2(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, _ = loops(s, "C")
    _, other = loops(s, "B")
    refuse("fuse", "nested", "loop j is not the only statement of loop i", s, lambda: s.fuse([i, other]))


def test_fuse_serial(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, j = loops(s, "C")
    s.vectorize(j)
    refuse("fuse", "serial", "loop j is vectorized or annotated; fuse before marking loops", s, lambda: s.fuse([i, j]))


def test_fuse_independent(on: On, refuse: Refuse) -> None:
    s = on("triangle")
    refuse("fuse", "independent", "the extent of loop j depends on another loop that is fused", s, lambda: s.fuse(loops(s, "C")))


def test_reorder_distinct(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, j = loops(s, "C")
    refuse("reorder", "distinct", "a loop is named twice", s, lambda: s.reorder([j, i, j]))


def test_reorder_nest(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, _ = loops(s, "B")
    _, j = loops(s, "C")
    refuse("reorder", "nest", "the loops are not one perfect nest: j cannot be reached", s, lambda: s.reorder([j, i]))


def test_reorder_single_block(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, j = loops(s, "C")
    s.compute_at(s.get_block("B"), j)
    refuse("reorder", "single-block", "the nest contains more than one block", s, lambda: s.reorder([j, i]))


def test_reorder_independent(on: On, refuse: Refuse) -> None:
    s = on("triangle")
    refuse("reorder", "independent", "the extent of loop j depends on another loop of the nest", s, lambda: s.reorder(loops(s, "C")[::-1]))


def test_reorder_init_first(on: On, refuse: Refuse) -> None:
    s = on("sums")
    outer, inner = s.split(s.fuse(loops(s, "C")), [None, 4])
    refuse("reorder", "init-first", "block C would update elements before their init", s, lambda: s.reorder([inner, outer]))


def test_parallel_serial(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    s.unroll(i)
    refuse("parallel", "serial", "loop i is already unrolled", s, lambda: s.parallel(i))


def test_parallel_data_parallel(on: On, refuse: Refuse) -> None:
    s = on("sums")
    _, k = loops(s, "C")
    refuse("parallel", "data-parallel", "block C reduces over loop k; use rfactor first", s, lambda: s.parallel(k))


def test_vectorize_serial(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    s.parallel(i)
    refuse("vectorize", "serial", "loop i is already parallel", s, lambda: s.vectorize(i))


def test_vectorize_length(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse("vectorize", "length", "a vectorized loop has at most 8 iterations; found 16", s, lambda: s.vectorize(i, 8))


def test_vectorize_innermost(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, _ = loops(s, "C")
    s.compute_at(s.get_block("B"), i)
    refuse("vectorize", "innermost", "loop i must contain blocks in its serial loops, and contains several", s, lambda: s.vectorize(i))


def test_vectorize_innermost_2(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, j = loops(s, "C")
    s.parallel(j)
    what = "contains loop j, which is parallel or has an extent that depends on it: use reorder to make it the innermost loop"
    refuse("vectorize", "innermost", what, s, lambda: s.vectorize(i))


def test_vectorize_innermost_3(on: On, refuse: Refuse) -> None:
    s = on("chain")
    i, j = loops(s, "C")
    s.vectorize(i)
    refuse("vectorize", "innermost", "loop i around block C is vectorized already", s, lambda: s.vectorize(j))


def test_vectorize_innermost_4(on: On, refuse: Refuse) -> None:
    s = on("triangle")
    i, _ = loops(s, "C")
    refuse("vectorize", "innermost", "contains loop j, which is serial or has an extent that depends on it", s, lambda: s.vectorize(i))


def test_vectorize_data_parallel_2(on: On, refuse: Refuse) -> None:
    s = on("sums")
    i, k = loops(s, "C")
    s.reorder([k, i])
    refuse("vectorize", "data-parallel", "block C reduces over loop k, which contains other loops or blocks", s, lambda: s.vectorize(k))


def test_vectorize_data_parallel(on: On, refuse: Refuse) -> None:
    s = on("sums")
    _, k = loops(s, "C")
    refuse("vectorize", "data-parallel", "block C initialises and reduces over loop k", s, lambda: s.vectorize(k))


def test_unroll_serial(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    s.vectorize(i)
    refuse("unroll", "serial", "loop i is already vectorized", s, lambda: s.unroll(i))


def test_unroll_length(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse("unroll", "length", "a loop of at most max_copies=15 iterations is unrolled; found 16", s, lambda: s.unroll(i, 15))


def test_unroll_length_2(on: On, refuse: Refuse) -> None:
    s = on("triangle")
    _, j = loops(s, "C")
    refuse(
        "unroll",
        "length",
        "a loop of at most max_copies=512 iterations is unrolled: -511 + i depends on a loop variable",
        s,
        lambda: s.unroll(j),
    )


def test_sample_categorical_admissible(on: On, refuse: Refuse) -> None:
    s = on("row")
    refuse("sample_categorical", "admissible", "there are no candidates to choose from", s, lambda: s.sample_categorical([]))


def test_sample_categorical_admissible_2(on: On, refuse: Refuse) -> None:
    s = on("row")
    refuse("sample_categorical", "admissible", "a choice is an integer >= 0, got [-1, 2]", s, lambda: s.sample_categorical([-1, 2]))


def test_tiles_without_values(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    message = "there are no values to choose a tile from"
    refuse("sample_tile", "admissible", message, s, lambda: s.sample_tile(i, 3, domains=[(2,), ()]))
    refuse("sample_perfect_tile", "admissible", message, s, lambda: s.sample_perfect_tile(i, 2, max_innermost_factor=0))


def test_sample_categorical_decision(on: On, refuse: Refuse) -> None:
    s = on("row")
    refuse(
        "sample_categorical", "decision", "1 integers >= 0 are needed, got [1, 2]", s, lambda: s.sample_categorical([1, 2], decision=[1, 2])
    )


def test_sample_categorical_decision_3(on: On, refuse: Refuse) -> None:
    s = on("row")
    message = "a decision is at most 2147483647, like sizes of programs, got [2147483648]"
    refuse("sample_categorical", "decision", message, s, lambda: s.sample_categorical([1, 2], decision=[2**31]))
    (i,) = loops(s, "C")
    message = "a decision is at most 2147483647, like sizes of programs, got [1099511627776]"
    refuse("sample_tile", "decision", message, s, lambda: s.sample_tile(i, 2, waste=1e30, decision=[2**40]))


def test_sample_categorical_decision_2(on: On, refuse: Refuse) -> None:
    s = on("row")
    refuse(
        "sample_categorical", "decision", "1 integers >= 0 are needed, got [1.0]", s, lambda: s.sample_categorical([1, 2], decision=[1.0])
    )  # type: ignore[list-item]


def test_sample_tile_parts(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse("sample_tile", "parts", "a tiling has 2 to 64 loops, got 1", s, lambda: s.sample_tile(i, 1))


def test_sample_tile_parts_2(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse("sample_tile", "parts", "a tiling into 3 loops needs 2 domains, got 1", s, lambda: s.sample_tile(i, 3, domains=[(1, 2)]))


def test_sample_tile_waste(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse("sample_tile", "waste", "the tiles of l0 exceed its extent too far", s, lambda: s.sample_tile(i, 2, decision=[15], waste=0.1))


def test_sample_tile_admissible(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse(
        "sample_tile",
        "admissible",
        "no admissible values were found in 1000 draws from [[100, 200]]",
        s,
        lambda: s.sample_tile(i, 2, domains=[(100, 200)]),
    )


def test_sample_tile_decision(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse("sample_tile", "decision", "a tile has at least one iteration", s, lambda: s.sample_tile(i, 3, decision=[2, 0]))


def test_sample_tile_decision_2(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse("sample_tile", "decision", "2 integers >= 0 are needed, got [2]", s, lambda: s.sample_tile(i, 3, decision=[2]))


def test_sample_perfect_tile_parts(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse("sample_perfect_tile", "parts", "a tiling has 2 to 64 loops, got 1", s, lambda: s.sample_perfect_tile(i, 1))


def test_sample_perfect_tile_divides(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse(
        "sample_perfect_tile",
        "divides",
        "the tiles of l0 do not divide its extent 16",
        s,
        lambda: s.sample_perfect_tile(i, 3, decision=[3, 5]),
    )


def test_sample_perfect_tile_admissible(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse("sample_perfect_tile", "admissible", "no admissible values were found in 1000 draws", s, lambda: s.sample_perfect_tile(i, 60))


def test_sample_perfect_tile_decision(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    refuse("sample_perfect_tile", "decision", "a tile has at least one iteration", s, lambda: s.sample_perfect_tile(i, 2, decision=[0]))


def test_loop_partition_serial(on: On, refuse: Refuse) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    s.parallel(i)
    refuse("loop_partition", "serial", "loop i is parallel or annotated; partition before", s, lambda: s.loop_partition(i, [4]))


@pytest.mark.parametrize("cuts", [[0], [16], [4, 4], [5, 3], [-1], [3, 17]])
def test_loop_partition_cuts(on: On, refuse: Refuse, cuts: list[int]) -> None:
    s = on("row")
    (i,) = loops(s, "C")
    what = "loop i would have an empty part: cuts are ascending, from 1 to its extent 16 - 1"
    refuse("loop_partition", "cuts", what, s, lambda: s.loop_partition(i, cuts))


def test_loop_partition_cuts_2(on: On, refuse: Refuse) -> None:
    s = on("triangle")
    _, j = loops(s, "C")
    refuse("loop_partition", "cuts", "there is no cut", s, lambda: s.loop_partition(j, []))
