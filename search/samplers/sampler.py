"""The contract of samplers: ask for candidates, tell what they measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A sketch of the task's space, by position, and a row of it."""

    sketch: int
    row: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What a candidate measured: median seconds, None when it failed."""

    candidate: Candidate
    seconds: float | None


class Sampler(ABC):
    """Proposes candidates of one task.

    A sampler draws only from streams named by its seed, the task's digest and the round, so that the same results told in
    the same order give the same proposals, whatever the number of workers.  It is used by one thread.
    """

    @abstractmethod
    def ask(self, n: int) -> list[Candidate]:
        """At most n distinct candidates that were never asked before; fewer, or none, when the space is exhausted."""

    @abstractmethod
    def tell(self, results: Sequence[Result]) -> None:
        """Results of candidates, asked for or from an earlier run; each is told once."""
