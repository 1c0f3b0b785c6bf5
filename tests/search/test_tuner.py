"""Test the tuner with a fake measurer: budgets, resuming, counters, ranking, interrupts, invalid proposals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tunesmith.ir.target.target import Target
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.record import ErrorInfo, Record
from tunesmith.ops.workload import workload
from tunesmith.schedule.trace import Trace
from tunesmith.search.samplers.random_sampler import RandomSampler
from tunesmith.search.samplers.sampler import Candidate, Result
from tunesmith.search.task import Task
from tunesmith.search.tuner import PHASES, RANKING_ROUNDS, Progress, Tuning, known_results, tune_task
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

TARGET = Target("llvm")


class FakeMeasurer:
    """Derives seconds from the row without compiling; every fifth candidate crashes."""

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
            trace=task.sketches[c[0]].trace.with_configuration(c[1]).to_json(),
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


def test_the_budget_is_spent_in_batches_and_counters_are_updated(task: Task) -> None:
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


def test_a_resumed_run_measures_only_the_remaining_trials(task: Task) -> None:
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


def test_ranking_adds_records_but_no_trials(task: Task) -> None:
    database, measurer = Database(), FakeMeasurer()
    tuning = begin(task, measurer, database=database)
    while tuning.step():
        pass
    before = tuning.progress.best
    tuning.rank(3)
    assert len(measurer.compared) == 3
    assert before is not None and tuning.progress.best is not None
    assert tuning.progress.best.seconds != before.seconds  # the later record counts
    assert tuning.progress.trials == 12 and len(database) > 12
    assert len(known_results(task, database)) == 12
    empty = begin(task, FakeMeasurer())
    empty.rank()
    assert empty.progress.best is None


def test_an_interrupt_is_passed_on_and_loses_no_record(task: Task) -> None:
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


def test_records_of_other_spaces_are_not_reported(task: Task) -> None:
    database, measurer = Database(), FakeMeasurer()
    begin(task, measurer, database=database, trials=4).step()
    records = database.records()
    fastest, *_, fine = sorted(records, key=lambda r: r.seconds)
    row = fine.row
    changed: list[dict[str, Any]] = [
        {"sketch": "unknown"},
        {"trace": [["get_block", {"name": "C"}, ["b0"]]]},  # same sketch name, different steps
        {"trace": []},
        {"row": row[:-1]},
        {"row": (row[0] + 1, *row[1:])},  # differs from the decisions of the trace
        {"row": tuple(2**40 for _ in row), "trace": _decided(fine, [2**40 for _ in row])},  # outside the space
        {"row": tuple(0 for _ in row), "trace": _decided(fine, [0 for _ in row])},
        {"samples": (3e-10,)},  # below the least possible time
    ]
    foreign = [replace(fine, **{"timestamp": 500.0, "seed": n, **change}) for n, change in enumerate(changed)]
    assert [r for r, _ in known_results(task, Database([*foreign, *records]))] == records
    assert known_results(task, Database(foreign)) == []
    assert known_results(task, Database()) == []
    resumed = begin(task, FakeMeasurer(), database=Database([*foreign, fastest]))
    assert (resumed.progress.resumed, resumed.progress.best) == (1, fastest)


def test_an_impossible_time_is_measured_again_and_never_best(task: Task) -> None:
    database, first = Database(), FakeMeasurer()
    begin(task, first, database=database, trials=4).step()
    bogus = Database([replace(r, samples=(4e-10,)) for r in database.records()])
    again = FakeMeasurer()
    tuning = begin(task, again, database=bogus, trials=4)
    assert (tuning.progress.resumed, tuning.progress.best, again.noted) == (0, None, [])
    tuning.step()
    assert again.measured == first.measured
    assert bogus.best(task.digest, TARGET.to_json()) == database.best(task.digest, TARGET.to_json())


def test_a_candidate_whose_last_run_failed_is_reported_as_a_failure(task: Task) -> None:
    database = Database()
    begin(task, FakeMeasurer(), database=database, trials=3).step()
    one, two, three = database.records()
    for r in (one, two):
        database.add(replace(r, samples=(), error=ErrorInfo("crash", "late"), verified=False, timestamp=50.0))
    database.add(replace(two, timestamp=60.0))
    assert [(r, result.seconds) for r, result in known_results(task, database)] == [
        (one, None),
        (two, two.seconds),
        (three, three.seconds),
    ]


class NoisyMeasurer(FakeMeasurer):
    """Candidates take 10 to 11 us.  First times have an error of 3 %, later ones of 0.2 %; under load later ones are slow and not clean."""

    def __init__(self, seed: int, load: float = 1.0) -> None:
        super().__init__()
        self.draw, self.load, self.calls = stream(seed, "noisy"), load, 0
        self.right: dict[tuple[int, tuple[int, ...]], float] = {}
        self.ranked: set[tuple[int, tuple[int, ...]]] = set()

    def stream(self, task: Any, candidates: Sequence[tuple[int, tuple[int, ...]]], *, seed: int = 0) -> Iterator[Record]:
        for c in candidates:
            self.right[c] = 1e-5 * (1 + 0.1 * float(self.draw.random()))
            yield self.timed(task, c, self.right[c] * (1 + 0.03 * float(self.draw.standard_normal())), True)

    def compare(self, task: Any, candidates: Sequence[tuple[int, tuple[int, ...]]], *, policy: Any, seed: int = 0) -> list[Record]:
        self.calls += 1
        self.ranked |= set(candidates)
        factors = self.load * (1 + 0.002 * self.draw.standard_normal(len(candidates)))
        return [self.timed(task, c, self.right[c] * float(f), self.load == 1.0) for c, f in zip(candidates, factors, strict=True)]

    def timed(self, task: Any, c: tuple[int, tuple[int, ...]], seconds: float, clean: bool) -> Record:
        self.calls += 1
        return replace(self.record(task, c, 0, False, float(self.calls)), samples=(seconds,), clean=clean)


@pytest.mark.parametrize("load", [1.0, 1.8])
def test_the_final_best_was_ranked(task: Task, load: float) -> None:
    for seed in range(25):
        database, measurer = Database(), NoisyMeasurer(seed, load)
        tuning = Tuning(task, RandomSampler(task, seed), measurer, 24, database, batch=24)  # type: ignore[arg-type]
        tuning.step()
        tuning.rank(4)
        best = tuning.progress.best
        assert best is not None and best == database.best(task.digest, TARGET.to_json())
        names = {s.name: k for k, s in enumerate(task.space.sketches)}
        key = names[best.sketch], best.row
        assert key in measurer.ranked
        if load > 1:
            assert best.clean and best.seconds < 1.2e-5, "noisy times do not replace clean first times"
            continue
        assert best.seconds == pytest.approx(measurer.right[key], rel=0.02)  # not a lucky first time
        assert measurer.right[key] < 1.005 * min(measurer.right[c] for c in measurer.ranked)


def test_ranking_ends_if_equal_candidates_keep_changing_places(task: Task) -> None:
    class Slower(NoisyMeasurer):
        """Every later time is longer than all first times."""

        def compare(self, task: Any, candidates: Sequence[tuple[int, tuple[int, ...]]], *, policy: Any, seed: int = 0) -> list[Record]:
            self.ranked |= set(candidates)
            self.rounds = getattr(self, "rounds", 0) + 1
            return [self.timed(task, c, 2e-5, True) for c in candidates]

    measurer = Slower(0)
    tuning = Tuning(task, RandomSampler(task, 0), measurer, 64, batch=64)  # type: ignore[arg-type]
    tuning.step()
    tuning.rank(4)
    best = tuning.progress.best
    assert measurer.rounds == RANKING_ROUNDS and best is not None
    assert best.seconds == 2e-5, "candidates measured once do not replace a ranked best"


def _decided(record: Record, row: Sequence[int]) -> list[object]:
    """The trace of the record with the decisions of `row`."""
    return Trace.from_json(record.trace).with_configuration(row).to_json()  # type: ignore[no-any-return]


def test_failures_are_reported_without_seconds(task: Task) -> None:
    reported: list[Result] = []

    class Listening(RandomSampler):
        def tell(self, results: Sequence[Result]) -> None:
            reported.extend(results)
            super().tell(results)

    Tuning(task, Listening(task, 2), FakeMeasurer(), 5, batch=5).step()  # type: ignore[arg-type]
    assert [r.seconds is None for r in reported] == [False, False, False, False, True]
    assert Progress(task, 1).gflops == 0


class Scripted(RandomSampler):
    """Proposes the given batches in order."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def ask(self, n: int) -> list[Candidate]:
        return self.batches.pop(0)

    def tell(self, results: Sequence[Result]) -> None: ...


def test_invalid_proposals_are_rejected_as_in_the_arena(task: Task) -> None:
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
        ([[(0, (1,))]], r"proposed \(0, \(1,\)\), which is not a Candidate: Scripted.ask must return a list of Candidate\(sketch, row\)"),
        (
            [np.ones((5, 4), np.int64)],
            r"Scripted.ask\(5\) returned an array of shape \[5, 4\]; it must return a list of at most 5 Candidate",
        ),
        ([None], r"Scripted.ask\(5\) returned a value of type NoneType"),
        ([[Candidate(0, np.ones(4, np.int64))]], r"Scripted proposed Candidate.* not of the form Candidate\(sketch, row\)"),
        ([[Candidate(0, (1.5,))]], r"Scripted proposed Candidate.* not of the form Candidate\(sketch, row\)"),
    ]:
        measurer = FakeMeasurer()
        tuning = Tuning(task, Scripted(batches), measurer, 12, batch=5)  # type: ignore[arg-type]
        for _ in batches[1:]:
            assert tuning.step()
        before = len(measurer.measured)
        with pytest.raises(UserError, match=what):
            tuning.step()
        assert len(measurer.measured) == before


def test_candidates_of_the_log_may_not_be_proposed_again(task: Task) -> None:
    database = Database()
    begin(task, FakeMeasurer(), database=database).step()
    tuning = Tuning(task, Scripted([RandomSampler(task, 1).ask(5)]), FakeMeasurer(), 12, database, batch=5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="twice"):
        tuning.step()


def test_the_curve_of_a_resumed_search_never_rises_and_follows_from_the_log(task: Task) -> None:
    database, measurer = Database(), FakeMeasurer()
    first = begin(task, measurer, database=database, trials=12)
    while first.step():
        pass
    fastest = first.progress.curve[-1]
    first.rank(3)  # second times are twice the first ones
    assert first.progress.best is not None and fastest is not None and first.progress.best.seconds > fastest
    seen: list[list[float | None]] = []
    resumed = begin(task, FakeMeasurer(), database=database, trials=20, callbacks=[lambda p: seen.append(list(p.curve))])
    assert resumed.progress.curve == first.progress.curve
    while resumed.step():
        pass
    curve = [x for x in resumed.progress.curve if x is not None]
    assert curve == sorted(curve, reverse=True) and len(resumed.progress.curve) == 20
    assert all(resumed.progress.curve[: len(c)] == c for c in seen), "a curve only grows at its end"
    assert begin(task, FakeMeasurer(), database=database, trials=20).progress.curve == resumed.progress.curve
    assert resumed.progress.best == database.best(task.digest, TARGET.to_json())


def test_the_number_of_leaders_timed_again_and_the_earlier_best_are_reported(task: Task) -> None:
    tuning = begin(task, FakeMeasurer(), database=Database())
    while tuning.step():
        pass
    before = tuning.progress.best
    assert (tuning.progress.timed_again, tuning.progress.best_before) == (0, None)
    tuning.rank(3)
    assert tuning.progress.timed_again >= 3 and tuning.progress.best_before == before != tuning.progress.best
