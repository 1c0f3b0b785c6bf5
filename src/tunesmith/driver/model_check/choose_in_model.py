"""Choose among the fastest schedules of each function the one whose calls are fastest in the model.

A function that is measured alone finds its inputs in the caches of the core that reads them again.  In a model another function wrote them,
maybe on another core, so that schedules of equal speed alone differ by tens of per cent.  The model is compiled with the fastest schedules
of all functions, with the second fastest, and so on; the calls of each function are timed in all of these models.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tunesmith.driver.compile_model import CompiledModel
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.record import Record
from tunesmith.measure.records.status import IN_MODEL

VARIANTS = 4
"""Schedules of each function that are tried."""
TOLERATED = 1.2
"""A schedule is tried if its time alone is at most this multiple of the fastest one's."""
FASTER = 0.97
"""Another schedule than the fastest one alone is chosen if its calls take at most this share of the time."""
SHARE = 0.2
"""Seconds for compiling and timing the variants of a model, as a share of those of its search."""
_ROUNDS = 15
_REPEATS = 5

Ranked = Mapping[str, Sequence[Record]]
"""Digest of a function -> its best verified records, the one in use first."""


def alternatives(model: CompiledModel, database: Database, target: Target) -> Ranked:
    """The records to try for each function of a model that has one.

    Args:
        model: the model, compiled with the database.
        database: the records.
        target: their target.
    """
    found: dict[str, list[Record]] = {}
    for c in model.coverage:
        if c.status == "used" and c.digest not in found:
            top = database.top(c.digest, target.to_json(), VARIANTS)
            used = [r for r in top if r.identity == c.record]
            if used:  # not the fallback for a limit of rounding errors
                limit = TOLERATED * min(r.seconds for r in top)
                found[c.digest] = used + [r for r in top if r.identity != c.record and r.seconds <= limit]
    return found


def fastest_calls(
    base: CompiledModel, make: Callable[[Ranked], CompiledModel], ranked: Ranked, inputs: Sequence[np.ndarray], limit_s: float
) -> dict[str, int]:
    """The position in `ranked` of the record whose calls are fastest, for functions where it is not the first.

    The variants are compiled one after the other, because models may be large, and each is timed in turn with `base`.

    Args:
        base: the model with the first record of each function.
        make: compiles the model with the first of these records.
        ranked: the records.
        inputs: inputs of the model.
        limit_s: seconds for all variants; none begins that would not end in time if it took as long as the last one.
    """
    begun = time.perf_counter()
    last = 0.0
    best: dict[str, tuple[float, int]] = {}
    for n in range(1, max(map(len, ranked.values()), default=0)):
        start = time.perf_counter()
        if start + last > begun + limit_s:
            break
        variant = make({digest: [r[n] if n < len(r) else r[0]] for digest, r in ranked.items()})
        times: tuple[dict[str, list[float]], dict[str, list[float]]] = ({}, {})
        for _ in range(_ROUNDS):
            for model, seconds in zip((base, variant), times, strict=True):
                for digest, taken in _by_digest(model, inputs).items():
                    seconds.setdefault(digest, []).append(taken)
        for digest, records in ranked.items():
            if n < len(records) and all(digest in t for t in times):
                first, other = [statistics.median(t[digest]) for t in times]
                if first > 0:  # 0: not called in a run with these inputs
                    best[digest] = min(best.get(digest, (FASTER, 0)), (other / first, n))
        last = time.perf_counter() - start
    return {digest: n for digest, (_, n) in best.items() if n}


def _by_digest(model: CompiledModel, inputs: Sequence[np.ndarray]) -> dict[str, float]:
    """The seconds of all calls of each function that has a record, in one run."""
    digests = {c.function: c.digest for c in model.coverage if c.status == "used"}
    out: dict[str, float] = {}
    for name, taken in seconds_by_function(model, inputs, _REPEATS).items():
        if name in digests:
            out[digests[name]] = out.get(digests[name], 0.0) + taken
    return out


def selection(ranked: Ranked, database: Database) -> Database:
    """A database of the first record of each function."""
    return Database([records[0] for records in ranked.values()], database.workloads().values())


def marked(record: Record) -> Record:
    """A copy of a measurement that says that the schedule is the fastest in a model; see `measure.records.status`."""
    return dataclasses.replace(record, extra={IN_MODEL: True}, timestamp=time.time())


def seconds_by_function(model: CompiledModel, inputs: Sequence[np.ndarray], repeats: int) -> dict[str, float]:
    """The seconds of all calls of each function in one run."""
    out: dict[str, float] = {}
    for row in model.profile(*inputs, repeats=repeats):
        name = row.function.removesuffix("__packed")
        out[name] = out.get(name, 0.0) + row.microseconds * 1e-6
    return out
