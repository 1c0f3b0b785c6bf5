"""Test Ray instances that are started, reused or joined: cleanup, and errors without a cluster."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("the extra `ray` is not installed", allow_module_level=True)

from tunesmith.measure.ray import ray_cluster as module
from tunesmith.measure.ray.ray_cluster import RUNNER, RayCluster, ray
from tunesmith.support.errors import UserError

_MARK = "TUNESMITH_TEST_RAY"


def run(script: str, *arguments: str, mark: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {_MARK: mark} | environment
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=240, env=env)


def left_over(processes: Callable[[str], dict[int, str]], mark: str) -> dict[int, str]:
    """Processes that still have the mark after 30 s."""
    until = time.monotonic() + 30
    while (found := processes(f"{_MARK}={mark}")) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def test_existing_ray_is_used_and_not_shut_down(ray_cluster: RayCluster) -> None:
    assert ray_cluster.started_here and ray_cluster.cpus >= 8 and ray_cluster.count(RUNNER) == 4
    with RayCluster(1) as second:
        assert not second.started_here and second.cpus == ray_cluster.cpus and second.count("moon") == 0
    assert ray.is_initialized()


@pytest.mark.parametrize(("workers", "runners"), [(0, 1), (None, 0)])
def test_invalid_numbers_are_rejected(workers: int | None, runners: int) -> None:
    with pytest.raises(UserError, match="at least 1 worker and 1 runner"):
        RayCluster(workers, runners)


def test_ray_client_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    with pytest.raises(UserError, match=r"does not report the death of workers. Run on a node of the cluster"):
        RayCluster()


_LOCAL = """
import json, os, signal, sys, tempfile
from tunesmith.measure.ray.ray_cluster import RayCluster, ray
from tunesmith.measure.ray.ray_actor_pool import ActorPool, Actor, Job

class JobActor(Actor):
    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

handler = signal.getsignal(signal.SIGTERM)
cluster = RayCluster(3)
assert cluster.started_here and cluster.cpus == max(3, len(os.sched_getaffinity(0)))
pool = ActorPool(JobActor, (), 1, "worker")
(result,) = pool.run([Job("die", (), 60.0)])
assert result.error == "crash", result
folder = [f for f in os.listdir(tempfile.gettempdir()) if f.startswith("tunesmith-ray-")]
assert folder
if sys.argv[1] == "close":
    pool.close()
    cluster.close()
    cluster.close()
    assert not ray.is_initialized() and signal.getsignal(signal.SIGTERM) == handler
"""


@pytest.mark.parametrize("how", ["close", "exit"])
def test_local_ray_is_quiet_and_cleans_up(processes: Callable[[str], dict[int, str]], how: str) -> None:
    mark = uuid4().hex
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # longer names exceed the limit of socket paths
    try:
        done = run(_LOCAL, how, mark=mark, TMPDIR=str(folder))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert left_over(processes, mark) == {}
        assert list(folder.iterdir()) == []
    finally:
        folder.rmdir()


def test_missing_ray_reports_the_install_command() -> None:
    script = "import sys; sys.modules['ray'] = None\nimport tunesmith\ntunesmith.tune('relu(shape=8)', 'llvm', None, workers='ray')"
    done = run(script)
    assert "MissingExtraError" in done.stderr and "pip install 'tunesmith[ray]'" in done.stderr


def test_ray_is_imported_only_on_demand() -> None:
    done = run(
        "import sys, tunesmith, tunesmith.driver.tune, tunesmith.search.samplers.registry, tunesmith.cli.main; print('ray' in sys.modules)"
    )
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nowhere"])
def test_unreachable_address_is_reported(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(module.ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(
        UserError, match=rf"cannot join the Ray cluster at RAY_ADDRESS={address}: .*without RAY_ADDRESS a Ray instance is started"
    ):
        RayCluster()


_CLUSTER = """
import json, os, sys, threading, time
from ray.cluster_utils import Cluster

# Nodes of one machine: a head without CPUs, and two nodes that compile and run.
nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
nodes.add_node(num_cpus=1, resources={"tunesmith_cpu": 1})
lost = nodes.add_node(num_cpus=1, resources={"tunesmith_cpu": 1})
nodes.wait_for_nodes()
os.environ["RAY_ADDRESS"] = nodes.address

from tunesmith.ir.target.target import Target
from tunesmith.measure.ray.ray_builder import RayBuilder
from tunesmith.measure.ray.ray_cluster import RayCluster
from tunesmith.measure.ray.ray_runner import RayRunner
from tunesmith.measure.measurer import Measurer
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.log import RecordLog
from tunesmith.ops.workload import workload
from tunesmith.search.samplers.random_sampler import RandomSampler
from tunesmith.search.task import Task

target = Target("llvm")
w = workload("matmul(m=48,n=32,k=16)")
task = Task(w.text, w.func, target, w.reference, w.flops)
candidates = [(c.sketch, c.row) for c in RandomSampler(task, 0).ask(int(sys.argv[2]))]
log = RecordLog(sys.argv[1])
policy = MeasurePolicy(RacePolicy(min_repeat_ms=1.0, repeats=2, quiet_fraction=1e9))
with RayCluster() as cluster:
    assert not cluster.started_here and (cluster.cpus, cluster.count("tunesmith_cpu")) == (2, 2)
    with RayBuilder(cluster) as builder, RayRunner(cluster, target) as runner, Measurer(target, builder, runner, policy, log) as measurer:
        assert (builder.slots, runner.slots) == (2, 2)
        records = []
        for record in measurer.stream(task.measured, candidates):
            records.append(record)
            if len(records) == 4:
                nodes.remove_node(lost, allow_graceful=False)
print(json.dumps({"records": len(records), "errors": [r.error.message for r in records if r.error]}))
nodes.shutdown()
"""


def test_lost_node_loses_no_candidate(tmp_path: Path, processes: Callable[[str], dict[int, str]]) -> None:
    mark = uuid4().hex
    folder = tempfile.mkdtemp(prefix="t", dir="/tmp")  # longer names exceed the limit of socket paths
    try:
        done = run(_CLUSTER, str(tmp_path / "log.jsonl"), "12", mark=mark, RAY_TMPDIR=folder)
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (result["records"], result["errors"]) == (12, []), done.stderr
    assert left_over(processes, mark) == {}
