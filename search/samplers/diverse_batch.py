"""Select a diverse batch from ranked candidates by skipping near-duplicates.

The prediction error of a tile applies to all its near-duplicates.  Candidates with the same tile that differ in one outer size run at
nearly equal speed, so a batch of them carries the information of a single one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import numpy as np

from tunesmith.search.samplers.sampler import Candidate

SHARE = 0.75
"""Share of a batch without near-duplicates."""
DIFFER = 2
"""Rows of one sketch that differ in fewer columns are near-duplicates; narrower rows must differ in all columns.

Replays on six tabular benchmarks from earlier searches (four seeds, five batches of 16) ended at 99.8 and 99.9 % of the best speed (means
over two and over four of them), at 99.7 and 99.6 % with a share of 0, and at 99.5 and 99.8 % if more than a third of the columns had to
differ.
"""


def pick(ranked: Sequence[Candidate], n: int, seen: Container[Candidate] = (), share: float = SHARE) -> list[Candidate]:
    """At most n unseen candidates: first the best without near-duplicates, then the best of the remaining ones.

    Args:
        ranked: candidates, best first.
        n: maximum number of candidates.
        seen: candidates to skip.
        share: share of the batch without near-duplicates, see `DIFFER`.
    """
    out: list[Candidate] = []
    known: set[Candidate] = set()
    taken: dict[int, list[np.ndarray]] = {}
    for c in ranked:
        if len(out) >= round(n * share):
            break
        row, same_sketch = np.array(c.row, np.int64), taken.setdefault(c.sketch, [])
        if c in seen or c in known or (same_sketch and ((np.stack(same_sketch) != row).sum(axis=1) < min(len(row), DIFFER)).any()):
            continue
        same_sketch.append(row)
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
    """Order candidates for the first batch: the best n / 2 alternate with the best of each sketch in turn, so that every sketch is tried.

    Args:
        ranked: candidates, best first.
        n: size of the batch.
    Returns:
        All candidates in the new order; a candidate may appear twice.
    """
    every = list(ranked)
    queues: dict[int, list[Candidate]] = {}
    for c in every:
        queues.setdefault(c.sketch, []).append(c)
    half = every[: n // 2]
    turn = [q[i] for i in range(max(map(len, queues.values()), default=0)) for q in queues.values() if i < len(q)]
    return [c for pair in zip(half, turn, strict=False) for c in pair] + turn
