"""Run the conformance suite on builders, and check that each of its tests detects a builder that breaks the contract."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tunesmith.ir.target.target import Target
from tunesmith.measure.builder import Builder, BuildResult, InProcessBuilder
from tunesmith.measure.candidate import BuildRequest
from tunesmith.measure.local_builder import LocalBuilder
from tunesmith.measure.records.record import ErrorInfo
from tunesmith.testing.builder_conformance import BuilderConformance, Make

suite = BuilderConformance()


class TestInProcess(BuilderConformance):
    isolated: ClassVar[bool] = False

    @pytest.fixture
    def make(self) -> Make:
        return InProcessBuilder


class TestLocal(BuilderConformance):
    @pytest.fixture
    def make(self) -> Make:
        return partial(LocalBuilder, 2)

    @pytest.fixture
    def workers(self) -> Callable[[Any], Sequence[int]]:
        return busy


def busy(builder: Any) -> list[int]:
    """Ids of the processes of a LocalBuilder that have a candidate."""
    return [w.process.pid for w in list(builder._pool._dispatcher.workers) if w.job is not None]


class Broken(InProcessBuilder):
    """A builder whose results a subclass damages."""

    def __init__(self, timeout: float | None = None) -> None:
        super().__init__()

    def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        return self.damage(super().build(requests))

    def damage(self, results: list[BuildResult]) -> list[BuildResult]:
        return results


class Unordered(Broken):
    def damage(self, results: list[BuildResult]) -> list[BuildResult]:
        return results[::-1]


class Loses(Broken):
    """Drops candidates that fail."""

    def damage(self, results: list[BuildResult]) -> list[BuildResult]:
        return [r for r in results if r.error is None]


class Empty(Broken):
    def damage(self, results: list[BuildResult]) -> list[BuildResult]:
        return [replace(r, artifact=None, error=None) for r in results]


class Invents(Broken):
    """Returns a result for no request."""

    def damage(self, results: list[BuildResult]) -> list[BuildResult]:
        return results or [BuildResult(None, ErrorInfo("build_error", "?"), 0.0)]


class Pops(Broken):
    """Empties the caller's list."""

    def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        results = super().build(requests)
        requests.clear()  # type: ignore[attr-defined]
        return results


class Raises(Broken):
    def damage(self, results: list[BuildResult]) -> list[BuildResult]:
        for r in results:
            if r.error is not None:
                raise ValueError(r.error.message)
        return results


class Crashes(Broken):
    """Reports every failure as a crash."""

    def damage(self, results: list[BuildResult]) -> list[BuildResult]:
        return [r if r.error is None else replace(r, error=ErrorInfo("crash", r.error.message)) for r in results]


class Silent(Broken):
    def damage(self, results: list[BuildResult]) -> list[BuildResult]:
        return [r if r.error is None else replace(r, error=ErrorInfo("build_error", "")) for r in results]


class Wrong(Broken):
    """Builds the same code for every row, of another function."""

    def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        return super().build([replace(r, row=(8,), workload=r.workload.replace("A[v", "B[v")) for r in requests])


class Counts(Broken):
    """Appends the number of the batch to the code."""

    batches = 0

    def damage(self, results: list[BuildResult]) -> list[BuildResult]:
        type(self).batches += 1
        return [r if r.artifact is None else replace(r, artifact=replace(r.artifact, data=b"%d" % self.batches)) for r in results]


class Lawless(Broken):
    def damage(self, results: list[BuildResult]) -> list[BuildResult]:
        return [replace(r, broken_law="it differs") for r in results]


class ClosesOnce(Broken):
    closed = False

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True


class NoSlots(Broken):
    slots = 0


class RepeatsErrors(Broken):
    """Reports the error of one program for the next one, in the same batch."""

    def damage(self, results: list[BuildResult]) -> list[BuildResult]:
        found: list[BuildResult] = []
        for k, r in enumerate(results):
            before = results[k - 1].error if k else None
            found.append(replace(r, artifact=None, error=before) if before and k + 1 < len(results) else r)
        return found


class RemembersErrors(Broken):
    """Reports the error of a program for the programs of later batches that it has not built yet."""

    error: ErrorInfo | None = None

    def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        before, results = self.error, super().build(requests)
        self.error = next((r.error for r in results if r.error is not None), before)
        return [replace(r, artifact=None, error=before) if before and r.error is None else r for r in results]


class RemembersFunctions(Broken):
    """Reports the error of a program for all later candidates of its function."""

    def __init__(self, timeout: float | None = None) -> None:
        super().__init__()
        self.errors: dict[str, ErrorInfo] = {}

    def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        before, results = dict(self.errors), super().build(requests)
        self.errors |= {q.workload: r.error for q, r in zip(requests, results, strict=True) if r.error is not None}
        paired = zip(requests, results, strict=True)
        return [replace(r, artifact=None, error=before[q.workload]) if q.workload in before else r for q, r in paired]


class Litters(Broken):
    """Leaves the object code of each candidate in a file."""

    def damage(self, results: list[BuildResult]) -> list[BuildResult]:
        for _ in results:
            handle, _ = tempfile.mkstemp(suffix=".o")
            os.close(handle)
        return results


class Native(Broken):
    """Builds for this machine, for every target."""

    def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        target = json.dumps(Target("llvm").to_json(facts=True))
        return super().build([replace(r, target=target) for r in requests])


class Relabels(Native):
    """Builds for this machine, and says that it built for the target."""

    def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        results = super().build(requests)
        pairs = zip(requests, results, strict=True)
        return [r if r.artifact is None else replace(r, artifact=replace(r.artifact, target=json.loads(q.target))) for q, r in pairs]


CASES: list[tuple[str, type[Builder], str]] = [
    ("test_results_are_in_the_order_of_the_requests", Unordered, "not in the order of the requests"),
    ("test_results_are_in_the_order_of_the_requests", Empty, "either code or an error"),
    ("test_results_are_in_the_order_of_the_requests", Invents, "no request must give no result"),
    ("test_results_are_in_the_order_of_the_requests", Pops, "modified the list of requests"),
    ("test_results_are_in_the_order_of_the_requests", NoSlots, "slots is 0"),
    ("test_code_computes_the_function", Wrong, "the built code computes"),
    ("test_equal_requests_give_equal_code", Wrong, "different rows have equal code"),
    ("test_equal_requests_give_equal_code", Counts, "different rows|equal requests give different code"),
    ("test_failures_are_results", Raises, "must report failures as results, but raised ValueError"),
    ("test_failures_are_results", Loses, "15 candidates have 8 results"),
    ("test_failures_are_results", Crashes, "the error is a crash, expected a build_error"),
    ("test_failures_are_results", Silent, "the error has no message"),
    ("test_failures_are_results", RepeatsErrors, "a valid candidate after an invalid one .row violates a constraint. is not built"),
    ("test_failures_are_results", RemembersFunctions, "a valid candidate of the next batch is not built"),
    ("test_failures_are_results", RemembersErrors, "a valid candidate of the next batch is not built"),
    ("test_code_is_for_the_target", Native, "the code is described as built for"),
    ("test_code_is_for_the_target", Relabels, r"is code of x86_64, expected aarch64"),
    ("test_the_law_of_sketches_is_checked_on_request", Lawless, "a lawful candidate is reported: it differs"),
    ("test_close_may_be_repeated", ClosesOnce, "closed twice"),
    ("test_slow_candidates_are_timeouts", Broken, "expected timeout"),
]


@pytest.mark.parametrize(("test", "broken", "message"), CASES)
def test_broken_builders_are_detected(test: str, broken: type[Builder], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        getattr(suite, test)(broken)


def test_files_left_behind_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match=r"the builder left 2 file\(s\): \S+\.o"):
        suite.test_no_files_are_left(Litters, tmp_path, monkeypatch)


class DiesWithItsWorker(LocalBuilder):
    """Does not replace a killed process: all remaining candidates are crashes."""

    def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        super().build(requests)
        return [BuildResult(None, ErrorInfo("crash", "dead"), 0.0) for _ in requests]


def test_candidates_lost_with_a_worker_are_detected() -> None:
    with pytest.raises(AssertionError, match="one process was killed, and the errors are"):
        suite.test_death_of_a_worker_costs_its_candidate_at_most(partial(DiesWithItsWorker, 1), busy)
