"""Test the device evaluator: timing by device events, verification, lost devices, and the device lease."""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tunesmith.codegen.artifact import Code
from tunesmith.codegen.device.host import detect_device
from tunesmith.ir.target.target import Target
from tunesmith.measure import device_lease as lease_module
from tunesmith.measure.device_lease import device_lease
from tunesmith.measure.evaluator import device_evaluator
from tunesmith.measure.evaluator.blocking_kernel import BlockingKernel
from tunesmith.measure.evaluator.correctness import save_reference
from tunesmith.measure.evaluator.device_evaluator import DeviceEvaluator
from tunesmith.measure.local_builder import LocalBuilder
from tunesmith.measure.local_runner import InProcessRunner, LocalRunner
from tunesmith.measure.measurer import Measurer
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.record import ErrorInfo
from tunesmith.measure.runner import RunRequest, RunResult, RunSetup
from tunesmith.ops.workload import workload
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.device.device import DEVICES, Device, DeviceLost, cuda, opencl
from tunesmith.runtime.device.module import BoundCall
from tunesmith.runtime.device.program import DeviceFunction, DeviceProgram, Launch
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.search.task import Task
from tunesmith.support.errors import RunError
from tunesmith.support.seeds import stream
from tunesmith.support.worker_pool import JobResult

pytestmark = pytest.mark.skipif(not DEVICES.get("opencl").count(), reason="no OpenCL device here: pip install 'tunesmith[opencl]'")

SIZE = 256
PARAMS = (ParamSpec("A", "float32", (SIZE,)), ParamSpec("B", "float32", (SIZE,)), ParamSpec("C", "float32", (SIZE,), True))
QUICK = RacePolicy(min_repeat_ms=0.5, repeats=3, patience_s=0.0)
TURNS = TimingPolicy(warmup=1, min_repeat_ms=0.2, repeats=3, limit_s=2.0)


def code(body: str) -> Code:
    """A kernel with 256 threads in one block; `i` is the thread index."""
    text = f"__kernel void add_kernel(__global float* A, __global float* B, __global float* C) {{ int i = get_global_id(0); {body} }}"
    function = DeviceFunction("add", PARAMS, (), (Launch("add_kernel", (0, 1, 2), (1, 1, 1), (SIZE, 1, 1)),))
    return Code("add", DeviceProgram("opencl", "", text.encode(), (function,)).to_bytes())


RIGHT = code("C[i] = A[i] + B[i];")
WRONG = code("C[i] = i == 7 ? 0.0f : A[i] + B[i];")
PARTIAL = code("if (i < 255) C[i] = A[i] + B[i];")
INPUT = code("C[i] = A[i] + B[i]; if (i == 3) A[3] = 9.0f;")
CRASH = code("((__global float*)8)[i] = 1.0f;")
BROKEN = code("this is no kernel")
SLOW = code("float x = A[i]; for (int k = 0; k < 200000; ++k) x = x * 0.5f + B[i]; C[i] = x != x ? 0.0f : A[i] + B[i];")


@pytest.fixture
def setup(tmp_path: Path) -> RunSetup:
    inputs = [stream(0, "arguments", i).random(SIZE, np.float32) * 2 - 1 for i in range(2)]
    path = tmp_path / "reference.npz"
    save_reference(path, [inputs[0] + inputs[1]])
    target = json.dumps(detect_device("opencl").to_json(facts=True))
    return RunSetup("add", target, PARAMS, 0, (), 1e-6, str(path))


@pytest.fixture(scope="module")
def isolated() -> Iterator[LocalRunner]:
    with LocalRunner(2) as runner:
        yield runner


def ask(setup: RunSetup, what: Code, **changes: object) -> RunRequest:
    return replace(RunRequest(setup, what, QUICK), **changes)  # type: ignore[arg-type]


def kind(result: RunResult) -> str | None:
    return None if result.error is None else result.error.kind


def test_correct_candidate_is_timed_and_verified(setup: RunSetup) -> None:
    result = DeviceEvaluator().run(ask(setup, RIGHT))
    assert (kind(result), result.verified, len(result.samples)) == (None, True, 3)
    assert 0 < min(result.samples) < 0.1 and result.facts["calls"] >= 1
    assert result.host is not None and result.host["device"] == DEVICES.get("opencl").attributes(0).name


@pytest.mark.parametrize(("what", "message"), [(WRONG, "1 of 256 elements are wrong"), (PARTIAL, r"\[255\]: got nan"), (INPUT, "input A")])
@pytest.mark.parametrize("verify", ["winner", "always"])
def test_wrong_results_are_detected(setup: RunSetup, what: Code, message: str, verify: str) -> None:
    evaluator = DeviceEvaluator()
    result = evaluator.run(ask(setup, what, verify=verify))
    assert kind(result) == "wrong_result" and result.error is not None
    assert re.search(message, result.error.message)
    assert kind(evaluator.run(ask(setup, RIGHT))) is None, "overwritten inputs are restored"


def test_slow_candidate_is_not_verified(setup: RunSetup) -> None:
    result = DeviceEvaluator().run(ask(setup, WRONG, best=1e-9))
    assert (kind(result), result.verified, len(result.samples)) == (None, False, 1)


def test_invalid_code_is_a_run_error(setup: RunSetup) -> None:
    evaluator = DeviceEvaluator()
    result = evaluator.run(ask(setup, BROKEN))
    assert kind(result) == "run_error" and result.error is not None and "no kernel" in result.error.message
    assert kind(evaluator.run(ask(setup, RIGHT))) is None


def test_crash_affects_one_candidate(isolated: LocalRunner, setup: RunSetup) -> None:
    bad, good = isolated.run([ask(setup, CRASH), ask(setup, RIGHT)])
    assert kind(bad) == "crash" and (kind(good), good.verified) == (None, True)


def test_lost_device_is_a_crash_and_corrupts_the_evaluator(setup: RunSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = DeviceEvaluator()
    evaluator.prepare(setup)

    def lost(*_: object, **__: object) -> None:
        raise DeviceLost("illegal address")

    monkeypatch.setattr(DEVICES.get("opencl"), "launch", lost)
    result = evaluator.run(ask(setup, RIGHT))
    assert kind(result) == "crash" and evaluator.corrupted


def test_compare_interleaves_candidates(setup: RunSetup) -> None:
    right, wrong, slow = DeviceEvaluator().compare([ask(setup, RIGHT), ask(setup, WRONG), ask(setup, SLOW)], TURNS)
    assert [kind(r) for r in (right, wrong, slow)] == [None, "wrong_result", None]
    assert right.verified and slow.verified and len(right.samples) >= 3 and min(slow.samples) > max(right.samples)


def test_unscheduled_function_serves_as_reference(setup: RunSetup) -> None:
    bare = replace(setup, key="bare", reference=None, baseline=RIGHT)
    evaluator = DeviceEvaluator()
    assert (kind(evaluator.run(ask(bare, RIGHT))), kind(evaluator.run(ask(bare, WRONG)))) == (None, "wrong_result")


def test_cold_calls_rotate_arrays(setup: RunSetup) -> None:
    policy = replace(QUICK, flush_bytes=SIZE * 12 * 4)
    result = DeviceEvaluator().run(ask(setup, RIGHT, policy=policy))
    assert (kind(result), result.verified) == (None, True)


def test_small_arguments_have_many_sets(setup: RunSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    made = device_evaluator._TimedCalls.__init__

    def count(
        self: device_evaluator._TimedCalls, device: Device, calls: Sequence[BoundCall], blocking_kernel: BlockingKernel | None
    ) -> None:
        found.append(len(calls))
        made(self, device, calls, blocking_kernel)

    monkeypatch.setattr(device_evaluator._TimedCalls, "__init__", count)
    evaluator, policy = DeviceEvaluator(), replace(QUICK, flush_bytes=SIZE * 12 * 200)
    results = [evaluator.run(ask(setup, RIGHT, policy=policy)) for _ in range(2)]
    assert [(kind(r), r.verified) for r in results] == [(None, True)] * 2 and found == [201, 201]
    assert len(evaluator._workloads["add"]._others) == 200, "argument sets are created once"


@pytest.mark.parametrize("bound", [0.0, 1e9], ids=["the host is slower", "the device is slower"])
def test_blocking_kernel_runs_if_the_host_is_slower(setup: RunSetup, monkeypatch: pytest.MonkeyPatch, bound: float) -> None:
    asked: list[float] = []
    start = BlockingKernel.start

    def count(self: BlockingKernel, seconds: float) -> None:
        asked.append(seconds)
        start(self, seconds)

    monkeypatch.setattr(BlockingKernel, "start", count)
    monkeypatch.setattr(device_evaluator, "LAUNCH_BOUND", ("opencl",))
    monkeypatch.setattr(device_evaluator, "AT_ONCE", 2)
    monkeypatch.setattr(device_evaluator, "_HOST_BOUND", bound)
    evaluator = DeviceEvaluator()
    result = evaluator.run(ask(setup, RIGHT, policy=QUICK))
    asked.clear()
    compared = evaluator.compare([ask(setup, RIGHT), ask(setup, WRONG)], replace(TURNS, number=5))
    assert (kind(result), result.verified, [kind(r) for r in compared]) == (None, True, [None, "wrong_result"])
    assert min(compared[0].samples) > 0
    assert (len(asked) >= 3 * 3 and min(asked) > 0) if bound == 0 else not asked, "three batches for each of three samples of five calls"


def test_close_releases_the_blocking_kernel(setup: RunSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    api = DEVICES.get("opencl")
    monkeypatch.setattr(device_evaluator, "LAUNCH_BOUND", ("opencl",))
    before = dict(api._events._objects)  # type: ignore[attr-defined]
    evaluator = DeviceEvaluator()
    evaluator.prepare(setup)
    assert len(api._events._objects) == len(before) + 2, "the events of the blocking kernel"  # type: ignore[attr-defined]
    for _ in range(2):
        evaluator.close()
        assert api._events._objects == before  # type: ignore[attr-defined]
    assert kind(evaluator.run(ask(setup, RIGHT))) is None, "an evaluator can be used again"
    runner = InProcessRunner()
    runner.run([ask(setup, RIGHT)])
    count = len(api._events._objects)  # type: ignore[attr-defined]
    runner.close()
    assert len(api._events._objects) == count - 2  # type: ignore[attr-defined]
    evaluator.close()


def test_device_lost_during_compare_is_a_crash(setup: RunSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    api, evaluator = DEVICES.get("opencl"), DeviceEvaluator()
    evaluator.prepare(setup)
    events, elapsed, asked = dict(api._events._objects), api.elapsed, 0  # type: ignore[attr-defined]

    def lost(*arguments: int) -> float:
        nonlocal asked
        asked += 1
        if asked > 5:
            raise DeviceLost("illegal address")
        return elapsed(*arguments)

    monkeypatch.setattr(api, "elapsed", lost)
    right, wrong, other = evaluator.compare([ask(setup, RIGHT), ask(setup, WRONG), ask(setup, RIGHT)], TURNS)
    assert [kind(r) for r in (right, wrong, other)] == ["crash", "wrong_result", "crash"] and evaluator.corrupted
    assert api._events._objects == events, "no event is leaked"  # type: ignore[attr-defined]


def test_device_lost_by_one_candidate_does_not_fail_the_others(setup: RunSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalRunner(2) as runner:
        first, ready = runner.compare([ask(setup, RIGHT), ask(setup, WRONG)], TURNS), runner._do

        def do(job: tuple[str, tuple[object, ...]], timeout: float) -> JobResult:
            if job[0] != "compare":
                return ready(job, timeout)
            crash = RunResult((), True, ErrorInfo("crash", "the device is lost"), False, 0.0)
            return JobResult(0, ([crash, *first[1:]], True), None, "", "", "", 0.0)

        monkeypatch.setattr(runner, "_do", do)
        again = runner.compare([ask(setup, RIGHT), ask(setup, WRONG)], TURNS)
    assert [kind(r) for r in again] == [None, "wrong_result"] and again[0].verified


def test_target_of_another_device_is_rejected(setup: RunSetup) -> None:
    for target, message in ((Target("nvidia/h200"), "there is no cuda device"), (Target("opencl -max-threads-per-block=99999"), "99999")):
        with pytest.raises(RunError, match=message):
            DeviceEvaluator().prepare(replace(setup, target=json.dumps(target.to_json(facts=True))))


def test_lease_is_exclusive() -> None:
    order: list[str] = []
    held, waiting = threading.Event(), threading.Event()

    def second() -> None:
        held.wait()
        waiting.set()
        with device_lease(opencl()):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with device_lease(opencl()):
        held.set()
        waiting.wait()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_waiting_for_the_lease_does_not_count_towards_the_timeout(
    setup: RunSetup, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "_PATIENCE_S", 0.1)
    held = threading.Event()

    def hold() -> None:
        with device_lease(opencl()):
            held.set()
            time.sleep(2.0)

    with LocalRunner(2, timeout=1.5) as runner:
        runner.run([ask(setup, RIGHT)])
        pool = runner._pool
        for what in (lambda: runner.run([ask(setup, RIGHT)]), lambda: runner.compare([ask(setup, RIGHT)], replace(TURNS, limit_s=0.1))):
            held.clear()
            thread = threading.Thread(target=hold)
            thread.start()
            held.wait()
            start = time.perf_counter()
            (result,) = what()
            assert kind(result) is None and result.seconds < 1.5 < time.perf_counter() - start
            thread.join()
        assert runner._pool is pool
    assert "waiting for opencl(0)" in capfd.readouterr().err


def test_in_process_runner_takes_the_lease(setup: RunSetup) -> None:
    results: list[RunResult] = []
    with InProcessRunner() as runner:
        thread = threading.Thread(target=lambda: results.extend(runner.run([ask(setup, RIGHT)])))
        with device_lease(opencl()):
            thread.start()
            thread.join(0.5)
            assert not results
        thread.join()
    assert kind(results[0]) is None


def test_lock_file_is_independent_of_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = threading.Event()

    def second() -> None:
        with device_lease(opencl()):
            got.set()

    thread = threading.Thread(target=second)
    with device_lease(opencl()):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        thread.start()
        assert not got.wait(0.2)
    thread.join()
    name = re.sub("[^A-Za-z0-9.]+", "-", DEVICES.get("opencl").attributes(0).name or "").strip("-")
    assert Path("/tmp", f"tunesmith-opencl-{name}.lock").is_file()


def test_lock_file_is_world_writable_and_no_symlink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "_FOLDER", tmp_path)
    before = os.umask(0o077)
    try:
        with device_lease(opencl()):
            (path,) = tmp_path.iterdir()
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="the lock file of a device"), device_lease(opencl()):
        pass


@pytest.mark.gpu
def test_gpu_is_identified_by_its_pci_address() -> None:
    assert re.fullmatch(r"cuda-[0-9A-Fa-f]+-[0-9A-Fa-f]+-[0-9A-Fa-f]+\.[0-9]", lease_module._identity(cuda()))


def test_a_batch_from_rows_to_records() -> None:
    target = detect_device("opencl")
    w = workload("relu(shape=40x60)")
    task = Task(w.text, w.func, target, w.reference, w.flops)
    rows = task.space.sketches[0].space.sample(3, stream(0, "rows"))
    candidates = [(0, tuple(int(x) for x in row)) for row in rows]
    with LocalBuilder(1) as builder, LocalRunner(2) as runner, Measurer(target, builder, runner, MeasurePolicy(race=QUICK)) as measurer:
        records = measurer.measure(task.measured, candidates)
    assert [r.error for r in records] == [None] * 3 and records[0].verified
    assert all("lower_s" in r.extra and r.host["device"] for r in records)
