"""What a sampler proposes, held against its contract before anything is measured: in the arena and on a machine alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.schedule.integers import as_integer
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.space.sketch import Sketch
from tunesmith.support.errors import UserError

METHODS = "sample, mutate, crossover, nearest, admissible, size, params"
"""What a sampler may use of a sketch's `space`: with these it searches a real space and a pool alike."""
MAKER = "tunesmith.search.samplers.history.candidate_of"
"""What makes a candidate of a row."""


def proposed(name: str, given: object, wanted: int) -> list[Candidate]:
    """What `ask` gave, if it is a list of candidates.

    Args:
        name: what messages call the sampler.
        given: by `ask`.
        wanted: what it was asked for.
    Raises:
        UserError: it is something else.
    """
    needed = f"Candidate(sketch, row), sketch a position in task.space.sketches and row a tuple of integers ({MAKER} makes one of an array)"
    if not isinstance(given, (list, tuple)):
        what = f"an array of shape {list(given.shape)}" if isinstance(given, np.ndarray) else f"a value of type {type(given).__name__}"
        raise UserError(f"{name}.ask({wanted}) gave {what}, where a list is needed of at most {wanted} {needed}")
    for c in given:
        if not isinstance(c, Candidate):
            raise UserError(f"{name} proposed {c!r:.200}, which is no Candidate: {name}.ask gives a list of {needed}")
        if as_integer(c.sketch) is None or not isinstance(c.row, tuple) or any(as_integer(x) is None for x in c.row):
            raise UserError(f"{name} proposed {c!r:.200}, which is not of the form {needed}")
    return [Candidate(int(c.sketch), tuple([int(x) for x in c.row])) for c in given]


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
