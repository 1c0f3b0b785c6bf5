"""Conformance tests for runners: derive a class from `RunnerConformance` in a test file and define the runner's factory.

    class TestMine(RunnerConformance):
        @pytest.fixture
        def make(self):
            return MyRunner

Candidates are machine code of this machine, among them code that computes wrong results, crashes, or does not end.  A runner that calls
them in its own process sets `isolated = False`: then only candidates that return are run.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from tunesmith.codegen.artifact import Code
from tunesmith.codegen.llvm.compile import compile_object
from tunesmith.codegen.llvm.host import llvm_options
from tunesmith.codegen.llvm.host_entry import emit_entry
from tunesmith.ir.target.target import Target
from tunesmith.measure.evaluator.argument_data import make_inputs
from tunesmith.measure.evaluator.correctness import save_reference
from tunesmith.measure.evaluator.packed_call import load_call
from tunesmith.measure.policies import RacePolicy
from tunesmith.measure.runner import Runner, RunRequest, RunResult, RunSetup
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.support.errors import RunError

Make = Callable[..., Runner]
"""Factory of runners; the keyword argument `timeout` is the time limit of a candidate in seconds."""

SIZE = 60
PARAMS = tuple([ParamSpec(name, "float32", (SIZE,), name == "C") for name in "ABC"])
RACE = RacePolicy(min_repeat_ms=0.0, repeats=2, quiet_fraction=1e9)
"""Two samples, of one call each; a busy machine neither disturbs them nor makes fewer of them long enough."""
COMPARISON = TimingPolicy(number=3, repeats=3, window_s=0.0, quiet_fraction=math.inf)
UNIT = 20.0
"""Factor by which a time may differ from a wall clock's: units differ by 1,000, a busy or another machine by far less."""
TRIES = 5
VERIFICATIONS: tuple[tuple[str, float | None, bool], ...] = (
    ("winner", None, True),
    ("winner", 1e3, True),
    ("winner", 1e-9, False),
    ("always", 1e-9, True),
    ("never", None, False),
)
"""When to verify, the best time so far, and whether a candidate is verified then."""
ARM = '{"kind": "llvm", "mcpu": "neoverse-n1", "num_cores": 2}'

_ADD = """
  br label %loop
loop:
  %i = phi i64 [ 0, %start ], [ %next, %loop ]
  %pa = getelementptr float, ptr %a, i64 %i
  %pb = getelementptr float, ptr %b, i64 %i
  %pc = getelementptr float, ptr %c, i64 %i
  %x = load float, ptr %pa
  %y = load float, ptr %pb
  %s = fadd float %x, %y
  %z = fadd float %s, PLUS
  store float %z, ptr %pc
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, LAST
  br i1 %more, label %loop, label %done
done:
  ret void"""

CANDIDATES: dict[str, str] = {
    "right": _ADD.replace("PLUS", "0.0").replace("LAST", str(SIZE)),
    "wrong": _ADD.replace("PLUS", "1.0").replace("LAST", str(SIZE)),
    "partial": _ADD.replace("PLUS", "0.0").replace("LAST", str(SIZE - 1)),
    "idle": "  ret void",
    "null store": "  store volatile float 1.0, ptr null\n  ret void",
    "exit": "  call void @exit(i32 0)\n  ret void",
    "endless": "  br label %loop\nloop:\n  %x = load volatile float, ptr %a\n  br label %loop",
    "long": """
  br label %loop
loop:
  %i = phi i64 [ 0, %start ], [ %next, %loop ]
  %x = load volatile float, ptr %a
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, 1000000
  br i1 %more, label %loop, label %done
done:
  ret void""",
    "writes to an input": "  store float 1.0, ptr %a\n  ret void",
}
"""Bodies of C = A + B, and of functions that do something else, in LLVM IR."""


@cache
def example_code(name: str, extent: int = SIZE) -> Code:
    """The candidate of that name, for arrays of `extent` elements."""
    params = tuple([replace(p, shape=(extent,)) for p in PARAMS])
    head = "declare void @exit(i32)\n" if name == "exit" else ""
    kernel = f"{head}define void @k(ptr %a, ptr %b, ptr %c) {{\nstart:\n{CANDIDATES[name]}\n}}\n"
    return Code("add", compile_object(kernel + emit_entry("add", "k", params), llvm_options(Target("llvm"))))


def example_setup(folder: Path, key: str = "add", seed: int = 0, ranges: tuple[tuple[str, float, float], ...] = ()) -> RunSetup:
    """The setup of C = A + B on this machine, with a reference in a file of the folder."""
    path = folder / f"reference-{seed}.npz"
    a, b = make_inputs(PARAMS, seed, {name: (low, high) for name, low, high in ranges})
    save_reference(path, [a + b])
    return RunSetup(key, json.dumps(Target("llvm").to_json(facts=True)), PARAMS, seed, ranges, 1e-6, str(path))


def example_request(setup: RunSetup, name: str, verify: str = "winner", best: float | None = None) -> RunRequest:
    """A request to run the candidate of that name."""
    return RunRequest(setup, example_code(name), RACE, best, verify)


def invalid_codes() -> dict[str, Code]:
    """Code that cannot be called with the example's arguments, by its fault."""
    right = example_code("right")
    return {
        "data is no object": Code("add", b"no object"),
        "function does not exist": Code("sub", right.data),
        "function takes arrays of another size": example_code("idle", SIZE + 1),
    }


class RunnerConformance:
    """The tests; each docstring states a requirement."""

    isolated: ClassVar[bool] = True
    """Whether candidates run in other processes, with a time limit."""
    crashes: ClassVar[Sequence[str]] = ("null store", "exit")
    """Names of the candidates that end their process."""

    @pytest.fixture
    def make(self) -> Make:
        """A factory of runners; called with `timeout=seconds` if `isolated`."""
        raise NotImplementedError("override the fixture `make` to return a factory of runners")

    @pytest.fixture
    def setup(self, tmp_path: Path) -> RunSetup:
        """The setup of the example."""
        return example_setup(tmp_path)

    def test_results_are_in_the_order_of_the_requests(self, make: Make, setup: RunSetup) -> None:
        """One result for each request; no request gives no result; a batch is not modified."""
        with make() as runner:
            assert runner.slots >= 1, f"slots is {runner.slots}: at least one candidate is run at a time"
            names = ["right", "wrong", "right", "partial", "right"]
            requests = [example_request(setup, name) for name in names]
            given = list(requests)
            found = kinds(runner.run(requests), given)
            assert requests == given, "run modified the list of requests"
            wanted = [None if name == "right" else "wrong_result" for name in names]
            assert found == wanted, f"the candidates {names} have the errors {found}, expected {wanted}"
            assert runner.run([]) == [] == runner.compare([], COMPARISON), "no request must give no result"

    def test_times_follow_the_policy(self, make: Make, setup: RunSetup) -> None:
        """A good candidate has as many positive samples as the policy asks for; one that is clearly behind the best is timed once.

        A sample that other processes disturbed may be repeated; the candidate behind is timed once in one of `TRIES`.
        """
        late = example_request(setup, "right", best=1e-9)
        with make() as runner:
            request = example_request(setup, "right")
            longer = replace(request, policy=replace(RACE, repeats=RACE.repeats + 1))
            good, more, behind = runner.run([request, longer, late])
            for result in (good, more, behind):
                assert all(0 < s < 60 for s in result.samples), f"samples are seconds per call, got {result.samples}"
                assert result.seconds >= 0 and result.error is None
            for wanted, found in ((RACE.repeats, len(good.samples)), (RACE.repeats + 1, len(more.samples))):
                assert found == wanted, f"the policy asks for {wanted} samples, got {found}"
            counts = [len(behind.samples)]
            while counts[-1] != 1 and len(counts) < TRIES:
                counts.append(len(runner.run([late])[0].samples))
            assert counts[-1] == 1, f"a candidate clearly behind the best has {counts[-1]} samples, expected one"

    def test_times_are_those_of_a_wall_clock(self, make: Make, setup: RunSetup) -> None:
        """Samples are seconds per call: a call of about a millisecond takes as long by a clock of the suite, up to a factor of `UNIT`.

        One of `TRIES` must agree, as other processes may disturb each of them.
        """
        request = example_request(setup, "long", "never")
        bare = replace(request, setup=replace(setup, key="add without reference", reference=None), verify="always")
        with make() as runner:
            methods: dict[str, Callable[[], list[RunResult]]] = {
                "run": lambda: runner.run([request]),
                "compare": lambda: runner.compare([bare], COMPARISON),
            }
            for method, times in methods.items():
                pairs = []
                for _ in range(TRIES):
                    (result,) = times()
                    assert result.error is None, f"{method}: a long candidate has the error {result.error}"
                    pairs.append((statistics.median(result.samples), wall_seconds(request.code)))
                    if 1 / UNIT < pairs[-1][0] / pairs[-1][1] < UNIT:
                        break
                else:
                    reported, wall = pairs[-1]
                    raise AssertionError(f"{method} reports {reported:.3g} s for a call that takes {wall:.3g} s by a wall clock")

    def test_times_belong_to_their_candidates(self, make: Make, setup: RunSetup) -> None:
        """The candidate that takes hundreds of times longer than the others has the longest time, in any place; in one of `TRIES`."""
        names = (["right", "long", "right"], ["long", "right", "right"])
        bare = replace(setup, key="add without reference", reference=None)
        with make() as runner:
            for order in names:
                requests = [example_request(bare, name, "never") for name in order]
                methods: dict[str, Callable[[], list[RunResult]]] = {
                    "run": partial(runner.run, requests),
                    "compare": partial(runner.compare, [replace(r, verify="always") for r in requests], COMPARISON),
                }
                for method, times in methods.items():
                    for _ in range(TRIES):
                        seconds = [min(r.samples) for r in times()]
                        if max(seconds) == seconds[order.index("long")]:
                            break
                    else:
                        raise AssertionError(f"{method}: the candidates {order} take {seconds} s, and the long one is not the longest")

    def test_outputs_are_verified_on_request(self, make: Make, setup: RunSetup) -> None:
        """`winner` verifies a candidate before its time may become the best, `always` all of them, `never` none."""
        requests = [example_request(setup, name, verify, best) for verify, best, _ in VERIFICATIONS for name in ("right", "wrong")]
        with make() as runner:
            results = runner.run(requests)
        found = kinds(results, requests)
        for k, (verify, best, verified) in enumerate(VERIFICATIONS):
            case = f"verify={verify!r} with the best at {best}"
            right, wrong = results[2 * k : 2 * k + 2]
            assert (right.error, right.verified) == (None, verified), (
                f"{case}: a right candidate has {right.error}, verified={right.verified}"
            )
            wanted = "wrong_result" if verified else None
            assert found[2 * k + 1] == wanted, f"{case}: a wrong candidate has {wrong.error}, expected {wanted}"
            assert not wrong.verified, f"{case}: a wrong candidate is marked verified"

    def test_results_of_earlier_candidates_are_not_accepted(self, make: Make, setup: RunSetup) -> None:
        """A candidate that writes nothing, or not every element, is wrong, also directly after a right one."""
        with make() as runner:
            requests = [example_request(setup, name) for name in ("right", "idle", "right", "partial")]
            found = kinds(runner.run(requests), requests)
        assert found == [None, "wrong_result"] * 2, f"after right candidates, those that write too little have the errors {found[1::2]}"

    def test_failures_are_results(self, make: Make, setup: RunSetup) -> None:
        """Code that cannot be called is a `run_error` with a message and without samples; those before and after it are run."""
        invalid = invalid_codes()
        good = example_request(setup, "right")
        requests = [good, *[replace(good, code=code) for code in invalid.values()], good]
        with make() as runner:
            try:
                results = runner.run(requests)
            except Exception as error:
                raise AssertionError(f"run must report failures as results, but raised {type(error).__name__}: {error}") from error
        found = kinds(results, requests)
        assert found[0] is None and found[-1] is None, f"good candidates have the errors {found[0]} and {found[-1]}"
        for what, result in zip(invalid, results[1:-1], strict=True):
            assert result.error is not None, f"{what}: no error is reported"
            assert result.error.kind == "run_error", f"{what}: the error is a {result.error.kind}, expected a run_error"
            assert result.error.message, f"{what}: the error has no message"
            assert not result.samples and not result.verified, f"{what}: a candidate that was not called has samples, or is verified"

    def test_comparison_is_complete_and_in_order(self, make: Make, setup: RunSetup) -> None:
        """Every candidate is verified; right ones have all samples of the policy, the others an error and none."""
        good = example_request(setup, "right")
        requests = [good, example_request(setup, "wrong"), replace(good, code=invalid_codes()["function does not exist"]), good]
        with make() as runner:
            given = list(requests)
            results = runner.compare(requests, COMPARISON)
        assert requests == given, "compare modified the list of requests"
        found = kinds(results, requests)
        assert found == [None, "wrong_result", "run_error", None], f"the compared candidates have the errors {found}"
        assert [r.verified for r in results] == [True, False, False, True], "right candidates are verified in a comparison"
        samples = [len(r.samples) for r in results]
        assert samples == [3, 0, 0, 3], f"{samples} samples, expected [3, 0, 0, 3]"

    def test_setups_are_independent(self, make: Make, setup: RunSetup, tmp_path: Path) -> None:
        """Inputs come from seed and ranges, results are compared with the reference or the unscheduled function, as far as tolerated.

        Without a reference nothing is verified.
        """
        right, wrong = (None, True), ("wrong_result", False)
        seeded = example_setup(tmp_path, "add of other inputs", seed=9)
        ranged = example_setup(tmp_path, "add of large inputs", seed=10, ranges=(("A", 5.0, 6.0),))
        tolerant = replace(setup, key="add with tolerance", tolerance=100.0)
        based = replace(setup, key="add with a baseline", reference=None, baseline=example_code("right"))
        cases: list[tuple[str, RunSetup, str, tuple[str | None, bool]]] = [
            ("the example", setup, "right", right),
            ("inputs of another seed", seeded, "right", right),
            ("inputs that are not those of the reference", replace(seeded, key="add of mixed inputs", seed=8), "right", wrong),
            ("inputs of other ranges", ranged, "right", right),
            ("a tolerance of 100", tolerant, "wrong", right),
            ("the unscheduled function as reference", based, "right", right),
            ("the unscheduled function as reference", based, "wrong", wrong),
            ("no reference", replace(setup, key="add without reference", reference=None), "wrong", (None, False)),
            ("the example again", setup, "right", right),
        ]
        requests = [example_request(case, name) for _, case, name, _ in cases]
        with make() as runner:
            results = runner.run(requests)
        for (what, _, name, wanted), kind, result in zip(cases, kinds(results, requests), results, strict=True):
            found = (kind, result.verified)
            assert found == wanted, f"{what}: the candidate {name!r} has (error, verified) {found}, expected {wanted}"

    def test_invalid_setups_raise(self, make: Make, setup: RunSetup) -> None:
        """A RunError if no candidate can be run: a missing reference, another machine's target.  The runner stays usable."""
        invalid = {
            "reference does not exist": replace(setup, key="gone", reference="/nowhere.npz"),
            "target is another machine": replace(setup, key="arm", target=ARM),
        }
        with make() as runner:
            for what, bad in invalid.items():
                try:
                    results = runner.run([example_request(bad, "right")])
                except RunError as error:
                    assert str(error), f"{what}: the RunError has no message"
                else:
                    raise AssertionError(f"{what}: a RunError is expected, got {results}")
            assert runner.run([example_request(setup, "right")])[0].verified, "after an invalid setup, candidates are not run"

    def test_close_may_be_repeated(self, make: Make, setup: RunSetup) -> None:
        """Also without a run before, and at the end of a `with` block."""
        unused = make()
        for _ in range(2):
            unused.close()
        with make() as runner:
            runner.run([example_request(setup, "right")])
            runner.close()
            runner.close()

    def test_a_crash_costs_its_candidate(self, make: Make, setup: RunSetup) -> None:
        """A candidate that ends its process is a `crash`, also in a comparison; the others are run and verified."""
        if not self.isolated:
            pytest.skip("the runner is not isolated")
        good = example_request(setup, "right")
        with make() as runner:
            for name in self.crashes:
                requests = [good, example_request(setup, name), good]
                for method, results in {"run": runner.run(requests), "compare": runner.compare(requests, COMPARISON)}.items():
                    found = kinds(results, requests)
                    assert found == [None, "crash", None], f"{method}, candidate {name!r} between right ones: the errors are {found}"
                    assert [r.verified for r in results] == [True, False, True], f"{method}, candidate {name!r}: verified is wrong"
                    assert not results[1].samples, f"{method}, candidate {name!r}: a crash has samples"

    def test_a_slow_candidate_is_a_timeout(self, make: Make, setup: RunSetup) -> None:
        """A candidate that does not end is stopped and reported; the others are run and verified."""
        if not self.isolated:
            pytest.skip("the runner is not isolated")
        requests = [example_request(setup, name) for name in ("right", "endless", "right")]
        with make(timeout=2.0) as runner:
            found = kinds(runner.run(requests), requests)
        assert found == [None, "timeout", None], f"an endless candidate between right ones: the errors are {found}"

    def test_inputs_cannot_be_changed(self, make: Make, setup: RunSetup) -> None:
        """A candidate that writes to an input fails, and later candidates get the original input."""
        if not self.isolated:
            pytest.skip("the runner is not isolated")
        requests = [example_request(setup, name) for name in ("writes to an input", "right")]
        with make() as runner:
            bad, good = kinds(runner.run(requests), requests)
        assert bad in ("crash", "wrong_result"), f"a candidate that writes to an input has the error {bad}"
        assert good is None, f"the candidate after one that writes to an input has the error {good}"


def wall_seconds(code: Code) -> float:
    """Seconds of a call in this process: the least of five."""
    call = load_call(code, [np.zeros(p.shape, p.dtype) for p in PARAMS])
    times = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def kinds(results: Sequence[RunResult], requests: Sequence[RunRequest]) -> list[str | None]:
    """The error kinds of results; raises an AssertionError unless there is one result for each request."""
    assert len(results) == len(requests), f"{len(requests)} candidates have {len(results)} results: one is lost, or invented"
    return [None if r.error is None else r.error.kind for r in results]
