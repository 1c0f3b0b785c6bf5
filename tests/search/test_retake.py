"""Test which disturbed measurements are taken again, and that a resumed search has the results of one without interruption."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tunesmith.display.progress import line
from tunesmith.ir.target.target import Target
from tunesmith.measure.policies import MeasurePolicy
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.record import ErrorInfo, Record
from tunesmith.ops.workload import workload
from tunesmith.search.retake import RETAKE, Retaking, at_best
from tunesmith.search.samplers.random_sampler import RandomSampler
from tunesmith.search.samplers.sampler import Result
from tunesmith.search.task import Task
from tunesmith.search.tuner import Tuning, known_results
from tunesmith.support.errors import UserError

TARGET = Target("llvm")
RUN_S = 0.25


def record(seconds: float, clean: bool = True, waited: float = 0.0, run_s: float = RUN_S, failed: bool = False, name: str = "") -> Record:
    """A record of a candidate; candidates of different times or names are different."""
    steps = [["step", {"of": name or str(seconds)}, []]]
    error = ErrorInfo("crash", "died") if failed else None
    extra: dict[str, object] = {"run_s": run_s, "waited": waited}
    return Record("d", TARGET.to_json(), steps, "s", (1,), () if failed else (seconds,), clean, error, True, {}, {}, 0, 1.0, {}, extra)


def chosen(records: Sequence[Record], share: float = 1.0, others: int = 0) -> list[int]:
    retaking = Retaking()
    for r in [*[record(100.0 + i) for i in range(others)], *records]:
        retaking.add(r)
    return retaking.choose(records, share)


def test_disturbed_candidates_that_may_be_among_the_fastest_are_chosen() -> None:
    # The fastest eighth of 16 candidates are those with at most 2 s.
    clean = [record(float(i)) for i in range(1, 15)]
    slow, may_be_fast = record(20.0, False, waited=0.2), record(15.5, False, waited=0.9)
    assert chosen([*clean, slow, may_be_fast]) == [15]
    assert chosen([record(1.0), record(2.0, False), record(3.0, False, failed=True)], others=13) == [1]
    assert chosen([record(1.0), record(2.0)]) == [] == chosen([])


def test_the_budget_is_a_share_of_the_run_time() -> None:
    noisy = [record(3.0, False), record(1.0, False), record(2.0, False)]
    assert chosen(noisy, 0.1, others=27) == [1, 2, 0]  # 30 candidates: three may run again, the fastest first
    assert chosen(noisy, 0.1, others=20) == [1, 2]
    assert chosen(noisy, 0.0, others=27) == []
    long = record(0.5, False, run_s=50.0)
    assert chosen([long, noisy[0]], 0.1, others=27) == [1]  # the first one costs more than the budget
    retaking = Retaking()
    for r in [*[record(100.0 + i) for i in range(17)], *noisy, replace(noisy[1], clean=True, extra={"run_s": RUN_S, RETAKE: True})]:
        retaking.add(r)
    assert retaking.choose(noisy, 0.1) == [1]  # 20 candidates: two may run again, and one did


def test_the_time_without_waiting() -> None:
    assert [at_best(record(2.0, False, waited=w)) for w in (0.0, 0.25, 1.5)] == [2.0, 1.5, 0.0]
    assert at_best(replace(record(2.0, False), extra={})) == at_best(replace(record(2.0), extra={"waited": "much"})) == 2.0


@pytest.mark.parametrize("share", [-0.1, float("nan"), float("inf")])
def test_invalid_shares_are_refused(share: float) -> None:
    with pytest.raises(UserError, match="retake is a share of the run time"):
        MeasurePolicy(retake=share)


class NoisyMeasurer:
    """Derives seconds from the row; other processes double the first time of every second candidate, and the next ones are clean."""

    def __init__(self, retake: float, fails: bool = False) -> None:
        self.policy = MeasurePolicy(retake=retake)
        self.fails = fails
        self.measured: list[Record] = []

    def note_best(self, task: Any, seconds: float) -> None: ...

    def stream(
        self, task: Any, candidates: Sequence[tuple[int, tuple[int, ...]]], *, seed: int = 0, extra: Mapping[str, object] | None = None
    ) -> Iterator[Record]:
        for k, row in candidates:
            again = bool(extra)
            noisy = not again and len(self.measured) % 2 == 0
            seconds = (1 + sum(row)) * (2e-6 if noisy else 1e-6)
            failed = again and self.fails
            r = Record(
                workload=task.digest,
                target=TARGET.to_json(),
                trace=task.sketches[k].trace.with_configuration(row).to_json(),
                sketch=task.sketches[k].name,
                row=row,
                samples=() if failed else (seconds,),
                clean=not noisy,
                error=ErrorInfo("crash", "died") if failed else None,
                verified=not failed,
                host={},
                versions={},
                seed=seed,
                timestamp=float(len(self.measured)),
                policy={},
                extra={"run_s": RUN_S, "waited": 0.5 if noisy else 0.0, **(extra or {})},
            )
            self.measured.append(r)
            yield r


class Listening(RandomSampler):
    """Keeps the reported results."""

    def tell(self, results: Sequence[Result]) -> None:
        self.told = [*getattr(self, "told", []), *results]
        super().tell(results)


@pytest.fixture(scope="module")
def task() -> Task:
    w = workload("matmul(m=32,n=32,k=32)")
    return Task(w.text, w.func, TARGET, w.reference, w.flops)


def begin(task: Task, measurer: NoisyMeasurer, database: Database, trials: int = 32) -> Tuning:
    return Tuning(task, Listening(task, 1), measurer, trials, database, batch=8)  # type: ignore[arg-type]


@pytest.mark.parametrize("fails", [False, True])
def test_a_search_takes_disturbed_measurements_again(task: Task, fails: bool) -> None:
    database, measurer = Database(), NoisyMeasurer(0.1, fails)
    tuning = begin(task, measurer, database)
    while tuning.step():
        pass
    p = tuning.progress
    again = [r for r in measurer.measured if r.extra.get(RETAKE)]
    assert p.trials == len(p.curve) == 32 and 1 <= p.retaken == len(again) <= 3 and len(database) == 32 + len(again)
    assert p.seconds["measure"] == pytest.approx(RUN_S * (32 + len(again)))
    # The curve has the first times, so that it is that of a search without second measurements.
    first = [r.seconds for r in measurer.measured if not r.extra.get(RETAKE)]
    assert p.curve == [min(first[: i + 1]) for i in range(32)]
    # The sampler gets the second measurement, and a failure as such.
    told = {(r.candidate.row, r.seconds, r.clean) for r in tuning.sampler.told}  # type: ignore[attr-defined]
    assert len(told) == 32
    assert all((r.row, None if fails else r.seconds, True) in told for r in again)
    # A resumed search reports the same results, and takes nothing again.
    resumed = begin(task, NoisyMeasurer(0.1, fails), database)
    assert resumed.sampler.told == tuning.sampler.told and resumed.progress.curve == p.curve  # type: ignore[attr-defined]
    assert not resumed.step() and len(known_results(task, database)) == 32


def test_a_resumed_search_takes_the_same_measurements_again(task: Task) -> None:
    whole, parts = NoisyMeasurer(0.1), NoisyMeasurer(0.1)
    tuning = begin(task, whole, Database())
    while tuning.step():
        pass
    database = Database()
    sampler = None
    for trials in (16, 32):
        tuning = begin(task, parts, database, trials)
        sampler = tuning.sampler = sampler or tuning.sampler  # a random sampler draws by its round
        while tuning.step():
            pass
    assert [(r.row, r.seconds, r.extra) for r in parts.measured] == [(r.row, r.seconds, r.extra) for r in whole.measured]


def test_nothing_is_taken_again_without_a_budget(task: Task) -> None:
    measurer = NoisyMeasurer(0.0)
    tuning = begin(task, measurer, Database())
    while tuning.step():
        pass
    assert tuning.progress.retaken == 0 and len(measurer.measured) == 32


def test_progress_names_second_measurements(task: Task) -> None:
    tuning = begin(task, NoisyMeasurer(0.1), Database())
    while tuning.step():
        pass
    assert tuning.progress.retaken >= 1 and f"{tuning.progress.retaken} disturbed, taken again" in line(tuning.progress)
