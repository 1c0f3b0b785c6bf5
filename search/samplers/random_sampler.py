"""Propose candidates drawn uniformly from the admissible rows of the sketches: the baseline of searches."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.search.samplers.history import History
from tunesmith.search.samplers.sampler import Candidate, Result, Sampler
from tunesmith.search.task import Task
from tunesmith.support.seeds import stream


class RandomSampler(Sampler):
    """Uniform over the sketches, then over the rows of a sketch (registered as `random`)."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        self.task, self.seed = task, seed
        self._history = History(task)
        self._round = 0

    def ask(self, n: int) -> list[Candidate]:
        rng = stream(self.seed, "random", self.task.digest, self._round)
        self._round += 1
        batch: list[Candidate] = []
        self._history.fill(batch, n, rng)
        return batch

    def tell(self, results: Sequence[Result]) -> None:
        self._history.tell(results)
