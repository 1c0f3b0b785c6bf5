"""What a sampler proposes, held against its contract before anything is measured: in the arena and on a machine alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.search.sampler import Candidate
from tunesmith.search.sketch import Sketch
from tunesmith.support.errors import UserError

METHODS = "sample, mutate, crossover, nearest, admissible, size, params"
"""What a sampler may use of a sketch's `space`: with these it searches a real space and a pool alike."""


def check_new(name: str, candidates: Sequence[Candidate], wanted: int, seen: set[Candidate]) -> None:
    """Not more than wanted, and none a second time.

    Args:
        name: what messages call the sampler.
        candidates: what it proposed.
        wanted: what it was asked for.
        seen: what was proposed or told before; the candidates are added.
    Raises:
        UserError: the contract is broken.
    """
    if len(candidates) > wanted:
        raise UserError(f"{name}.ask({wanted}) proposed {len(candidates)} candidates: at most {wanted} are wanted")
    for c in candidates:
        if c in seen:
            raise UserError(f"{name} proposed {c} twice: each candidate is measured once")
        seen.add(c)


def check_admissible(name: str, candidates: Sequence[Candidate], sketches: Sequence[Sketch]) -> None:
    """All candidates exist: their sketches are there, and their rows are admissible.

    Raises:
        UserError: one is not.
    """
    rows: dict[int, list[tuple[int, ...]]] = {}
    for c in candidates:
        if not isinstance(c, Candidate):
            raise UserError(f"{name} proposed {c!r}, which is no Candidate")
        if not 0 <= c.sketch < len(sketches):
            raise UserError(f"{name} proposed a candidate of sketch {c.sketch}; the space has {len(sketches)} sketches")
        width = len(sketches[c.sketch].params)
        if len(c.row) != width:
            raise UserError(f"{name} proposed the row {list(c.row)}; rows of the sketch {sketches[c.sketch].name!r} have {width} values")
        rows.setdefault(c.sketch, []).append(c.row)
    for k, mine in rows.items():
        table = np.array(mine, np.int64).reshape(len(mine), -1)
        for row, fine in zip(mine, sketches[k].space.admissible(table).tolist(), strict=True):
            if not fine:
                raise UserError(
                    f"{name} proposed the row {list(row)} of the sketch {sketches[k].name!r}, which is not admissible. A sampler reaches "
                    f"candidates through the methods of its sketches' space ({METHODS})"
                )


def asked_once(batch: int, trials: int) -> str:
    """What to say where a batch is as large as the budget."""
    return f"batch {batch} >= trials {trials}: a sampler is asked once and learns nothing. Take a smaller batch, or more trials"
