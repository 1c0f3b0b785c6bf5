"""Which of the ranked candidates make a batch: good ones that are not all near-copies of each other.

A model that is wrong about one tile is wrong about all its copies.  Candidates of one tile that differ in one outer size alone run
nearly equally fast, so that a batch of them teaches what one of them would have.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import numpy as np

from tunesmith.search.samplers.sampler import Candidate

SHARE = 0.75
"""Of a batch, the part in which no candidate is a near-copy of another."""
DIFFER = 2
"""Columns in which rows of one sketch differ at least that are no near-copies, or all if there are fewer.

Replays of six pools that earlier searches left (four seeds, five batches of 16) ended at 99.8 and 99.9 % of the best speed so (mean of two
and of four pools), at 99.7 and 99.6 % with a share of 0, and at 99.5 and 99.8 % when more than a third of the columns had to differ.
"""


def pick(ranked: Sequence[Candidate], n: int, seen: Container[Candidate] = (), share: float = SHARE) -> list[Candidate]:
    """At most n of the ranked candidates that were not seen: first the best that are no near-copies, then the best of the others.

    Args:
        ranked: best first.
        n: how many.
        seen: not to be taken.
        share: of the batch, for candidates that are no near-copies of others in it: rows of one sketch that differ in one column.
    """
    out: list[Candidate] = []
    known: set[Candidate] = set()
    taken: dict[int, list[np.ndarray]] = {}
    for c in ranked:
        if len(out) >= round(n * share):
            break
        row, mine = np.array(c.row, np.int64), taken.setdefault(c.sketch, [])
        if c in seen or c in known or (mine and ((np.stack(mine) != row).sum(axis=1) < min(len(row), DIFFER)).any()):
            continue
        mine.append(row)
        known.add(c)
        out.append(c)
    for c in ranked:
        if len(out) >= n:
            break
        if c not in seen and c not in known:
            known.add(c)
            out.append(c)
    return out


def by_turns(ranked: Iterable[Candidate], n: int) -> list[Candidate]:
    """For a batch of n before there is data: the best half of it, mixed with the best of each sketch in turn, so that each is tried.

    Args:
        ranked: best first.
        n: of the batch.
    Returns:
        All candidates, in a new order; the same one may come twice.
    """
    every = list(ranked)
    queues: dict[int, list[Candidate]] = {}
    for c in every:
        queues.setdefault(c.sketch, []).append(c)
    half = every[: n // 2]
    turn = [q[i] for i in range(max(map(len, queues.values()), default=0)) for q in queues.values() if i < len(q)]
    return [c for pair in zip(half, turn, strict=False) for c in pair] + turn
