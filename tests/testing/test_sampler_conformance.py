"""Check that the conformance suite of samplers detects errors: each broken sampler fails the corresponding test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tunesmith.search.samplers.random_sampler import RandomSampler
from tunesmith.search.samplers.sampler import Candidate, Result, Sampler, SamplerStatistics
from tunesmith.search.task import Task
from tunesmith.testing.sampler_conformance import TASKS, SamplerConformance, example_task, maker


class Repeats(RandomSampler):
    """Proposes its first candidate again in every batch."""

    first: Candidate | None = None

    def ask(self, n: int) -> list[Candidate]:
        batch = super().ask(n)
        self.first = self.first or batch[0]
        return [self.first, *batch[1:]]


class Deaf(RandomSampler):
    """Ignores results."""

    def tell(self, results: Sequence[Result]) -> None:
        pass


class Greedy(RandomSampler):
    """Proposes one candidate too many."""

    def ask(self, n: int) -> list[Candidate]:
        return super().ask(n + 1)


class Boxes(Sampler):
    """Draws every column independently, ignoring constraints."""

    def __init__(self, task: object, seed: int) -> None:
        self.space, self.rng = task.space, np.random.default_rng(seed)  # type: ignore[attr-defined]

    def ask(self, n: int) -> list[Candidate]:
        params = self.space.sketches[-1].params
        return list({Candidate(len(self.space.sketches) - 1, tuple(int(self.rng.choice(p.domain)) for p in params)) for _ in range(n)})

    def tell(self, results: Sequence[Result]) -> None:
        pass


class Numpy(RandomSampler):
    """Proposes rows of NumPy integers, which records do not accept."""

    def ask(self, n: int) -> list[Candidate]:
        return [Candidate(c.sketch, tuple(np.array(c.row))) for c in super().ask(n)]


class Global(RandomSampler):
    """Draws from NumPy's global random stream."""

    def ask(self, n: int) -> list[Candidate]:
        self.seed = int(np.random.randint(1 << 30))
        return super().ask(n)


class Lazy(RandomSampler):
    """Stops after three batches."""

    def ask(self, n: int) -> list[Candidate]:
        return super().ask(n) if self._round < 3 else []


class Fragile(RandomSampler):
    """Does not accept failed candidates."""

    def tell(self, results: Sequence[Result]) -> None:
        super().tell(results)
        assert all(r.seconds is not None for r in results)


class Forgetful(RandomSampler):
    """Reports the work of the last proposal instead of the sum."""

    def statistics(self) -> SamplerStatistics:
        return SamplerStatistics(drafted=10 - self._round, scored=0, draft_seconds=0.0)


class Unseeded(RandomSampler):
    """Ignores its seed."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        super().__init__(task, 0)


class Clears(RandomSampler):
    """Empties the list of results."""

    def tell(self, results: Sequence[Result]) -> None:
        super().tell(results)
        results.clear()  # type: ignore[attr-defined]


class Sorts(RandomSampler):
    """Sorts the list of results."""

    def tell(self, results: Sequence[Result]) -> None:
        super().tell(results)
        results.sort(key=lambda r: r.candidate, reverse=True)  # type: ignore[attr-defined]


class Half(RandomSampler):
    """Proposes half of the candidates."""

    def ask(self, n: int) -> list[Candidate]:
        return super().ask((n + 1) // 2)


class Pauses(RandomSampler):
    """Proposes nothing in every third round."""

    def ask(self, n: int) -> list[Candidate]:
        batch = super().ask(n)
        return [] if self._round % 3 == 0 else batch


class Recycles(RandomSampler):
    """Returns one list again and again."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        super().__init__(task, seed)
        self.batch: list[Candidate] = []

    def ask(self, n: int) -> list[Candidate]:
        self.batch[:] = super().ask(n)
        return self.batch


class GivesUp(RandomSampler):
    """Proposes fewer candidates after failures."""

    failed = 0

    def tell(self, results: Sequence[Result]) -> None:
        super().tell(results)
        self.failed += sum(r.seconds is None for r in results)

    def ask(self, n: int) -> list[Candidate]:
        return super().ask(max(1, n - self.failed))


suite = SamplerConformance()
usual, small = example_task("usual"), example_task("small")


@pytest.mark.parametrize("broken", [Repeats, Greedy, Boxes, Numpy])
def test_wrong_proposals_are_detected(broken: type[Sampler]) -> None:
    with pytest.raises(AssertionError):
        suite.test_candidates_are_new_admissible_and_no_more_than_asked_for(maker(broken), usual)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Half, "asked for 7 candidates, got 4, though the space is not exhausted"),
        (Pauses, "asked for 4 candidates, got 0, though the space is not exhausted"),
        (Clears, "tell modified the list of results"),
        (Sorts, "tell modified the list of results"),
        (Recycles, "a later ask modified the list"),
    ],
)
def test_damaged_lists_are_detected(broken: type[Sampler], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        suite.test_candidates_are_new_admissible_and_no_more_than_asked_for(maker(broken), usual)


def test_an_ignored_seed_is_detected() -> None:
    with pytest.raises(AssertionError, match="the seeds 5 and 6 give the same proposals"):
        suite.test_equal_seeds_and_results_give_equal_proposals(maker(Unseeded), usual)


def test_fewer_proposals_after_failures_are_detected() -> None:
    with pytest.raises(AssertionError, match="asked for 4 candidates, got 1, though the space is not exhausted"):
        suite.test_failures_are_accepted(maker(GivesUp), usual, 1.0)


def test_repeated_candidates_are_detected() -> None:
    with pytest.raises(AssertionError):
        suite.test_what_was_told_is_not_proposed(maker(Deaf), small)


def test_a_global_random_stream_is_detected() -> None:
    with pytest.raises(AssertionError):
        suite.test_equal_seeds_and_results_give_equal_proposals(maker(Global), usual)


def test_an_unexhausted_space_is_detected() -> None:
    with pytest.raises(AssertionError, match="not every candidate was proposed exactly once"):
        suite.test_a_small_space_is_used_up(maker(Lazy))


def test_rejected_failures_are_detected() -> None:
    with pytest.raises(AssertionError):
        suite.test_failures_are_accepted(maker(Fragile), usual, 1.0)


def test_decreasing_statistics_are_detected() -> None:
    with pytest.raises(AssertionError, match="are less than"):
        suite.test_statistics_never_decrease(maker(Forgetful))


def test_a_sampler_that_does_not_learn_is_detected() -> None:
    with pytest.raises(AssertionError):
        suite.test_learners_do_better_than_chance(maker("random"))


def test_the_example_tasks_match_their_names() -> None:
    assert [sorted(len(s.params) for s in example_task(name).space.sketches) for name in TASKS] == [[6] * 4, [9], [0, 1, 2], [6] * 4]
    assert example_task("joint").space.sketches[0].space.joint and small.space.size() == 37 and example_task("pool").space.size() == 160
