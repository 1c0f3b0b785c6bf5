"""Run the conformance suite on runners, and check that each of its tests detects a runner that breaks the contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from tunesmith.measure.local_runner import InProcessRunner, LocalRunner
from tunesmith.measure.records.record import ErrorInfo
from tunesmith.measure.runner import Runner, RunRequest, RunResult, RunSetup
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.support.errors import RunError
from tunesmith.testing.runner_conformance import Make, RunnerConformance, example_setup

suite = RunnerConformance()


class TestInProcess(RunnerConformance):
    isolated: ClassVar[bool] = False

    @pytest.fixture
    def make(self) -> Make:
        return InProcessRunner


class TestLocal(RunnerConformance):
    @pytest.fixture
    def make(self) -> Make:
        return partial(LocalRunner, 2)


class Broken(InProcessRunner):
    """A runner whose requests or results a subclass damages.  Candidates that would end this process are not run."""

    def __init__(self, timeout: float | None = None) -> None:
        super().__init__()

    def run(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        return self.damage(super().run([self.change(r) for r in requests]))

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        return self.damage(super().compare([self.change(r) for r in requests], policy))

    def change(self, request: RunRequest) -> RunRequest:
        return request

    def damage(self, results: list[RunResult]) -> list[RunResult]:
        return results


class Unordered(Broken):
    def damage(self, results: list[RunResult]) -> list[RunResult]:
        return [*results[1:], *results[:1]]


class Loses(Broken):
    def damage(self, results: list[RunResult]) -> list[RunResult]:
        return [r for r in results if r.error is None]


class Pops(Broken):
    """Empties the caller's list."""

    def run(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        results = super().run(requests)
        requests.clear()  # type: ignore[attr-defined]
        return results


class Once(Broken):
    """Takes one sample."""

    def damage(self, results: list[RunResult]) -> list[RunResult]:
        return [replace(r, samples=r.samples[:1]) for r in results]


class Patient(Broken):
    """Times every candidate to the end."""

    def change(self, request: RunRequest) -> RunRequest:
        return replace(request, best=None)


class Milliseconds(Broken):
    def damage(self, results: list[RunResult]) -> list[RunResult]:
        return [replace(r, samples=tuple(1e9 * s for s in r.samples)) for r in results]


class Trusts(Broken):
    """Verifies nothing, and says that it did."""

    def change(self, request: RunRequest) -> RunRequest:
        return replace(request, verify="never")

    def damage(self, results: list[RunResult]) -> list[RunResult]:
        return [replace(r, verified=True) for r in results]


class Always(Broken):
    """Verifies where it must not."""

    def change(self, request: RunRequest) -> RunRequest:
        return replace(request, verify="always") if request.verify == "never" else request


class Forgets(Broken):
    """Never says that it verified a result."""

    def damage(self, results: list[RunResult]) -> list[RunResult]:
        return [replace(r, verified=False) for r in results]


class Raises(Broken):
    def damage(self, results: list[RunResult]) -> list[RunResult]:
        for r in results:
            if r.error is not None and r.error.kind == "run_error":
                raise ValueError(r.error.message)
        return results


class Crashes(Broken):
    """Reports every failure as a crash."""

    def damage(self, results: list[RunResult]) -> list[RunResult]:
        return [r if r.error is None else replace(r, error=ErrorInfo("crash", r.error.message)) for r in results]


class OneSetup(Broken):
    """Uses the first setup for all candidates."""

    first: RunSetup | None = None

    def change(self, request: RunRequest) -> RunRequest:
        self.first = self.first or request.setup
        return replace(request, setup=self.first)


class Swallows(Broken):
    """Reports an invalid setup as a failure of the candidate."""

    def run(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        try:
            return super().run(requests)
        except RunError as error:
            return [RunResult((), True, ErrorInfo("run_error", str(error)), False, 0.0) for _ in requests]


class ClosesOnce(Broken):
    closed = False

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True


class Optimist(Broken):
    """Reports that every candidate is right, without a run."""

    def run(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        return [RunResult((1e-6, 1e-6), True, None, True, 0.0) for _ in requests]

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        return self.run(requests)


class Pessimist(Broken):
    """After a candidate crashed, all others are crashes."""

    def run(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        return [RunResult((), True, ErrorInfo("crash", "dead"), False, 0.0) for _ in requests]

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        return self.run(requests)


class Scaled(Broken):
    """Reports times in another unit."""

    factor = 1.0

    def damage(self, results: list[RunResult]) -> list[RunResult]:
        return [replace(r, samples=tuple(self.factor * s for s in r.samples)) for r in results]


class TooLong(Scaled):
    factor = 1e3


class TooShort(Scaled):
    factor = 1e-3


class ComparesTooShort(TooShort):
    """Only the times of comparisons are wrong."""

    def run(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        return InProcessRunner.run(self, requests)


class Rotates(Broken):
    """Gives each candidate the samples of the next one."""

    def damage(self, results: list[RunResult]) -> list[RunResult]:
        return [replace(r, samples=other.samples) for r, other in zip(results, [*results[1:], *results[:1]], strict=True)]


class RotatesCompared(Rotates):
    def run(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        return InProcessRunner.run(self, requests)


class Twice(Broken):
    """Takes two samples of every candidate."""

    def change(self, request: RunRequest) -> RunRequest:
        return replace(request, policy=replace(request.policy, repeats=2))


class ComparesTwice(Broken):
    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        return super().compare(requests, replace(policy, repeats=2))


class PopsCompared(Broken):
    """Empties the list of a comparison."""

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        results = super().compare(requests, policy)
        requests.clear()  # type: ignore[attr-defined]
        return results


class Strict(Broken):
    """Ignores the tolerance of the setup."""

    def change(self, request: RunRequest) -> RunRequest:
        return replace(request, setup=replace(request.setup, tolerance=1e-6))


class NoRanges(Broken):
    """Ignores the ranges of the inputs."""

    def change(self, request: RunRequest) -> RunRequest:
        return replace(request, setup=replace(request.setup, ranges=()))


class NoBaseline(Broken):
    """Verifies against files only."""

    def change(self, request: RunRequest) -> RunRequest:
        return replace(request, setup=replace(request.setup, baseline=None))


CASES: list[tuple[str, type[Runner], str]] = [
    ("test_results_are_in_the_order_of_the_requests", Unordered, r"have the errors \['wrong_result', None, "),
    ("test_results_are_in_the_order_of_the_requests", Loses, "5 candidates have 3 results"),
    ("test_results_are_in_the_order_of_the_requests", Pops, "modified the list of requests"),
    ("test_times_follow_the_policy", Once, "the policy asks for 2 samples, got 1"),
    ("test_times_follow_the_policy", Twice, "the policy asks for 3 samples, got 2"),
    ("test_times_follow_the_policy", Patient, "clearly behind the best has 2 samples"),
    ("test_times_follow_the_policy", Milliseconds, "samples are seconds per call"),
    (
        "test_outputs_are_verified_on_request",
        Trusts,
        "verify='winner' with the best at None: a wrong candidate has None, expected wrong_result",
    ),
    ("test_outputs_are_verified_on_request", Forgets, "verify='winner' .* a right candidate has None, verified=False"),
    ("test_outputs_are_verified_on_request", Always, "verify='never' .* a right candidate has None, verified=True"),
    ("test_results_of_earlier_candidates_are_not_accepted", Trusts, r"those that write too little have the errors \[None, None\]"),
    ("test_failures_are_results", Raises, "must report failures as results, but raised ValueError"),
    ("test_failures_are_results", Loses, "5 candidates have 2 results"),
    ("test_failures_are_results", Crashes, "the error is a crash, expected a run_error"),
    ("test_comparison_is_complete_and_in_order", Unordered, "the compared candidates have the errors"),
    ("test_comparison_is_complete_and_in_order", Forgets, "right candidates are verified in a comparison"),
    ("test_comparison_is_complete_and_in_order", Once, r"\[1, 0, 0, 1\] samples"),
    ("test_comparison_is_complete_and_in_order", ComparesTwice, r"\[2, 0, 0, 2\] samples, expected \[3, 0, 0, 3\]"),
    ("test_comparison_is_complete_and_in_order", PopsCompared, "compare modified the list of requests"),
    ("test_times_belong_to_their_candidates", Rotates, "run: the candidates .* the long one is not the longest"),
    ("test_times_belong_to_their_candidates", RotatesCompared, "compare: the candidates .* the long one is not the longest"),
    ("test_times_are_those_of_a_wall_clock", TooLong, r"run reports .* s for a call that takes .* s by a wall clock"),
    ("test_times_are_those_of_a_wall_clock", TooShort, r"run reports .* s for a call that takes .* s by a wall clock"),
    ("test_times_are_those_of_a_wall_clock", ComparesTooShort, r"compare reports .* s for a call that takes .* s by a wall clock"),
    ("test_invalid_setups_raise", Swallows, "reference does not exist: a RunError is expected"),
    ("test_close_may_be_repeated", ClosesOnce, "closed twice"),
    ("test_a_crash_costs_its_candidate", Optimist, r"run, candidate 'null store' between right ones: the errors are \[None, None, None\]"),
    ("test_a_crash_costs_its_candidate", Pessimist, r"the errors are \['crash', 'crash', 'crash'\]"),
    ("test_a_slow_candidate_is_a_timeout", Optimist, r"an endless candidate between right ones: the errors are \[None, None, None\]"),
    ("test_inputs_cannot_be_changed", Optimist, "a candidate that writes to an input has the error None"),
]


@pytest.mark.parametrize(("test", "broken", "message"), CASES)
def test_broken_runners_are_detected(test: str, broken: type[Runner], message: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        getattr(suite, test)(broken, example_setup(tmp_path))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (OneSetup, "inputs that are not those of the reference"),
        (NoRanges, "inputs of other ranges"),
        (Strict, "a tolerance of 100"),
        (NoBaseline, "the unscheduled function as reference"),
    ],
)
def test_a_runner_that_confuses_setups_is_detected(broken: type[Runner], message: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=rf"{message}: the candidate .* has \(error, verified\)"):
        suite.test_setups_are_independent(broken, example_setup(tmp_path), tmp_path)
