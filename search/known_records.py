"""Select the records of a log that measured candidates of the current search space.

The name of a sketch is not sufficient: rules change, and a log may come from another version.  A record matches a candidate only if its
trace has the steps of the sketch with the decisions of its row, and the row is admissible.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tunesmith.measure.records.record import Record, target_key
from tunesmith.measure.records.trace_template import template
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.task import Task


def known_records(task: Task, records: Iterable[Record]) -> list[tuple[Candidate, Record]]:
    """The records of candidates in the task's space on its target, in the order given, each with its candidate.

    The row of a failed candidate may not fit the steps, so failed records are compared by their steps alone.
    """
    sketches = {s.name: (k, len(s.params), template(s.trace.to_json())) for k, s in enumerate(task.space.sketches)}
    key = target_key(task.target.to_json())
    found: list[tuple[Candidate, Record]] = []
    for r in records:
        k, width, steps = sketches.get(r.sketch, (-1, 0, []))
        if k < 0 or r.workload != task.digest or len(r.row) != width or target_key(r.target) != key:
            continue
        if template(r.trace) == steps and (r.error is not None or decisions(r) == r.row):
            found.append((Candidate(k, r.row), r))
    admissible = _admissible(task, {c for c, _ in found})
    return [(c, r) for c, r in found if c in admissible]


def decisions(record: Record) -> tuple[object, ...]:
    """The decisions of all steps of the trace, concatenated; malformed steps are skipped."""
    out: list[object] = []
    for step in record.trace:
        if isinstance(step, list) and len(step) == 4 and isinstance(step[3], list):
            out += step[3]
    return tuple(out)


def _admissible(task: Task, candidates: set[Candidate]) -> set[Candidate]:
    rows: dict[int, list[Candidate]] = {}
    for c in candidates:
        rows.setdefault(c.sketch, []).append(c)
    out: set[Candidate] = set()
    for k, same_sketch in rows.items():
        table = np.array([c.row for c in same_sketch], np.int64).reshape(len(same_sketch), -1)
        fine = task.space.sketches[k].space.admissible(table).tolist()
        out |= {c for c, ok in zip(same_sketch, fine, strict=True) if ok}
    return out
