"""Conformance tests for builders: derive a class from `BuilderConformance` in a test file and define the builder's factory.

    class TestMine(BuilderConformance):
        @pytest.fixture
        def make(self):
            return MyBuilder

A builder that compiles in the calling process sets `isolated = False`; then a slow or crashing compiler is its caller's problem.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from tunesmith.codegen.artifact import Artifact
from tunesmith.ir.target.target import Target
from tunesmith.measure.builder import Builder, BuildResult
from tunesmith.measure.candidate import BuildRequest, MeasureTask, NamedTrace
from tunesmith.measure.evaluator.packed_call import load_call
from tunesmith.ops import tensor_expression as te
from tunesmith.runtime.elf_symbols import read_symbols
from tunesmith.schedule.schedule import Schedule

Make = Callable[..., Builder]
"""Factory of builders; the keyword argument `timeout` is the time limit of a candidate in seconds."""

SIZE = 60
"""Elements of the example's arrays."""
MACHINES = {"aarch64": "llvm -mcpu=neoverse-n1 -num-cores=4", "x86_64": "llvm -mcpu=x86-64-v3 -num-cores=4"}
"""Targets by the machine of their code."""


@cache
def example_task(name: str = "added") -> MeasureTask:
    """C = A + B with a sketch of one parameter, the size of the vectorized tiles; the function has the given name."""
    a, b = te.placeholder((SIZE,), name="A"), te.placeholder((SIZE,), name="B")
    func = te.create_prim_func([a, b, te.compute((SIZE,), lambda i: a[i] + b[i], name="C")], name)
    s = Schedule(func, parametric=True)
    (i,) = s.get_loops(s.get_block("C"))
    _, inner = s.split(i, [None, *s.sample_tile(i, 2, "i", domains=[(4, 8, 16, 20)])])
    s.vectorize(inner)
    return MeasureTask(func, [NamedTrace("tiled", s.trace)])


def example_requests(names: Sequence[str] = ("added",), tiles: Sequence[int] = (4, 8, 16, 20)) -> list[BuildRequest]:
    """One request for each function and tile size, for this machine."""
    target = json.dumps(Target("llvm").to_json(facts=True))
    return [example_task(name).request((0, (tile,)), target) for name in names for tile in tiles]


def invalid_requests() -> dict[str, BuildRequest]:
    """Requests that no builder can serve, by their fault."""
    good = example_requests()[0]
    return {
        "row violates a constraint": replace(good, row=(5000,)),
        "row is too short": replace(good, row=()),
        "workload is no script": replace(good, workload="no program"),
        "trace is no JSON": replace(good, trace="["),
        "trace has an unknown primitive": replace(good, trace='[["no_such", {}, []]]'),
        "target has an unknown kind": replace(good, target='{"kind": "no_such"}'),
        "target is no JSON": replace(good, target="{"),
    }


class BuilderConformance:
    """The tests; each docstring states a requirement."""

    isolated: ClassVar[bool] = True
    """Whether candidates are compiled in other processes, with a time limit."""

    @pytest.fixture
    def make(self) -> Make:
        """A factory of builders; called with `timeout=seconds` if `isolated`."""
        raise NotImplementedError("override the fixture `make` to return a factory of builders")

    @pytest.fixture
    def workers(self) -> Callable[[Builder], Sequence[int]]:
        """A function from a builder to the ids of those of its processes that have a candidate now."""
        pytest.skip("the fixture `workers` is not defined: processes are not killed")

    def test_results_are_in_the_order_of_the_requests(self, make: Make) -> None:
        """Also if there are more candidates than slots; no request gives no result; a batch is not modified."""
        with make() as builder:
            assert builder.slots >= 1, f"slots is {builder.slots}: at least one candidate is built at a time"
            names = [f"added_{i}" for i in range(2 * builder.slots + 1)]
            requests = example_requests(names, (8,))
            given = list(requests)
            results = builder.build(requests)
            assert requests == given, "build modified the list of requests"
            _one_result_each(requests, results)
            assert [built(r).functions for r in results] == [(name,) for name in names], "results are not in the order of the requests"
            assert builder.build([]) == [], "no request must give no result"

    def test_code_computes_the_function(self, make: Make) -> None:
        """The artifact can be loaded and called; it describes its target, and times are not negative."""
        with make() as builder:
            for result in builder.build(example_requests(tiles=(4, 20))):
                artifact = built(result)
                assert artifact.target["kind"] == "llvm" and result.seconds >= 0
                a, b, c = (np.arange(SIZE, dtype=np.float32) * k for k in (1, 2, 0))
                load_call(artifact.code(), [a, b, c])()
                assert np.array_equal(c, 3 * a), f"the built code computes {c[:4]}..., expected {3 * a[:4]}..."

    def test_equal_requests_give_equal_code(self, make: Make) -> None:
        """Within a batch, in another order, and in another builder: everything but times is equal, and rows differ in their code."""
        requests = example_requests()
        with make() as first, make() as second:
            once = [built(r).data for r in first.build(requests)]
            assert len(set(once)) == len(requests), "different rows have equal code"
            for what, other in {
                "a builder is called again": first.build(requests),
                "the requests are reversed": first.build(requests[::-1])[::-1],
                "another builder is used": second.build(requests),
            }.items():
                assert [built(r).data for r in other] == once, f"equal requests give different code if {what}"

    def test_failures_are_results(self, make: Make) -> None:
        """An invalid candidate is a `build_error` with a message; those before and after it, and those of the next batch, are built.

        Each invalid candidate is between valid ones of different functions, so that no error is the one of another program.
        """
        invalid = invalid_requests()
        good = example_requests([f"added_{i}" for i in range(len(invalid) + 2)], (8,))
        with make() as builder:
            requests = [good[0], *[r for pair in zip(invalid.values(), good[1:], strict=False) for r in pair]]
            try:
                results = builder.build(requests)
            except Exception as error:
                raise AssertionError(f"build must report failures as results, but raised {type(error).__name__}: {error}") from error
            _one_result_each(requests, results)
            built(results[0])
            for what, result, after in zip(invalid, results[1::2], results[2::2], strict=True):
                assert after.error is None, f"a valid candidate after an invalid one ({what}) is not built: {after.error.message}"
                assert result.error is not None, f"{what}: no error is reported"
                assert result.error.kind == "build_error", f"{what}: the error is a {result.error.kind}, expected a build_error"
                assert result.error.message, f"{what}: the error has no message"
            for last in builder.build([good[-1], example_requests()[0]]):  # the second has the function of the invalid candidates
                assert last.error is None, f"a valid candidate of the next batch is not built: {last.error.message}"

    def test_code_is_for_the_target(self, make: Make) -> None:
        """The artifact describes the target of its request, and its code is of that machine, also within one batch."""
        texts = {machine: json.dumps(Target(text).to_json(facts=True)) for machine, text in MACHINES.items()}
        good = example_requests(tiles=(8,))[0]
        with make() as builder:
            results = builder.build([replace(good, target=text) for text in texts.values()])
        for (machine, text), result in zip(texts.items(), results, strict=True):
            artifact, target = built(result), Target.from_json(json.loads(text))
            found = Target.from_json(artifact.target)
            assert found.to_json() == target.to_json(), f"the code is described as built for {found}, and the request is for {target}"
            kind = read_symbols(artifact.data).machine
            assert kind == machine, f"the code for {target} is code of {kind}, expected {machine}"

    def test_no_files_are_left(self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The folder for temporary files and the current folder are empty after the end of the builder."""
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.chdir(tmp_path)
        with make() as builder:
            for result in builder.build(example_requests(tiles=(4, 8))):
                built(result)
        left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
        assert not left, f"the builder left {len(left)} file(s): {', '.join(left[:5])}"

    def test_the_law_of_sketches_is_checked_on_request(self, make: Make) -> None:
        """With `check_law` a candidate is also replayed from its trace; the report is empty if both programs are equal."""
        with make() as builder:
            for result in builder.build([replace(r, check_law=True) for r in example_requests()]):
                assert built(result) and result.broken_law == "", f"a lawful candidate is reported: {result.broken_law}"

    def test_close_may_be_repeated(self, make: Make) -> None:
        """Also without a build before, and at the end of a `with` block."""
        unused = make()
        for _ in range(2):
            unused.close()
        with make() as builder:
            builder.build(example_requests()[:1])
            builder.close()
            builder.close()

    def test_slow_candidates_are_timeouts(self, make: Make) -> None:
        """Every candidate that exceeds the limit is a `timeout`, reported as a result."""
        if not self.isolated:
            pytest.skip("the builder is not isolated")
        requests = example_requests(tiles=(4, 8))
        kinds: set[str | None] = set()
        for _ in range(5):  # on a busy machine an answer may arrive before the builder looks at its clock
            with make(timeout=1e-4) as builder:
                results = builder.build(requests)
            _one_result_each(requests, results)
            kinds = {None if result.error is None else result.error.kind for result in results}
            if kinds == {"timeout"}:
                break
        assert kinds == {"timeout"}, f"candidates that take longer than their limit are reported as {kinds}, expected timeout"

    def test_death_of_a_worker_costs_its_candidate_at_most(self, make: Make, workers: Callable[[Builder], Sequence[int]]) -> None:
        """A killed process is replaced: its candidate is a `crash` or is built again, all others are built."""
        requests = example_requests([f"added_{i}" for i in range(6)], (8,))
        with make() as builder:
            killed: list[int] = []
            killer = threading.Thread(target=_kill_one, args=(builder, workers, killed))
            killer.start()
            results = builder.build(requests)
            killer.join()
            assert len(killed) == 1, "no process had a candidate: the fixture `workers` returned no process id"
            _one_result_each(requests, results)
            errors = [r.error.kind for r in results if r.error is not None]
            assert errors in ([], ["crash"]), f"one process was killed, and the errors are {errors}: expected none, or one crash"
            again = builder.build(requests)
            assert [r.error for r in again] == [None] * len(requests), "after the death of a process, candidates fail"


def built(result: BuildResult) -> Artifact:
    """The code of a candidate that must be built; raises an AssertionError with the error if it is not."""
    assert result.error is None, f"a valid candidate is not built: {result.error.kind}: {result.error.message}"
    assert result.artifact is not None, "a result has neither code nor an error"
    return result.artifact


def _one_result_each(requests: Sequence[BuildRequest], results: Sequence[BuildResult]) -> None:
    assert len(results) == len(requests), f"{len(requests)} candidates have {len(results)} results: one is lost, or invented"
    for result in results:
        assert (result.artifact is None) != (result.error is None), "a result must have either code or an error, not both or none"


def _kill_one(builder: Builder, workers: Callable[[Builder], Sequence[int]], killed: list[int]) -> None:
    """Kill one process that has a candidate."""
    until = time.monotonic() + 60
    while not killed and time.monotonic() < until:
        for pid in list(workers(builder))[:1]:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        time.sleep(0.0005)
