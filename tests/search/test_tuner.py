"""The tuner's loop with a measurer that makes its numbers up: budgets, resuming, bookkeeping, interrupts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tunesmith.ir.target import Target
from tunesmith.measure.database import Database
from tunesmith.measure.record import ErrorInfo, Record
from tunesmith.ops.workload import workload
from tunesmith.search.random_sampler import RandomSampler
from tunesmith.search.sampler import Candidate, Result
from tunesmith.search.task import Task
from tunesmith.search.tuner import PHASES, Progress, Tuning, known_results, tune_task
from tunesmith.support.errors import UserError

TARGET = Target("llvm")


class FakeMeasurer:
    """Seconds follow from the row; every fifth candidate crashes; nothing is compiled."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.measured: list[tuple[int, tuple[int, ...]]] = []
        self.noted: list[float] = []
        self.stop_after = stop_after

    def stream(self, task: Any, candidates: Sequence[tuple[int, tuple[int, ...]]], *, seed: int = 0) -> Iterator[Record]:
        for c in candidates:
            if len(self.measured) == self.stop_after:
                raise KeyboardInterrupt
            self.measured.append(c)
            failed = len(self.measured) % 5 == 0
            yield self.record(task, c, seed, failed, float(len(self.measured)))

    def compare(self, task: Any, candidates: Sequence[tuple[int, tuple[int, ...]]], *, policy: Any, seed: int = 0) -> list[Record]:
        self.compared = list(candidates)
        return [self.record(task, c, seed, False, 1e6 + i, 2.0) for i, c in enumerate(candidates)]

    def note_best(self, task: Any, seconds: float) -> None:
        self.noted.append(seconds)

    def record(self, task: Any, c: tuple[int, tuple[int, ...]], seed: int, failed: bool, time: float, factor: float = 1.0) -> Record:
        return Record(
            workload=task.digest,
            target=TARGET.to_json(),
            trace=[],
            sketch=task.sketches[c[0]].name,
            row=c[1],
            samples=() if failed else (factor * (1 + sum(c[1])) * 1e-6,),
            clean=True,
            error=ErrorInfo("crash", "died") if failed else None,
            verified=not failed,
            host={},
            versions={},
            seed=seed,
            timestamp=time,
            policy={},
            extra={"run_s": 0.25},
        )


@pytest.fixture(scope="module")
def task() -> Task:
    w = workload("matmul(m=32,n=32,k=32)")
    return Task(w.text, w.func, TARGET, w.reference, w.flops)


def begin(task: Task, measurer: FakeMeasurer, **settings: Any) -> Tuning:
    return Tuning(task, RandomSampler(task, 1), measurer, **{"trials": 12, "batch": 5, **settings})  # type: ignore[arg-type]


def test_the_budget_is_spent_in_batches_and_everything_is_counted(task: Task) -> None:
    measurer, seen = FakeMeasurer(), []
    progress = tune_task(task, RandomSampler(task, 1), measurer, 12, batch=5, seed=3, callbacks=[lambda p: seen.append(p.trials)])  # type: ignore[arg-type]
    assert seen == [0, 5, 10, 12]
    assert progress.trials == len(measurer.measured) == len(set(measurer.measured)) == len(progress.curve) == 12
    assert progress.errors == {"crash": 2}
    best = min(1 + sum(row) for i, (_, row) in enumerate(measurer.measured) if (i + 1) % 5) * 1e-6
    assert progress.best is not None and progress.best.seconds == pytest.approx(best) and progress.best.seed == 3
    assert progress.curve[-1] == progress.best.seconds
    assert progress.gflops == pytest.approx(2 * 32**3 / best / 1e9)
    assert set(progress.seconds) == {*PHASES, "total"}
    assert progress.seconds["measure"] == pytest.approx(12 * 0.25)
    assert progress.seconds["verify"] == 0 and progress.seconds["draft"] > 0


def test_a_second_run_measures_only_what_is_left(task: Task) -> None:
    database = Database()
    first = FakeMeasurer()
    begin(task, first, database=database, trials=7).step()
    again = FakeMeasurer()
    tuning = begin(task, again, database=database, trials=7)
    assert (tuning.progress.trials, tuning.progress.resumed) == (5, 5)
    assert again.noted == [database.best(task.digest, TARGET.to_json()).seconds]  # type: ignore[union-attr]
    assert tuning.step() and not tuning.step()
    assert len(again.measured) == 2 and not set(again.measured) & set(first.measured)
    assert len(database) == 7
    assert not begin(task, FakeMeasurer(), database=database, trials=7).step()


def test_leaders_are_compared_and_their_second_records_are_no_trials(task: Task) -> None:
    database, measurer = Database(), FakeMeasurer()
    tuning = begin(task, measurer, database=database)
    while tuning.step():
        pass
    before = tuning.progress.best
    tuning.rank(3)
    assert len(measurer.compared) == 3
    assert before is not None and tuning.progress.best is not None
    assert tuning.progress.best.seconds != before.seconds  # the later record stands
    assert (tuning.progress.trials, len(database)) == (12, 15)
    assert len(known_results(task, database)) == 12
    empty = begin(task, FakeMeasurer())
    empty.rank()
    assert empty.progress.best is None


def test_an_interrupt_passes_through_and_loses_no_record(task: Task) -> None:
    database = Database()
    tuning = begin(task, FakeMeasurer(stop_after=7), database=database)
    assert tuning.step()
    with pytest.raises(KeyboardInterrupt):
        tuning.step()
    assert tuning.progress.trials == len(database) == 7


def test_an_exhausted_sampler_ends_the_search(task: Task) -> None:
    class Exhausted(RandomSampler):
        def ask(self, n: int) -> list[Candidate]:
            return []

    tuning = Tuning(task, Exhausted(task), FakeMeasurer(), 10)  # type: ignore[arg-type]
    assert not tuning.step() and tuning.progress.trials == 0


def test_records_of_other_spaces_are_not_told(task: Task) -> None:
    measurer = FakeMeasurer()
    records = list(measurer.stream(task.measured, [(0, (1,))]))
    assert known_results(task, Database(records)) == []
    assert known_results(task, Database()) == []


def test_a_failure_is_told_as_such(task: Task) -> None:
    told: list[Result] = []

    class Listening(RandomSampler):
        def tell(self, results: Sequence[Result]) -> None:
            told.extend(results)
            super().tell(results)

    Tuning(task, Listening(task, 2), FakeMeasurer(), 5, batch=5).step()  # type: ignore[arg-type]
    assert [r.seconds is None for r in told] == [False, False, False, False, True]
    assert Progress(task, 1).gflops == 0


class Scripted(RandomSampler):
    """Proposes what it is made with, batch after batch."""

    def __init__(self, batches: list[list[Any]]) -> None:
        self.batches = batches

    def ask(self, n: int) -> list[Candidate]:
        return self.batches.pop(0)

    def tell(self, results: Sequence[Result]) -> None: ...


def test_proposals_are_refused_as_in_the_arena(task: Task) -> None:
    good = RandomSampler(task, 1).ask(3)
    width = len(task.space.sketches[good[0].sketch].params)
    outside = Candidate(good[0].sketch, (3,) * width)
    for batches, what in [
        ([[*good, good[0]]], r"Scripted proposed Candidate.* twice"),
        ([good, good[:1]], r"Scripted proposed Candidate.* twice"),
        ([good * 4], r"Scripted.ask\(5\) proposed 12 candidates: at most 5"),
        ([[good[0], outside]], r"the row \[3, .* of the sketch '.*', which is not admissible. .*\(sample, mutate, .*, params\)"),
        ([[Candidate(0, (1,))]], r"the row \[1\]; rows of the sketch '.*' have \d+ values"),
        ([[Candidate(99, (1,))]], r"a candidate of sketch 99; the space has \d+ sketches"),
        ([[(0, (1,))]], r"proposed \(0, \(1,\)\), which is no Candidate"),
    ]:
        measurer = FakeMeasurer()
        tuning = Tuning(task, Scripted(batches), measurer, 12, batch=5)  # type: ignore[arg-type]
        for _ in batches[1:]:
            assert tuning.step()
        before = len(measurer.measured)
        with pytest.raises(UserError, match=what):
            tuning.step()
        assert len(measurer.measured) == before


def test_what_a_log_has_may_not_be_proposed_again(task: Task) -> None:
    database = Database()
    begin(task, FakeMeasurer(), database=database).step()
    tuning = Tuning(task, Scripted([RandomSampler(task, 1).ask(5)]), FakeMeasurer(), 12, database, batch=5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="twice"):
        tuning.step()
