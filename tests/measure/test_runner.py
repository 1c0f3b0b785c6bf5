"""Test the runner interface on all runners, and crashes, timeouts and corruption caused by faulty machine code."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.artifact import Code
from tunesmith.codegen.llvm.compile import compile_object
from tunesmith.codegen.llvm.host import llvm_options
from tunesmith.codegen.llvm.host_entry import emit_entry
from tunesmith.ir.target.target import Target
from tunesmith.measure.builder import InProcessBuilder
from tunesmith.measure.candidate import MeasureTask
from tunesmith.measure.evaluator.argument_data import make_inputs
from tunesmith.measure.evaluator.correctness import save_reference
from tunesmith.measure.evaluator.cpu_evaluator import CpuEvaluator
from tunesmith.measure.evaluator.evaluators import Evaluators
from tunesmith.measure.local_runner import InProcessRunner, LocalRunner, RunJob
from tunesmith.measure.policies import RacePolicy
from tunesmith.measure.runner import Runner, RunRequest, RunResult, RunSetup
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.threads import num_threads, set_num_threads
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.support.errors import InternalError, RunError

TARGET = Target("llvm")
TARGET_TEXT = json.dumps(TARGET.to_json(facts=True))
PARAMS = tuple(ParamSpec(name, "float32", (60,), name == "C") for name in "ABC")
QUICK = RacePolicy(min_repeat_ms=0.01, repeats=2, quiet_fraction=1e9)
NOISY = TimingPolicy(number=3, repeats=2, window_s=0.0, quiet_fraction=float("inf"))


def kernel(body: str, head: str = "", params: tuple[ParamSpec, ...] = PARAMS) -> bytes:
    """Object code of `add` with this body; %a, %b and %c are its arguments."""
    names = ", ".join(f"ptr %{p.name.lower()}" for p in params)
    text = f"{head}\ndefine void @k({names}) {{\nstart:\n{body}\n}}\n" + emit_entry("add", "k", params)
    return compile_object(text, llvm_options(TARGET))


def adding(first: int = 0, last: int = 60, plus: str = "0.0") -> str:
    """C[i] = A[i] + B[i] + plus for first <= i < last; reads of the inputs are clamped to their bounds."""
    return f"""  br label %loop
loop:
  %i = phi i64 [ {first}, %start ], [ %next, %loop ]
  %j = call i64 @llvm.smax.i64(i64 %i, i64 0)
  %k = call i64 @llvm.smin.i64(i64 %j, i64 59)
  %pa = getelementptr float, ptr %a, i64 %k
  %pb = getelementptr float, ptr %b, i64 %k
  %pc = getelementptr float, ptr %c, i64 %i
  %x = load float, ptr %pa
  %y = load float, ptr %pb
  %s = fadd float %x, %y
  %z = fadd float %s, {plus}
  store float %z, ptr %pc
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, {last}
  br i1 %more, label %loop, label %done
done:
  ret void"""


CLAMP = "declare i64 @llvm.smax.i64(i64, i64)\ndeclare i64 @llvm.smin.i64(i64, i64)"
STORE_NULL = "  store volatile float 1.0, ptr null\n  ret void"
FOR_EVER = "  br label %loop\nloop:\n  %x = load volatile float, ptr %a\n  br label %loop"
HUGE_ARENA = f"@arena = internal global [{64 << 30} x i8] zeroinitializer, align 4096"
USES_ARENA = "  store volatile i8 1, ptr @arena\n  ret void"


def good() -> bytes:
    return kernel(adding(), CLAMP)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> RunSetup:
    path = tmp_path_factory.mktemp("reference") / "add.npz"
    a, b = make_inputs(PARAMS)
    save_reference(path, [a + b])
    return RunSetup("add", TARGET_TEXT, PARAMS, 0, (), 1e-6, str(path))


@pytest.fixture(scope="module", params=["in process", "local", "ray"])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    with made_runner(request) as made:
        yield made


def made_runner(request: pytest.FixtureRequest, **limits: Any) -> Runner:
    if request.param == "in process":
        return InProcessRunner()
    if request.param == "local":
        return LocalRunner(2, **limits)
    cluster = request.getfixturevalue("ray_cluster")
    from tunesmith.measure.ray.ray_runner import RayRunner

    return RayRunner(cluster, TARGET, 1, **limits)


@pytest.fixture(scope="module", params=["local", "ray"])
def isolated(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """A runner in another process, with limits."""
    with made_runner(request, timeout=4.0, memory_limit=4 << 30) as made:
        yield made


@pytest.fixture(scope="module")
def local() -> Iterator[LocalRunner]:
    with LocalRunner(2, timeout=4.0, memory_limit=4 << 30) as made:
        yield made


def ask(setup: RunSetup, code: bytes, function: str = "add", **changes: object) -> RunRequest:
    return replace(RunRequest(setup, Code(function, code), QUICK), **changes)  # type: ignore[arg-type]


def kind(result: RunResult) -> str | None:
    return None if result.error is None else result.error.kind


def test_results_are_in_the_order_of_the_requests(runner: Runner, setup: RunSetup) -> None:
    wrong = kernel(adding(plus="1.0"), CLAMP)
    results = runner.run([ask(setup, good()), ask(setup, wrong), ask(setup, good(), verify="never")])
    assert runner.run([]) == [] == runner.compare([], NOISY)
    assert [kind(r) for r in results] == [None, "wrong_result", None]
    assert [r.verified for r in results] == [True, False, False]
    assert all(len(r.samples) == 2 and min(r.samples) > 0 and r.clean and r.seconds > 0 and r.facts["calls"] >= 1 for r in results)
    assert results[1].error is not None and "output C: 60 of 60 elements are wrong, the first at [0]: got " in results[1].error.message


@pytest.mark.parametrize(
    ("verify", "best", "verified"),
    [("winner", None, True), ("winner", 1e3, True), ("winner", 1e-9, False), ("always", 1e-9, True), ("never", None, False)],
)
def test_winners_are_verified(runner: Runner, setup: RunSetup, verify: str, best: float | None, verified: bool) -> None:
    wrong = kernel(adding(plus="1.0"), CLAMP)
    right_one, wrong_one = runner.run([ask(setup, code, verify=verify, best=best) for code in (good(), wrong)])
    assert (kind(right_one), right_one.verified) == (None, verified)
    assert (kind(wrong_one), wrong_one.verified) == ("wrong_result" if verified else None, False)


def test_results_of_earlier_candidates_are_not_accepted(runner: Runner, setup: RunSetup) -> None:
    lazy = kernel("  ret void")
    partial = kernel(adding(last=59), CLAMP)
    results = runner.run([ask(setup, good()), ask(setup, lazy), ask(setup, partial)])
    assert [kind(r) for r in results] == [None, "wrong_result", "wrong_result"]
    assert results[2].error is not None and "1 of 60 elements are wrong, the first at [59]: got nan" in results[2].error.message


def test_candidates_that_cannot_be_called_are_run_errors(runner: Runner, setup: RunSetup) -> None:
    other = tuple(replace(p, shape=(61,)) for p in PARAMS)
    needs = kernel("  call void @tunesmith_nowhere()\n  ret void", "declare void @tunesmith_nowhere()")
    requests = [
        ask(setup, kernel("  ret void", params=other)),
        ask(setup, needs),
        ask(setup, b"no object"),
        ask(setup, good(), function="sub"),
        ask(setup, kernel("  ret void", params=other), verify="always"),
    ]
    results = runner.run(requests)
    assert [kind(r) for r in results] == ["run_error"] * 5
    texts = ("expected float32[61], got shape [60]", "tunesmith_nowhere", "not a 64-bit", "no function 'sub'", "expected float32[61]")
    for result, text in zip(results, texts, strict=True):
        assert result.error is not None and text in result.error.message


def test_candidate_clearly_behind_is_timed_once(runner: Runner, setup: RunSetup) -> None:
    (result,) = runner.run([ask(setup, good(), best=1e-9, policy=replace(QUICK, repeats=50))])
    assert len(result.samples) == 1 and result.error is None


def test_caches_can_be_flushed(runner: Runner, setup: RunSetup) -> None:
    (result,) = runner.run([ask(setup, good(), policy=replace(QUICK, flush_bytes=1 << 16))])
    assert result.facts["calls"] == 1 and len(result.samples) == 2


def test_compare_verifies_and_interleaves(runner: Runner, setup: RunSetup) -> None:
    wrong = kernel(adding(plus="1.0"), CLAMP)
    results = runner.compare([ask(setup, good()), ask(setup, wrong), ask(setup, good(), function="sub"), ask(setup, good())], NOISY)
    assert [kind(r) for r in results] == [None, "wrong_result", "run_error", None]
    assert [r.verified for r in results] == [True, False, False, True]
    assert [len(r.samples) for r in results] == [2, 0, 0, 2]


def test_without_a_reference_nothing_is_verified(runner: Runner, setup: RunSetup) -> None:
    bare = replace(setup, key="bare", reference=None)
    results = runner.run([ask(bare, kernel("  ret void"), verify=verify) for verify in ("winner", "always")])
    assert [(kind(r), r.verified) for r in results] == [(None, False)] * 2


def test_the_unscheduled_function_serves_as_reference(runner: Runner, setup: RunSetup) -> None:
    based = replace(setup, key="based", reference=None, baseline=Code("add", good()))
    results = runner.run([ask(based, good()), ask(based, kernel(adding(plus="1.0"), CLAMP))])
    assert [(kind(r), r.verified) for r in results] == [(None, True), ("wrong_result", False)]


def test_functions_that_update_an_output_or_write_a_part_of_it(runner: Runner, setup: RunSetup) -> None:
    def update(by: str) -> bytes:
        return kernel(f"  %x = load float, ptr %c\n  %y = fadd float %x, {by}\n  store float %y, ptr %c\n  ret void")

    updated = replace(setup, key="updated", reference=None, baseline=Code("add", update("1.0")))
    results = runner.run([ask(updated, update(by), verify="always") for by in ("1.0", "2.0")])
    partial = replace(setup, key="partial", reference=None, baseline=Code("add", kernel(adding(last=50), CLAMP)))
    results += runner.run([ask(partial, kernel(adding(last=n), CLAMP), verify="always") for n in (50, 49, 51)])
    assert [(kind(r), r.verified) for r in results] == [(None, True), ("wrong_result", False), (None, True), *[("wrong_result", False)] * 2]


def test_errors_of_the_setup_are_raised(runner: Runner, setup: RunSetup) -> None:
    with pytest.raises(RunError, match="cannot read the reference"):
        runner.run([ask(replace(setup, key="gone", reference="/nowhere.npz"), good())])
    with pytest.raises(RunError, match="cannot run here"):
        runner.run([ask(replace(setup, key="arm", target='{"kind": "llvm", "mcpu": "neoverse-n1", "num_cores": 2}'), good())])


def test_bfloat16(runner: Runner, setup: RunSetup, tmp_path: Path) -> None:
    params = (ParamSpec("A", "bfloat16", (8,)), ParamSpec("C", "bfloat16", (8,), True))
    (a,) = make_inputs(params)
    save_reference(tmp_path / "r.npz", [a])
    copies = replace(setup, key="bf16", params=params, reference=str(tmp_path / "r.npz"))
    copy, part = (kernel(f"  %x = load {t}, ptr %a\n  store {t} %x, ptr %c\n  ret void", params=params) for t in ("<8 x i16>", "<7 x i16>"))
    whole, partial = runner.run([ask(copies, copy, verify="always"), ask(copies, part, verify="always")])
    assert whole.verified and kind(partial) == "wrong_result"
    assert partial.error is not None and "1 of 8 elements are wrong, the first at [7]: got nan" in partial.error.message


# ---- faults ----------------------------------------------------------------------------------------------------------


FAULTS: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "null store": (lambda: kernel(STORE_NULL), "crash", "while running it: the worker process died (signal SIGSEGV)"),
    "exit": (lambda: kernel("  call void @exit(i32 0)\n  ret void", "declare void @exit(i32)"), "crash", "exit status 0"),
    "endless": (lambda: kernel(FOR_EVER), "timeout", "while running it: killed after 4 s"),
    "memory": (lambda: kernel(USES_ARENA, HUGE_ARENA), "out_of_memory", "Failed to allocate mapped memory"),
    "illegal instruction": (lambda: kernel("  call void @llvm.trap()\n  ret void", "declare void @llvm.trap()"), "crash", "signal SIGILL"),
    "past the end": (lambda: kernel(adding(last=1000), CLAMP), "crash", "signal SIGSEGV"),
    "input": (lambda: kernel("  store float 1.0, ptr %a\n  ret void"), "crash", "signal SIGSEGV"),
}
"""Code, error kind and message.  The last three are signals like the first, and seconds on Ray, so they run in a local process only."""


@pytest.mark.parametrize(
    ("isolated", "fault"),
    [("local", name) for name in FAULTS] + [("ray", name) for name in list(FAULTS)[:4]],
    indirect=["isolated"],
)
def test_fault_affects_only_its_candidate(isolated: Runner, setup: RunSetup, fault: str) -> None:
    code, wanted, message = FAULTS[fault]
    bad, after = isolated.run([ask(setup, code()), ask(setup, good())])
    assert kind(bad) == wanted and bad.error is not None and message in bad.error.message
    assert not bad.verified and bad.samples == ()
    assert (kind(after), after.verified) == (None, True)


@pytest.mark.parametrize(("first", "last", "verify"), [(0, 61, "winner"), (-1, 60, "always"), (0, 61, "never")])
def test_corrupted_process_is_replaced(local: LocalRunner, setup: RunSetup, first: int, last: int, verify: str) -> None:
    pool = local._pool
    bad, after = local.run([ask(setup, kernel(adding(first, last), CLAMP), verify=verify), ask(setup, good())])
    assert kind(bad) == "wrong_result" and bad.error is not None and bad.error.message == "wrote outside its argument C"
    assert local._pool is not pool, "other memory of the process may be damaged"
    assert (kind(after), after.verified) == (None, True)


def test_compare_falls_back_to_single_runs_after_a_crash(isolated: Runner, setup: RunSetup) -> None:
    results = isolated.compare([ask(setup, good()), ask(setup, kernel(STORE_NULL)), ask(setup, good())], NOISY)
    assert [kind(r) for r in results] == [None, "crash", None]
    assert [r.verified for r in results] == [True, False, True]


@pytest.mark.parametrize("corrupted", [False, True])
def test_the_process_releases_its_evaluators_unless_they_are_corrupted(
    setup: RunSetup, monkeypatch: pytest.MonkeyPatch, corrupted: bool
) -> None:
    closed: list[object] = []
    monkeypatch.setattr(CpuEvaluator, "close", lambda evaluator: closed.append(evaluator))
    job = RunJob()
    assert job(("prepare", (setup,))) == (None, False)
    monkeypatch.setattr(Evaluators, "corrupted", corrupted)
    job.close()
    assert len(closed) == (not corrupted)


def test_guards_overwritten_during_compare_raise(setup: RunSetup) -> None:
    evaluator = CpuEvaluator()
    once = """  %n = load i32, ptr @count
  %m = add i32 %n, 1
  store i32 %m, ptr @count
  %bad = icmp sgt i32 %n, 0
  br i1 %bad, label %out, label %done
out:
  %p = getelementptr float, ptr %c, i64 60
  store float 1.0, ptr %p
  br label %done
done:
  ret void"""
    with pytest.raises(RunError, match="while 1 candidates were compared, one of them wrote outside its argument C"):
        evaluator.compare([ask(replace(setup, key="bare", reference=None), kernel(once, "@count = internal global i32 0"))], NOISY)
    assert evaluator.corrupted


def test_baseline_that_writes_out_of_bounds_is_an_internal_error(setup: RunSetup) -> None:
    bad = replace(setup, key="bad", reference=None, baseline=Code("add", kernel(adding(last=61), CLAMP)))
    with pytest.raises(InternalError, match="the unscheduled function add wrote outside its argument C"):
        CpuEvaluator().prepare(bad)


def test_setup_that_ends_the_process_raises(isolated: Runner, setup: RunSetup) -> None:
    bad = replace(setup, key="bad", reference=None, baseline=Code("add", kernel(STORE_NULL)))
    with pytest.raises(RunError, match=r"no candidate of bad can be run: crash while preparing the arguments: .*SIGSEGV"):
        isolated.run([ask(bad, good())])
    assert kind(isolated.run([ask(setup, good())])[0]) is None


def test_arguments_are_prepared_once_and_the_least_recently_used_evicted(setup: RunSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def workload(s: RunSetup) -> Any:
        made.append(s.key)
        return SimpleNamespace(nbytes=10)

    monkeypatch.setattr("tunesmith.measure.evaluator.cpu_evaluator._CpuWorkload", workload)
    monkeypatch.setattr("tunesmith.measure.evaluator.cpu_evaluator._nbytes", lambda s: 10)
    monkeypatch.setattr("tunesmith.measure.evaluator.cpu_evaluator._CACHED_BYTES", 40)
    evaluator = CpuEvaluator()
    for name in ("a", "b", "a", "c", "d", "a", "e", "a", "b"):
        evaluator.prepare(replace(setup, key=name))
    assert made == ["a", "b", "c", "d", "e", "b"]


def test_threads_of_candidates_are_pinned(add_task: MeasureTask, local: LocalRunner, setup: RunSetup) -> None:
    assert local._env["OMP_NUM_THREADS"] == "2" and local._env["OMP_PROC_BIND"] == "close"
    (built,) = InProcessBuilder().build([add_task.request((1, [8]), TARGET_TEXT)])
    assert built.artifact is not None
    (result,) = local.run([ask(setup, built.artifact.data)])
    assert (kind(result), result.verified) == (None, True)


def test_process_killed_while_idle_is_replaced(local: LocalRunner, setup: RunSetup) -> None:
    local.run([ask(setup, good())])
    worker = local._pool._dispatcher.workers[0]
    worker.process.kill()
    until = time.monotonic() + 30
    while worker in local._pool._dispatcher.workers and time.monotonic() < until:
        time.sleep(0.01)
    assert [(kind(r), r.verified) for r in local.run([ask(setup, good())])] == [(None, True)]


def test_reference_files_may_be_anywhere(runner: Runner, setup: RunSetup, tmp_path: Path) -> None:
    a, b = make_inputs(PARAMS, 9)
    save_reference(tmp_path / "r.npz", [a + b])
    other = replace(setup, key="seed 9", seed=9, reference=str(tmp_path / "r.npz"))
    assert runner.run([ask(other, good())])[0].verified
    shifted = replace(setup, key="seed 8", seed=8, reference=str(tmp_path / "r.npz"))
    assert kind(runner.run([ask(shifted, good())])[0]) == "wrong_result", "inputs of different seeds have different sums"
    assert not np.array_equal(a, make_inputs(PARAMS, 8)[0])


def test_candidates_timed_with_cold_constants_are_verified_with_their_own(runner: Runner, setup: RunSetup) -> None:
    constant, policy = replace(setup, key="add of constants", constants=(0, 1)), replace(QUICK, constant_bytes=1 << 16)
    requests = [ask(constant, code, policy=policy, verify="always") for code in (good(), kernel(adding(plus="1.0"), CLAMP))]
    results = runner.run(requests)
    assert [r.verified for r in results] == [True, False] and [kind(r) for r in results] == [None, "wrong_result"]
    assert [kind(r) for r in runner.compare(requests, NOISY)] == [None, "wrong_result"]


def test_in_process_runner_uses_the_cores_of_the_target(setup: RunSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = InProcessRunner()
    seen: list[int] = []
    monkeypatch.setattr(runner._evaluators, "run", lambda request: seen.append(num_threads()))
    wide = replace(setup, target=json.dumps(TARGET.with_attributes(num_cores=7).to_json(facts=True)))
    set_num_threads(1)
    try:
        runner.run([ask(wide, b"")])
        assert (seen, num_threads()) == ([7], 1)
    finally:
        set_num_threads(None)
