"""Define profiles: the times of the calls of a model or a module."""

from __future__ import annotations

from dataclasses import dataclass


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


MOST_ROWS = 100
"""Number of calls up to which a profile is printed call by call."""


class Profile(tuple[ProfileRow, ...]):
    """Rows in program order; as a string, a table sorted by decreasing time: of all calls, or of all functions if there are many calls."""

    __slots__ = ()

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
        whole = self.microseconds or 1.0
        if len(self) > MOST_ROWS:
            heads = [f"{'calls':>6} {'us':>10} {'share':>6}  function"]
            rows = [f"{calls:>6} {us:>10.2f} {us / whole:>6.1%}  {name}" for name, (calls, us) in self.by_function().items()]
            return "\n".join([*heads, *rows, f"{len(self):>6} {self.microseconds:>10.2f} {'':>6}  all"])
        lines = [f"{'call':>5} {'us':>10} {'share':>6} {'calls':>6}  function"]
        for row in sorted(self, key=lambda r: (-r.microseconds, r.call)):
            lines.append(f"{row.call:>5} {row.microseconds:>10.2f} {row.microseconds / whole:>6.1%} {row.calls:>6}  {row.function}")
        return "\n".join([*lines, f"{'':>5} {self.microseconds:>10.2f} {'':>6} {'':>6}  all"])
