"""Choose the measurement that counts for each candidate, and the best candidate of a task.

A search measures many candidates once, for 0.1 s each, and the minimum of many such times is biased low.  So the best candidates are
measured again, and the new time replaces the first.  Other load lengthens times, so a noisy time never replaces a clean one.  The choice
depends only on the records in log order.  Timestamps are ignored, because a wrong clock would distort every later choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tunesmith.measure.records.record import Record

IN_MODEL = "in_model"
"""Key in a record's `extra`: a model runs faster with the schedule than with those that are faster alone
(`driver.model_check.choose_in_model`)."""


WITHDRAWN = "slower_in_model"
"""Kind of the error that withdraws a candidate which made a model slower (`driver.model_check.check_model`)."""


def is_measurement(record: Record) -> bool:
    """Whether a record is of a run of its candidate: it is neither the copy that marks a choice in a model nor a withdrawal."""
    return record.extra.get(IN_MODEL) is not True and (record.error is None or record.error.kind != WITHDRAWN)


@dataclass(frozen=True, slots=True)
class Status:
    """Status of one candidate.

    Attributes:
        record: the measurement that counts.
        first: the first valid measurement, by which a search selected the candidate.
        again: the later measurement that replaced it; None if the first counts.
        chosen: the last valid record that says that the candidate was chosen in a model, see `IN_MODEL`.
    """

    record: Record
    first: Record
    again: Record | None
    chosen: Record | None

    @property
    def seconds(self) -> float:
        """The time that counts."""
        return self.record.seconds


def status_of(records: Iterable[Record], least: float = 0.0) -> Status | None:
    """The status of a candidate; None if no measurement of it counts.

    1. An error of any kind (crash, timeout, wrong result) invalidates all earlier measurements.
    2. Times below `least` are invalid.
    3. Verified measurements take precedence over unverified ones.
    4. Clean measurements take precedence over noisy ones, then later over earlier ones.

    Args:
        records: all records of the candidate, in log order.
        least: lower bound of the seconds, see `time_floor`.
    """
    valid: list[Record] = []
    for record in records:
        if record.error is not None:
            valid.clear()
        elif record.seconds >= least:
            valid.append(record)
    if not valid:
        return None
    shown = [r for r in valid if r.verified] or valid
    record = ([r for r in shown if r.clean] or shown)[-1]
    chosen = [r for r in valid if r.extra.get(IN_MODEL) is True]
    return Status(record, valid[0], None if record is valid[0] else record, chosen[-1] if chosen else None)


def leader_of(statuses: Iterable[Status], position: Callable[[Record], int]) -> Status | None:
    """The best verified candidate.

    This is the last one that was chosen in a model, unless a candidate that was measured for the first time since then is faster than all
    that were measured before; without such a choice it is the fastest.  Further measurements of the candidates that were known then change
    nothing: they are of candidates alone, too.

    Args:
        statuses: the candidates in the order of the records that count.
        position: the number of a record in the log.
    """
    verified = [s for s in statuses if s.record.verified]
    choice = max([(position(s.chosen), i) for i, s in enumerate(verified) if s.chosen is not None], default=None)
    if choice is None:
        return _fastest(verified)
    when, at = choice
    least = min(s.seconds for s in verified if position(s.first) < when or s is verified[at])
    return _fastest([s for s in verified if position(s.first) > when and s.seconds < least]) or verified[at]


def _fastest(verified: Sequence[Status]) -> Status | None:
    """The fastest candidate; of equal ones the first.

    This is the fastest of the candidates of which a later measurement counts.  A candidate whose first measurement counts replaces it only
    if its time is below both the counting time and the first time of that candidate, as first measurements are comparable only with
    each other.
    """
    sure = min((s for s in verified if s.again is not None), key=lambda s: s.seconds, default=None)
    once = min((s for s in verified if s.again is None), key=lambda s: s.seconds, default=None)
    if sure is None or once is None:
        return sure or once
    return once if once.seconds < min(sure.seconds, sure.first.seconds) else sure
