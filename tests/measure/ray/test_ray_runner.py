"""Test runners in Ray actors: several devices, lost actors, other machines.  test_runner.py has the tests common to all runners."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("the extra `ray` is not installed", allow_module_level=True)

from tunesmith.codegen.artifact import Code
from tunesmith.ir.target.target import Target
from tunesmith.measure.builder import InProcessBuilder
from tunesmith.measure.candidate import MeasureTask
from tunesmith.measure.evaluator.argument_data import make_inputs
from tunesmith.measure.evaluator.correctness import save_reference
from tunesmith.measure.measurer import Measurer
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.ray.ray_actor_pool import JobsLost
from tunesmith.measure.ray.ray_runner import RayRunner, model_resource, refusal
from tunesmith.measure.records.environment import environment
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.runner import RunRequest, RunResult, RunSetup, RunsLost
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.support.errors import RunError, UserError

if TYPE_CHECKING:
    from tunesmith.measure.ray.ray_cluster import RayCluster

TARGET = Target("llvm")
TARGET_TEXT = json.dumps(TARGET.to_json(facts=True))
QUICK = RacePolicy(min_repeat_ms=0.01, repeats=2, quiet_fraction=1e9)
SLOW = RacePolicy(min_repeat_ms=150.0, repeats=3, quiet_fraction=1e9)
"""Half a second of timing, in which a test can kill the actor."""
NOISY = TimingPolicy(number=3, repeats=2, window_s=0.0, quiet_fraction=float("inf"))


@pytest.fixture(scope="module")
def two(ray_cluster: RayCluster) -> Iterator[RayRunner]:
    with RayRunner(ray_cluster, TARGET, 2) as made:
        yield made


@pytest.fixture(scope="module")
def one(ray_cluster: RayCluster) -> Iterator[RayRunner]:
    with RayRunner(ray_cluster, TARGET, 1) as made:
        yield made


@pytest.fixture(scope="module")
def request_of(add_task: MeasureTask, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunRequest]:
    """Factory of requests to run a correct candidate; keyword arguments replace its fields."""
    folder = tmp_path_factory.mktemp("reference")
    a, b = make_inputs(add_task.params)
    save_reference(folder / "add.npz", [a + b])
    setup = RunSetup("add", TARGET_TEXT, add_task.params, 0, (), 1e-6, str(folder / "add.npz"))
    (built,) = InProcessBuilder().build([add_task.request((0, [8]), TARGET_TEXT)])
    assert built.artifact is not None
    code = built.artifact.code()
    return lambda **changes: replace(RunRequest(setup, code, QUICK), **changes)


def kind(result: RunResult) -> str | None:
    return None if result.error is None else result.error.kind


def pids(runner: RayRunner) -> list[int]:
    return [a.handshake.pid for a in list(runner._actors._actors) if a.handshake is not None]


def working(runner: RayRunner) -> list[int]:
    return [
        a.handshake.pid for a in list(runner._actors._actors) if a.handshake and any(c.index is not None for c in list(a.in_flight)[:1])
    ]


def kill_runs(runner: RayRunner, times: int, killed: list[int]) -> None:
    """Kill actors that have a candidate, each of them once."""
    until = time.monotonic() + 60
    while len(killed) < times and time.monotonic() < until:
        for pid in [p for p in working(runner) if p not in killed][: times - len(killed)]:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        time.sleep(0.01)


def test_candidates_are_distributed_over_two_devices(two: RayRunner, request_of: Callable[..., RunRequest]) -> None:
    assert two.slots == 2
    bad = request_of(code=Code("add", b"no object"))
    results = two.run([request_of(), bad] * 4)
    assert [kind(r) for r in results] == [None, "run_error"] * 4
    assert [r.verified for r in results] == [True, False] * 4
    assert all(r.host is not None and r.host.items() >= {**environment().host, "name": socket.gethostname()}.items() for r in results)
    until = time.monotonic() + 60
    while len(set(pids(two))) < 2 and time.monotonic() < until:  # a slowly starting actor may get no candidate
        assert two.run([request_of()])[0].verified  # handshakes are processed while it runs
    assert len(set(pids(two))) == 2


@pytest.mark.parametrize("times", [1, 2])
def test_candidate_of_a_lost_actor_is_retried(one: RayRunner, request_of: Callable[..., RunRequest], times: int) -> None:
    killed: list[int] = []
    killer = threading.Thread(target=kill_runs, args=(one, times, killed))
    killer.start()
    results = one.run([request_of(policy=SLOW)])
    killer.join()
    assert len(killed) == times and len(results) == 1
    assert kind(results[0]) == (None if times == 1 else "crash")
    if times == 2:
        assert results[0].error is not None and "while running it: the worker process died (" in results[0].error.message
        assert results[0].samples == () and not results[0].verified
        assert results[0].host is not None and results[0].host["node"], "the node on which the actor died"
    assert [(kind(r), r.verified) for r in one.run([request_of()])] == [(None, True)]


def test_compare_is_retried_on_another_actor(one: RayRunner, request_of: Callable[..., RunRequest]) -> None:
    killed: list[int] = []
    killer = threading.Thread(target=kill_runs, args=(one, 1, killed))
    killer.start()
    results = one.compare([request_of(), request_of()], replace(NOISY, number=1_000_000))
    killer.join()
    assert [(kind(r), r.verified) for r in results] == [(None, True)] * 2 and len(killed) == 1


def test_compare_falls_back_to_single_runs_after_two_lost_actors(
    one: RayRunner, request_of: Callable[..., RunRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = one._actors.run

    def lossy(jobs: Any) -> Any:
        results = run(jobs)
        return [replace(r, error="crash", message="died") if j.method == "compare" else r for j, r in zip(jobs, results, strict=True)]

    monkeypatch.setattr(one._actors, "run", lossy)
    results = one.compare([request_of(), request_of()], NOISY)
    assert [(kind(r), r.verified) for r in results] == [(None, True)] * 2


def test_machines_of_another_kind_are_rejected(ray_cluster: RayCluster, request_of: Callable[..., RunRequest]) -> None:
    target = Target("llvm -mcpu=haswell -num-cores=1")
    with RayRunner(ray_cluster, target, 1) as runner:
        with pytest.raises(RunError, match=r"the runner on [0-9.]+ cannot be used: .*has mcpu \S+ instead of haswell.*nodes of one kind"):
            runner.run([request_of()])


@pytest.mark.parametrize(
    ("target", "machine", "message"),
    [
        (TARGET, TARGET, None),
        (TARGET.with_attributes(num_cores=1), TARGET, None),
        (TARGET.with_attributes(vector_bits=128), TARGET, None),
        (TARGET, TARGET.with_attributes(num_cores=TARGET.num_cores + 1), None),
        (TARGET.with_attributes(num_cores=TARGET.num_cores + 1), TARGET, f"{TARGET.num_cores} cores instead of {TARGET.num_cores + 1}"),
        (Target("cuda -arch=sm_90"), Target("cuda -arch=sm_80"), "arch sm_80 instead of sm_90"),
        (Target("cuda -arch=sm_90"), None, "arch unknown instead of sm_90"),
    ],
)
def test_refusal_of_a_machine(target: Target, machine: Target | None, message: str | None) -> None:
    found = refusal(target, {} if machine is None else machine.to_json())
    assert (found is None) if message is None else (found is not None and message in found)


def test_cluster_without_the_resource_is_rejected(ray_cluster: RayCluster) -> None:
    with pytest.raises(UserError, match=r"none has the resource 'gpu:H200'.*ray start --resources '\{\"gpu:H200\": 1\}'"):
        RayRunner(ray_cluster, TARGET, resource="gpu:H200")


def test_references_are_sent_and_the_least_recently_used_evicted(
    two: RayRunner, request_of: Callable[..., RunRequest], tmp_path: Path
) -> None:
    """More workloads than are cached, each with its own inputs and reference, run twice."""
    requests = []
    for seed in range(6):
        a, b = make_inputs(request_of().setup.params, seed)
        save_reference(tmp_path / f"{seed}.npz", [a + b])
        setup = replace(request_of().setup, key=f"seed {seed}", seed=seed, reference=str(tmp_path / f"{seed}.npz"))
        requests.append(request_of(setup=setup, verify="always"))
    assert [(kind(r), r.verified) for r in two.run(requests * 2)] == [(None, True)] * 12
    lying = replace(requests[0].setup, key="lying", seed=5)
    assert kind(two.run([replace(requests[0], setup=lying)])[0]) == "wrong_result"
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(RunError, match="cannot read the reference"):
        two.run([requests[0]])


def test_driver_writes_the_records(two: RayRunner, add_task: MeasureTask, tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "log.jsonl")
    candidates = [(0, [4]), (1, [8]), (0, [16]), (0, np.array([5000])), (1, [4])]
    with Measurer(TARGET, InProcessBuilder(), two, MeasurePolicy(QUICK), log) as measurer:
        records = measurer.measure(add_task, candidates)
    assert [None if r.error is None else r.error.kind for r in records] == [None, None, None, "build_error", None]
    assert [r.row for r in RecordLog(tmp_path / "log.jsonl").load().records] == [r.row for r in records]
    assert records[0].verified and records[0].host.items() > environment().host.items()


def test_names_of_the_resource() -> None:
    assert model_resource(Target("llvm -mcpu=haswell -num-cores=1")) == "cpu_model:haswell"
    assert model_resource(Target("cuda -arch=sm_90")) == "gpu_model:sm_90"


def test_results_before_the_loss_of_all_devices_are_logged(
    ray_cluster: RayCluster, add_task: MeasureTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RayRunner(ray_cluster, TARGET, 2) as runner:
        whole = runner._actors.run

        def lost(jobs: Any) -> Any:
            results = whole(jobs[:1])
            raise JobsLost("no runner started", [*results, *[None] * (len(jobs) - 1)])

        monkeypatch.setattr(runner._actors, "run", lost)
        log = RecordLog(tmp_path / "log.jsonl")
        with Measurer(TARGET, InProcessBuilder(), runner, MeasurePolicy(QUICK), log) as measurer:
            with pytest.raises(RunsLost, match="no runner started"):
                measurer.measure(add_task, [(0, [4]), (0, [8]), (0, [16])])
        (record,) = RecordLog(tmp_path / "log.jsonl").load().records
        assert record.row == (4,) and record.verified and record.host["node"]
