"""The journal of an arena: a line of JSON for each replay, so that what was done once is never done again.

A line is keyed by everything that a replay depends on: the contents of the pool, the texts of sampler and model and the code behind
them, the seed, the budget and the batch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from tunesmith.experiments.arena.contestants import Method
from tunesmith.experiments.arena.pool import Pool
from tunesmith.support import json_lines

VERSION = 1
"""Lines of another version are not looked at."""

_KEY = ("pool", "sampler", "model", "code", "seed", "trials", "batch")


class ReplayJournal:
    """The replays that a file remembers.

    Args:
        path: the file, made by the first `add`; None remembers nothing.
        pools, entrants, trials, batch: what is being compared.
    Raises:
        RecordError: the file is there and cannot be read.  Lines that are damaged or of something else are passed over.
    """

    def __init__(
        self, path: str | PathLike[str] | None, pools: Sequence[Pool], entrants: Sequence[Method], trials: int, batch: int
    ) -> None:
        self._path = None if path is None else Path(path)
        self._pools, self._entrants, self._trials, self._batch = pools, entrants, trials, batch
        self._known: dict[str, tuple[int, ...]] = {}
        self._took: dict[str, float] = {}
        if self._path is not None and self._path.exists():
            for _, line in json_lines.read(self._path):
                self._take(line)

    def find(self, pool: int, entrant: int, seed: int) -> tuple[int, ...] | None:
        """What was asked in that replay; None if it is not in the journal."""
        found = self._known.get(_text(self._key(pool, entrant, seed)))
        if found is None or any(not 0 <= i < len(self._pools[pool]) for i in found):
            return None
        return found

    def took(self, pool: int, entrant: int, seed: int) -> float | None:
        """Seconds that the replay needed; None if the journal does not say."""
        return self._took.get(_text(self._key(pool, entrant, seed)))

    def add(self, pool: int, entrant: int, seed: int, asked: tuple[int, ...], seconds: float) -> None:
        """Write a replay down, and how long it took.  RecordError if the file cannot be written."""
        if self._path is not None:
            facts = {"asked": list(asked), "seconds": round(seconds, 4)}
            line = {"v": VERSION, "kind": "replay", **self._key(pool, entrant, seed), **facts}
            json_lines.append(self._path, [line])

    def _key(self, pool: int, entrant: int, seed: int) -> dict[str, object]:
        e = self._entrants[entrant]
        values = (self._pools[pool].digest, e.sampler, e.model, e.code, seed, self._trials, self._batch)
        return dict(zip(_KEY, values, strict=True))

    def _take(self, line: object) -> None:
        if not isinstance(line, dict) or line.get("v") != VERSION or line.get("kind") != "replay" or any(k not in line for k in _KEY):
            return
        asked = line.get("asked")
        if isinstance(asked, list) and all(type(i) is int for i in asked):
            key = _text({k: line[k] for k in _KEY})
            self._known[key] = tuple(asked)
            seconds = line.get("seconds")
            if isinstance(seconds, float) and math.isfinite(seconds):
                self._took[key] = seconds


def _text(key: dict[str, object]) -> str:
    return json.dumps(key, sort_keys=True)
