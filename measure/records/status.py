"""Choose the measurement that counts of a candidate, and the best candidate: the one place where this is defined.

A search measures many candidates once, each for a tenth of a second, and the fastest of many such times is a lucky one.  So the
leaders are measured again, and then the first time counts no more.  Everything here follows from the log alone: from the records
of a candidate in the order of the log.  Clocks are not looked at, because one that is wrong would decide for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tunesmith.measure.records.record import Record

AGREES = 1.05
"""A noisy time agrees with a clean one if it is not longer by more than this factor."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The judgement on one candidate.

    Attributes:
        record: the measurement that counts.
        first: the first valid measurement: the one by which a search found the candidate.
        again: the later measurement that overrules or confirms it; None if there is none.
    """

    record: Record
    first: Record
    again: Record | None

    @property
    def seconds(self) -> float:
        """The time that counts."""
        return self.record.seconds


def standing_of(records: Iterable[Record], least: float = 0.0) -> Standing | None:
    """The judgement on a candidate; None if no measurement of it counts.

    1. An error of any kind ends what was measured up to then: what crashed, timed out or gave a wrong result is not good.
    2. A time that no machine of this kind reaches is no measurement.
    3. Of the others, those with a verified output count before those without.
    4. Of those after the first, clean ones count before noisy ones, and then the latest.  So a clean second measurement is not overruled
       by a noisy third.
    5. That one overrules the first, also if it is noisy and the first is clean; unless it agrees with it, which confirms the first.

    Args:
        records: all of the candidate, in the order of the log.
        least: seconds; see `time_floor`.
    """
    valid: list[Record] = []
    for record in records:
        if record.error is not None:
            valid.clear()
        elif record.seconds >= least:
            valid.append(record)
    if not valid:
        return None
    first = valid[0]
    shown = [r for r in valid if r.verified] or valid
    later = [r for r in shown if r is not first]
    if not later:
        return Standing(first, first, None)
    again = ([r for r in later if r.clean] or later)[-1]
    confirmed = shown[0] is first and first.clean and not again.clean and again.seconds <= AGREES * first.seconds
    return Standing(first if confirmed else again, first, again)


def leader_of(standings: Iterable[Standing]) -> Standing | None:
    """The best of candidates, those with a verified output alone; of equal ones the first.

    It is the fastest of those that were measured again.  A candidate that was measured once is compared with it like with like: it leads
    only if its time is less than both the time that counts and the first time of that one.
    """
    verified = [s for s in standings if s.record.verified]
    sure = min((s for s in verified if s.again is not None), key=lambda s: s.seconds, default=None)
    once = min((s for s in verified if s.again is None), key=lambda s: s.seconds, default=None)
    if sure is None or once is None:
        return sure or once
    return once if once.seconds < min(sure.seconds, sure.first.seconds) else sure
