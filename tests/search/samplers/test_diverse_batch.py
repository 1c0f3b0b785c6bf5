"""Test batches: no near-duplicates in the larger part, no repeats, and every sketch tried first."""

from __future__ import annotations

from tunesmith.search.samplers.diverse_batch import by_turns, pick
from tunesmith.search.samplers.sampler import Candidate


def copies(n: int, columns: int = 6, sketch: int = 0) -> list[Candidate]:
    """Rows that differ only in their first column."""
    return [Candidate(sketch, (i, *[8] * (columns - 1))) for i in range(n)]


def test_a_batch_of_one_tile_is_diversified() -> None:
    """Forty rows of one tile are ranked first, followed by ten others, two of which are near-duplicates."""
    others = [Candidate(0, tuple(range(10 * i, 10 * i + 6))) for i in range(1, 10)]
    copy = Candidate(0, (999, *others[0].row[1:]))
    ranked = [*copies(40), others[0], copy, *others[1:]]
    batch = pick(ranked, 12)
    assert batch[:9] == [ranked[0], *others[:8]]  # three quarters: the best of the tile, then the others
    assert batch[9:] == ranked[1:4]  # then the best remaining ones
    assert pick(ranked, 12, share=0.0) == ranked[:12]


def test_rows_of_different_sketches_are_not_duplicates() -> None:
    ranked = [Candidate(k, (1, 2, 3)) for k in range(8)]
    assert pick(ranked, 8) == ranked


def test_a_batch_is_filled_if_all_are_near_duplicates() -> None:
    ranked = copies(20)
    assert pick(ranked, 8) == ranked[:8]


def test_seen_and_repeated_candidates_are_skipped() -> None:
    ranked = copies(10)
    assert pick([*ranked, *ranked], 20, seen=set(ranked[:3])) == ranked[3:]
    assert pick(ranked, 0) == [] and pick([], 5) == []
    assert pick([Candidate(0, ())] * 3, 4) == [Candidate(0, ())]


def test_rows_of_one_column_need_not_differ_in_two() -> None:
    ranked = [Candidate(0, (i,)) for i in range(8)]
    assert pick(ranked, 8) == ranked


def test_by_turns_tries_each_sketch() -> None:
    ranked = [Candidate(0, (i,)) for i in range(10)] + [Candidate(1, (0,)), Candidate(2, (0,))]
    order = by_turns(ranked, 4)
    assert order[:2] == [ranked[0], ranked[0]] and set(order) == set(ranked)
    assert {c.sketch for c in pick(order, 4, share=0.0)} == {0, 1, 2}
    assert by_turns([], 4) == []
