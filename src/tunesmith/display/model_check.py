"""Report the comparison of a model before and after a search."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A record that made a model slower.

    Attributes:
        function: name of the function in the model.
        record: identity of the record.
        before: seconds of all calls of the function in the model before the search.
        after: seconds with the record.
    """

    function: str
    record: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """A model before and after a search.

    Attributes:
        before: seconds of a run with the records from before the search; without any, with the schedules of the analytic model.
        after: seconds of a run with the records after the search, less those withdrawn.
        clean: no other load disturbed the samples.
        changed: number of functions with another schedule.
        withdrawn: the records that made it slower.
        chosen: number of functions with a schedule that is slower alone than another one, and faster in the model.
    """

    before: float
    after: float
    clean: bool
    changed: int
    withdrawn: tuple[Withdrawn, ...] = ()
    chosen: int = 0

    def __str__(self) -> str:
        """One line, such as `12.1 -> 10.4 ms (1.16 x), 18 functions changed`; without times if other load disturbed the samples."""
        times = f"{self.before * 1e3:.4g} -> {self.after * 1e3:.4g} ms ({self.before / self.after:.3g} x)"
        text = f"{times if self.clean else 'not compared, because other load disturbed the samples'}, {self.changed} functions changed"
        text += f", {self.chosen} of them for their speed in the model" if self.chosen else ""
        for w in self.withdrawn:
            took = f"{w.before * 1e6:.4g} -> {w.after * 1e6:.4g} us"
            text += f"; withdrawn, because slower in the model: {w.function} ({took}, record {w.record})"
        return text

    def to_json(self) -> dict[str, object]:
        """The check as plain JSON."""
        return dataclasses.asdict(self)
