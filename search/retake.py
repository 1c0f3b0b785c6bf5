"""Choose disturbed measurements to take again: those of candidates that may be among the fastest, within a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tunesmith.measure.records.record import Record

RETAKE = "retake"
"""Key in a record's `extra` that marks the second measurement of a candidate whose first one was disturbed."""
LEADING = 8
"""A candidate matters if it may be in the fastest 1 / LEADING of the candidates of its task."""


class Retaking:
    """The times and the run time of the candidates of one task, of which a share may be spent on second measurements.

    Choices depend on records alone.  Only measurements of the last batch are taken again: after an interruption, those before it are not.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._ran = self._retaken = 0.0

    def add(self, record: Record) -> None:
        """Count a measurement."""
        if is_retake(record):
            self._retaken += run_seconds(record)
        else:
            self._ran += run_seconds(record)
        if record.error is None:
            self._seconds[record.schedule] = record.seconds
        else:
            self._seconds.pop(record.schedule, None)

    def choose(self, records: Sequence[Record], share: float) -> list[int]:
        """The positions of the measurements to take again, those of the fastest candidates first.

        Args:
            records: measurements of a batch, all of which were added.
            share: the run time of all second measurements, at most, as a share of that of the others; see `MeasurePolicy.retake`.
        """
        times = sorted(self._seconds.values())
        if not times:
            return []
        limit = times[math.ceil(len(times) / LEADING) - 1]
        fastest = [at_best(r) for r in records]
        noisy = [i for i, r in enumerate(records) if r.error is None and not r.clean and fastest[i] <= limit]
        out: list[int] = []
        left = share * self._ran - self._retaken
        for i in sorted(noisy, key=lambda i: (fastest[i], i)):
            cost = run_seconds(records[i])
            if cost <= left:
                left -= cost
                out.append(i)
        return out


def is_retake(record: Record) -> bool:
    """Whether a record is the second measurement of a disturbed candidate."""
    return record.extra.get(RETAKE) is True


def at_best(record: Record) -> float:
    """A lower bound of the undisturbed time: the measured time without all of the waiting."""
    waited = record.extra.get("waited")
    if not isinstance(waited, (int, float)) or not math.isfinite(waited):
        return record.seconds
    return record.seconds * min(1.0, max(0.0, 1.0 - waited))


def run_seconds(record: Record) -> float:
    """The time for which a candidate ran when it was measured."""
    return float(str(record.extra.get("run_s", 0.0)))
