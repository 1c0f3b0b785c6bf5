"""Propose candidates that were fast for similar workloads: the warm start of a search, from its other tasks and from the log.

Sketches of similar functions have equal names and parameters, and good tile sizes differ little from shape to shape.  A fast row of another
workload becomes the nearest admissible row of the same sketch here.  Eight such candidates of ResNet-18's convolutions came within a few
per cent of what a hundred trials found (docs/design/004-research.md).
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass

import numpy as np

from tunesmith.ir.analysis.least_time import Work
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.record import Record, target_key
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.task import Task
from tunesmith.support.errors import TunesmithError
from tunesmith.support.seeds import stream

NEAREST = 4
"""Number of workloads that candidates are taken from."""
ELITES = 16
"""Number of the fastest candidates of each of them."""
ENOUGH = 8
"""Minimum number of records of a workload: the best of fewer are not fast, but the first."""
MOST_SOURCES = 64
"""Number of workloads that are compared, those with the latest records: a log may have thousands."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A measured workload: its fastest records with sketches of the task, and its distance."""

    elites: list[Record]
    share: float
    """Share of its fastest records whose sketches the task has, too."""
    distance: float

    @property
    def order(self) -> tuple[float, float]:
        """Sort key: workloads with the same sketches first, of them the one of the most similar size."""
        return -round(self.share, 1), self.distance


class Transfer:
    """Candidates of similar workloads.

    Args:
        database: records of earlier runs and of this one, which adds to it.
        functions: functions by digest, of which the database may have no script yet.
    """

    def __init__(self, database: Database, functions: Mapping[str, PrimFunc]) -> None:
        self._database = database
        self._work: dict[str, Work | None] = {digest: Work.of(func) for digest, func in functions.items()}

    def candidates(self, task: Task, n: int, seen: Container[Candidate]) -> list[Candidate]:
        """At most n candidates of the task's space, each the nearest to a fast one of a similar workload; nearest workloads by turns.

        Args:
            task: the task to search for.
            n: number of candidates.
            seen: candidates that are left out.
        """
        sources = sorted(self._sources(task), key=lambda s: s.order)[:NEAREST]
        found: list[Candidate] = []
        for place in range(ELITES):
            for source in sources:
                if len(found) >= n:
                    return found
                if place < len(source.elites):
                    made = self._mapped(task, source.elites[place])
                    if made not in seen and made not in found:
                        found.append(made)
        return found

    def _sources(self, task: Task) -> list[_Source]:
        """The measured workloads on the task's target that have its sketches."""
        target = task.target.to_json()
        key = target_key(target)
        sketches = {(s.name, len(s.params)) for s in task.space.sketches}
        digests = [d for d, t in self._database.tasks() if d != task.digest and target_key(t) == key]
        out = []
        for digest in digests[-MOST_SOURCES:]:
            top = self._database.top(digest, target, ELITES, unverified=True)
            elites = [r for r in top if (r.sketch, len(r.row)) in sketches]
            if len(top) >= ENOUGH and elites:
                out.append(_Source(elites, len(elites) / len(top), _distance(self._work_of(task.digest, task.func), self._work_of(digest))))
        return out

    def _work_of(self, digest: str, func: PrimFunc | None = None) -> Work | None:
        """The work of a function, from its script in the database if it is not given; None if it is not known."""
        if digest not in self._work:
            line = self._database.workloads().get(digest)
            try:
                found = func if func is not None else None if line is None else parse(line.script)
            except (TunesmithError, RecursionError):  # a line of a log is any text
                found = None
            self._work[digest] = Work.of(found) if isinstance(found, PrimFunc) else None
        return self._work[digest]

    @staticmethod
    def _mapped(task: Task, record: Record) -> Candidate:
        """The candidate of the task that is nearest to a record of another workload."""
        k, sketch = next((k, s) for k, s in enumerate(task.space.sketches) if (s.name, len(s.params)) == (record.sketch, len(record.row)))
        rng = stream(0, "transfer", task.digest, record.workload)
        row = sketch.space.nearest(np.array([record.row], np.int64), rng)[0]
        return Candidate(k, tuple(row.tolist()))


def _distance(a: Work | None, b: Work | None) -> float:
    """The distance of two functions: the sum of the doublings of their operations and of their bytes; infinite if one is unknown."""
    if a is None or b is None:
        return math.inf
    pairs = [(a.operations or 0, b.operations or 0), (a.weight_bytes, b.weight_bytes), (a.other_bytes, b.other_bytes)]
    return sum(abs(math.log2((x + 1) / (y + 1))) for x, y in pairs)
