"""Check a sampler's proposals against its contract before anything is measured, in the arena and in the tuner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.schedule.integers import as_integer
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.space.sketch import Sketch
from tunesmith.support.errors import UserError

METHODS = "sample, mutate, crossover, nearest, admissible, size, params"
"""The members of a sketch's `space` that samplers may use: real spaces and tabular benchmarks both have them."""
MAKER = "tunesmith.search.samplers.history.candidate_of"
"""The function that makes a candidate from a row of an array."""


def proposed(name: str, given: object, wanted: int) -> list[Candidate]:
    """The result of `ask` as a list of candidates with Python integers.

    Args:
        name: display name of the sampler, for messages.
        given: result of `ask`.
        wanted: number of candidates requested.
    Raises:
        UserError: the result is not a list of candidates.
    """
    needed = f"Candidate(sketch, row), sketch a position in task.space.sketches and row a tuple of integers ({MAKER} converts an array)"
    if not isinstance(given, (list, tuple)):
        what = f"an array of shape {list(given.shape)}" if isinstance(given, np.ndarray) else f"a value of type {type(given).__name__}"
        raise UserError(f"{name}.ask({wanted}) returned {what}; it must return a list of at most {wanted} {needed}")
    for c in given:
        if not isinstance(c, Candidate):
            raise UserError(f"{name} proposed {c!r:.200}, which is not a Candidate: {name}.ask must return a list of {needed}")
        if as_integer(c.sketch) is None or not isinstance(c.row, tuple) or any(as_integer(x) is None for x in c.row):
            raise UserError(f"{name} proposed {c!r:.200}, which is not of the form {needed}")
    return [Candidate(int(c.sketch), tuple([int(x) for x in c.row])) for c in given]


def check_new(name: str, candidates: Sequence[Candidate], wanted: int, seen: set[Candidate]) -> None:
    """Check that at most `wanted` candidates were proposed, none of them before, and add them to `seen`.

    Args:
        name: display name of the sampler, for messages.
        candidates: the proposals.
        wanted: number of candidates requested.
        seen: candidates proposed or reported before; the candidates are added.
    Raises:
        UserError: there are too many candidates, or one was seen before.
    """
    if len(candidates) > wanted:
        raise UserError(f"{name}.ask({wanted}) proposed {len(candidates)} candidates: at most {wanted} are allowed")
    for c in candidates:
        if c in seen:
            raise UserError(f"{name} proposed {c} twice: each candidate is measured once")
        seen.add(c)


def check_admissible(name: str, candidates: Sequence[Candidate], sketches: Sequence[Sketch]) -> None:
    """Check that the sketches of all candidates exist and that their rows are admissible.

    Raises:
        UserError: a sketch does not exist, or a row is not admissible.
    """
    rows: dict[int, list[tuple[int, ...]]] = {}
    for c in candidates:
        if not 0 <= c.sketch < len(sketches):
            raise UserError(f"{name} proposed a candidate of sketch {c.sketch}; the space has {len(sketches)} sketches")
        width = len(sketches[c.sketch].params)
        if len(c.row) != width:
            raise UserError(f"{name} proposed the row {list(c.row)}; rows of the sketch {sketches[c.sketch].name!r} have {width} values")
        rows.setdefault(c.sketch, []).append(c.row)
    for k, same_sketch in rows.items():
        table = np.array(same_sketch, np.int64).reshape(len(same_sketch), -1)
        for row, fine in zip(same_sketch, sketches[k].space.admissible(table).tolist(), strict=True):
            if not fine:
                raise UserError(
                    f"{name} proposed the row {list(row)} of the sketch {sketches[k].name!r}, which is not admissible. Samplers obtain "
                    f"candidates from the methods of the sketches' space ({METHODS})"
                )


def asked_once(batch: int, trials: int) -> str:
    """The remark for a batch that is as large as the budget."""
    return f"batch {batch} >= trials {trials}: a sampler is asked once and learns nothing. Take a smaller batch, or more trials"
