"""Record the replays of an arena as lines of JSON, so that a later run does not repeat them.

The key of a line contains all inputs of a replay: the contents of the pool, the texts of sampler and model and their code, the seed,
the budget and the batch.  A line also has the digests of the user's files, which say what changed if the key of the code differs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from tunesmith.experiments.arena.methods import Method
from tunesmith.experiments.arena.pool import Pool
from tunesmith.support import json_lines
from tunesmith.support.code_digest import changed_files

VERSION = 1
"""Lines of another version are ignored."""

_KEY = ("pool", "sampler", "model", "code", "seed", "trials", "batch")


class ReplayJournal:
    """The replays recorded in a file.

    Args:
        path: the file, created by the first `add`; None records nothing.
        pools, methods, trials, batch: pools, methods and settings of the comparison.
    Raises:
        RecordError: the file exists and cannot be read.  Damaged and unrelated lines are skipped.
    """

    def __init__(self, path: str | PathLike[str] | None, pools: Sequence[Pool], methods: Sequence[Method], trials: int, batch: int) -> None:
        self._path = None if path is None else Path(path)
        self._pools, self._methods, self._trials, self._batch = pools, methods, trials, batch
        self._tried: dict[str, tuple[int, ...]] = {}
        self._seconds: dict[str, float] = {}
        self._files: dict[str, dict[str, object]] = {}
        if self._path is not None and self._path.exists():
            for _, line in json_lines.read(self._path):
                self._take(line)

    def find(self, pool: int, method: int, seed: int) -> tuple[int, ...] | None:
        """The candidates tried in a replay; None if it is not in the journal."""
        found = self._tried.get(_text(self._key(pool, method, seed)))
        if found is None or any(not 0 <= i < len(self._pools[pool]) for i in found):
            return None
        return found

    def seconds(self, pool: int, method: int, seed: int) -> float | None:
        """Seconds that a replay took; None if not recorded."""
        return self._seconds.get(_text(self._key(pool, method, seed)))

    def changes(self) -> list[str]:
        """A note for each method whose replays in the journal are all of other code: which of its files changed."""
        keys, out = [json.loads(key) for key in self._tried], []
        for e in self._methods:
            recorded = [key for key in keys if (key["sampler"], key["model"]) == (e.sampler, e.model)]
            if recorded and all(key["code"] != e.code for key in recorded):
                changed = changed_files(self._files.get(_text(recorded[-1]), {}), e.files)
                what = f"{', '.join(changed)} changed" if changed else "tunesmith, an installed package or an import changed"
                out.append(f"{e.label}: {what} since the replays in the journal, which are not used")
        return out

    def add(self, pool: int, method: int, seed: int, tried: tuple[int, ...], seconds: float) -> None:
        """Append a replay and its seconds.  Raises RecordError if the file cannot be written."""
        if self._path is not None:
            facts = {"asked": list(tried), "seconds": round(seconds, 4), "files": self._methods[method].files}
            line = {"v": VERSION, "kind": "replay", **self._key(pool, method, seed), **facts}
            json_lines.append(self._path, [line])

    def _key(self, pool: int, method: int, seed: int) -> dict[str, object]:
        e = self._methods[method]
        values = (self._pools[pool].digest, e.sampler, e.model, e.code, seed, self._trials, self._batch)
        return dict(zip(_KEY, values, strict=True))

    def _take(self, line: object) -> None:
        if not isinstance(line, dict) or line.get("v") != VERSION or line.get("kind") != "replay" or any(k not in line for k in _KEY):
            return
        tried = line.get("asked")
        if isinstance(tried, list) and all(type(i) is int for i in tried):
            key = _text({k: line[k] for k in _KEY})
            self._tried[key] = tuple(tried)
            files, seconds = line.get("files"), line.get("seconds")
            if isinstance(files, dict):
                self._files[key] = files
            if isinstance(seconds, float) and math.isfinite(seconds):
                self._seconds[key] = seconds


def _text(key: dict[str, object]) -> str:
    return json.dumps(key, sort_keys=True)
