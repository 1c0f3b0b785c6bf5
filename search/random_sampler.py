"""random: candidates drawn uniformly from the sketches' admissible rows; the baseline that every search must beat."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.search.sampler import Candidate, Result, Sampler
from tunesmith.search.task import Task
from tunesmith.support.seeds import stream


class RandomSampler(Sampler):
    """Uniform over sketches, then over a sketch's rows."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        self.task, self.seed = task, seed
        self._seen: set[Candidate] = set()
        self._round = 0

    def ask(self, n: int) -> list[Candidate]:
        rng = stream(self.seed, "random", self.task.digest, self._round)
        self._round += 1
        out: list[Candidate] = []
        sketches = self.task.space.sketches
        for _ in range(8):
            which = rng.integers(len(sketches), size=n)
            drawn = {k: iter(s.space.sample(int((which == k).sum()), rng)) for k, s in enumerate(sketches) if (which == k).any()}
            for k in which:
                c = Candidate(int(k), tuple(int(x) for x in next(drawn[int(k)])))
                if c not in self._seen and len(out) < n:
                    self._seen.add(c)
                    out.append(c)
            if len(out) >= n:
                break
        return out

    def tell(self, results: Sequence[Result]) -> None:
        self._seen.update(r.candidate for r in results)
