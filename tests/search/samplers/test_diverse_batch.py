"""Batches: near-copies stay out of the larger part, nothing comes twice, and each structure is tried first."""

from __future__ import annotations

from tunesmith.search.samplers.diverse_batch import by_turns, pick
from tunesmith.search.samplers.sampler import Candidate


def copies(n: int, columns: int = 6, sketch: int = 0) -> list[Candidate]:
    """Rows that differ in their first column alone."""
    return [Candidate(sketch, (i, *[8] * (columns - 1))) for i in range(n)]


def test_a_whole_batch_of_one_tile_is_broken_up() -> None:
    """Forty rows of one tile are ranked first, and ten others after them, of which two are copies of each other."""
    others = [Candidate(0, tuple(range(10 * i, 10 * i + 6))) for i in range(1, 10)]
    copy = Candidate(0, (999, *others[0].row[1:]))
    ranked = [*copies(40), others[0], copy, *others[1:]]
    batch = pick(ranked, 12)
    assert batch[:9] == [ranked[0], *others[:8]]  # three quarters: the best of the tile, then others
    assert batch[9:] == ranked[1:4]  # then the best of what is left
    assert pick(ranked, 12, share=0.0) == ranked[:12]


def test_rows_of_different_sketches_are_no_copies() -> None:
    ranked = [Candidate(k, (1, 2, 3)) for k in range(8)]
    assert pick(ranked, 8) == ranked


def test_a_batch_is_filled_when_all_are_copies() -> None:
    ranked = copies(20)
    assert pick(ranked, 8) == ranked[:8]


def test_what_was_seen_and_what_comes_twice_is_left_out() -> None:
    ranked = copies(10)
    assert pick([*ranked, *ranked], 20, seen=set(ranked[:3])) == ranked[3:]
    assert pick(ranked, 0) == [] and pick([], 5) == []
    assert pick([Candidate(0, ())] * 3, 4) == [Candidate(0, ())]


def test_one_column_is_enough_when_there_is_no_other() -> None:
    ranked = [Candidate(0, (i,)) for i in range(8)]
    assert pick(ranked, 8) == ranked


def test_by_turns_tries_each_sketch() -> None:
    ranked = [Candidate(0, (i,)) for i in range(10)] + [Candidate(1, (0,)), Candidate(2, (0,))]
    order = by_turns(ranked, 4)
    assert order[:2] == [ranked[0], ranked[0]] and set(order) == set(ranked)
    assert {c.sketch for c in pick(order, 4, share=0.0)} == {0, 1, 2}
    assert by_turns([], 4) == []
