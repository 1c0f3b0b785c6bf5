"""Define profiles: the times of the calls of a model or a module."""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.runtime.timing import CpuClock, TimingPolicy


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """Measured times of a call of the program.

    Attributes:
        call: its number, in program order.
        function: name of the function.
        microseconds: in one run: the median over all executions, times the executions in a run if the call is in a `while` loop.
        calls: number of executions in all runs; 0 if the call is in a branch that was never taken.
    """

    call: int
    function: str
    microseconds: float
    calls: int


SHORTEST_S = 0.1
"""Seconds from which the load of the machine is known; the system counts it in hundredths of a second."""
MOST_ROWS = 100
"""Number of calls up to which a profile is printed call by call."""


class Profile(tuple[ProfileRow, ...]):
    """Rows in program order; as a string, a table sorted by decreasing time: of all calls, or of all functions if there are many calls.

    Attributes:
        foreign: cores that other processes used meanwhile; 0 if it is not known, or the profile took less than `SHORTEST_S`.
    """

    foreign: float = 0.0

    def during(self, begin: CpuClock | None, end: CpuClock | None) -> Profile:
        """This profile with the load of the machine between two readings of the clock; None where it cannot be read."""
        if begin is not None and end is not None and end.wall - begin.wall >= SHORTEST_S:
            self.foreign = begin.foreign(end)
        return self

    @property
    def remark(self) -> str:
        """A line about a busy machine; empty for a quiet one."""
        quiet = self.foreign < TimingPolicy().quiet_fraction
        return "" if quiet else f"~ other processes used {self.foreign:.1f} cores meanwhile: the times may be too long"

    @property
    def microseconds(self) -> float:
        """Sum over all calls."""
        return sum(row.microseconds for row in self)

    def by_function(self) -> dict[str, tuple[int, float]]:
        """Function -> (its number of calls in one run, the sum of their microseconds), the largest first."""
        found: dict[str, tuple[int, float]] = {}
        for row in self:
            calls, us = found.get(row.function, (0, 0.0))
            found[row.function] = calls + 1, us + row.microseconds
        return dict(sorted(found.items(), key=lambda item: -item[1][1]))

    def __str__(self) -> str:
        return "\n".join([self._table(), *filter(None, [self.remark])])

    def _table(self) -> str:
        whole = self.microseconds or 1.0
        if len(self) > MOST_ROWS:
            heads = [f"{'calls':>6} {'us':>10} {'share':>6}  function"]
            rows = [f"{calls:>6} {us:>10.2f} {us / whole:>6.1%}  {name}" for name, (calls, us) in self.by_function().items()]
            return "\n".join([*heads, *rows, f"{len(self):>6} {self.microseconds:>10.2f} {'':>6}  all"])
        lines = [f"{'call':>5} {'us':>10} {'share':>6} {'calls':>6}  function"]
        for row in sorted(self, key=lambda r: (-r.microseconds, r.call)):
            lines.append(f"{row.call:>5} {row.microseconds:>10.2f} {row.microseconds / whole:>6.1%} {row.calls:>6}  {row.function}")
        return "\n".join([*lines, f"{'':>5} {self.microseconds:>10.2f} {'':>6} {'':>6}  all"])
