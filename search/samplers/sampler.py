"""Define the interface of samplers: `ask` for candidates, `tell` their results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A configuration: the position of a sketch in the task's space and a row of it."""

    sketch: int
    row: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """The measurement of a candidate.

    Attributes:
        candidate: the candidate.
        seconds: median seconds; None if it failed.
        clean: whether no other process disturbed the measurement.
    """

    candidate: Candidate
    seconds: float | None
    clean: bool = True


@dataclass(frozen=True, slots=True)
class SamplerStatistics:
    """The effort of a sampler so far, for reports.

    Attributes:
        drafted, scored: candidates scored by the analytic model and by the learned model.
        draft_seconds: time spent on drawing and analytic scoring.
    """

    drafted: int
    scored: int
    draft_seconds: float


class Sampler(ABC):
    """Proposes candidates of one task.

    A sampler draws only from random streams keyed by its seed, the task's digest and the round: the same results reported in the same
    order give the same proposals, for any number of workers.  A sampler is used by one thread.
    """

    @abstractmethod
    def ask(self, n: int) -> list[Candidate]:
        """At most n distinct candidates that were never proposed before; fewer, or none, if the space is exhausted."""

    @abstractmethod
    def tell(self, results: Sequence[Result]) -> None:
        """Report results of candidates, proposed or from an earlier run; each is reported once."""

    def statistics(self) -> SamplerStatistics | None:
        """The effort of all proposals so far; None if the sampler does not count it, and all of its time is drafting."""
        return None
