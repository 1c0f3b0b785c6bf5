"""Measure on another host: the driver's node has no device, a node with the resource of the target's processor measures."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("the extra `ray` is not installed", allow_module_level=True)

SCRIPT = """
import json, os, signal, sys, threading, time
from contextlib import suppress
from pathlib import Path
from ray.cluster_utils import Cluster
import ray

from tunesmith.ir.target.target import Target
from tunesmith.measure.builder import InProcessBuilder
from tunesmith.measure.measurer import Measurer
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.ray.ray_cluster import RayCluster
from tunesmith.measure.ray.ray_runner import RayRunner, model_resource
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.runner import RunsLost
from tunesmith.ops.workload import workload
from tunesmith.search.samplers.random_sampler import RandomSampler
from tunesmith.search.task import Task
from tunesmith.support.errors import RunError
from tunesmith.testing.runner_conformance import example_request, example_setup, invalid_codes
from dataclasses import replace

folder = Path(sys.argv[1])
target = Target("llvm")
resource = model_resource(target)
# A killed node refuses connections, and is declared dead after 3 checks; Ray's own period is 3 s.
checks = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_failure_threshold": 3}
nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": checks})
device = lambda: nodes.add_node(num_cpus=0, resources={resource: 1})
first = device()
nodes.wait_for_nodes()
os.environ["RAY_ADDRESS"] = nodes.address
found = {"resource": resource, "first": first.node_id}

with RayCluster() as cluster:
    here = ray.get_runtime_context().get_node_id()
    (own,) = [n for n in ray.nodes() if n["NodeID"] == here]
    found |= {"driver": here, "own": sorted(own["Resources"])}
    setup = example_setup(folder)
    names = ("right", "wrong", "null store", "endless", "right")
    requests = [example_request(setup, name) for name in names]
    requests.append(replace(requests[0], code=invalid_codes()["function does not exist"]))
    with RayRunner(cluster, target, timeout=5.0) as runner:  # on a busy machine a good candidate may take more than 2 s
        found["slots"] = runner.slots
        found["results"] = [[r.error.kind if r.error else None, r.verified, r.host["node"]] for r in runner.run(requests)]

        w = workload("matmul(m=48,n=32,k=16)")
        task = Task(w.text, w.func, target, w.reference, w.flops)
        candidates = [(c.sketch, c.row) for c in RandomSampler(task, 0).ask(6)]
        policy = MeasurePolicy(RacePolicy(min_repeat_ms=20.0, repeats=5, quiet_fraction=1e9), verify="always")
        with Measurer(target, InProcessBuilder(), runner, policy, RecordLog(folder / "log.jsonl")) as measurer:
            stream = measurer.stream(task.measured, candidates)
            records = [next(stream), next(stream)]

            rest = threading.Thread(target=lambda: records.extend(stream))
            rest.start()
            # While a candidate runs, its node is lost; then a node of the same kind joins.
            until = time.monotonic() + 60
            actors = runner._actors._actors
            while time.monotonic() < until and not any(c.index is not None for a in list(actors) for c in list(a.in_flight)):
                time.sleep(0.005)
            pid = actors[0].handshake.pid
            os.kill(pid, signal.SIGSTOP)  # it would go on answering until it notices that its node is lost
            nodes.remove_node(first, allow_graceful=False)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            second = device()
            found["second"] = second.node_id
            rest.join()
        nodes.remove_node(second, allow_graceful=False)
        runner._actors._start_timeout = 1.0
        try:
            runner.run(requests[:1])
        except RunsLost as error:
            found["lost"] = [str(error), error.results]
ray.shutdown()
nodes.shutdown()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], Path]]:
    folder, temporary = tmp_path_factory.mktemp("two"), tempfile.mkdtemp(prefix="t", dir="/tmp")  # socket paths are limited to 107
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"RAY_TMPDIR": temporary}
    try:
        done = subprocess.run([sys.executable, "-c", SCRIPT, str(folder)], capture_output=True, text=True, timeout=300, env=env)
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout.splitlines()[-1]), folder
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def test_the_driver_has_no_device(run: tuple[dict[str, Any], Path]) -> None:
    found, _ = run
    assert found["resource"].startswith("cpu_model:") and found["resource"] not in found["own"]
    assert found["driver"] != found["first"] and found["slots"] == 1


def test_results_and_errors_come_back_with_their_host(run: tuple[dict[str, Any], Path]) -> None:
    found, _ = run
    kinds = [(kind, verified) for kind, verified, _ in found["results"]]
    assert kinds == [
        (None, True),
        ("wrong_result", False),
        ("crash", False),
        ("timeout", False),
        (None, True),
        ("run_error", False),
    ]
    assert {node for _, _, node in found["results"]} == {found["first"]}


def test_a_lost_node_loses_no_measurement(run: tuple[dict[str, Any], Path]) -> None:
    """The candidate that was running is measured again by the next node; each record names the node that measured."""
    found, folder = run
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    records = [line for line in lines if "samples" in line]
    assert len(records) == 6 and all(r["verified"] and not r.get("error") for r in records)
    hosts = [r["host"]["node"] for r in records]
    assert hosts[:2] == [found["first"]] * 2 and hosts[3:] == [found["second"]] * 3 and found["driver"] not in hosts
    assert all(r["host"]["name"] and r["host"]["cpu"] for r in records)


def test_without_a_device_the_error_says_what_is_missing(run: tuple[dict[str, Any], Path]) -> None:
    found, _ = run
    message, results = found["lost"]
    assert f"no runner started within 1 s. Each needs, on one node of the cluster: 1 {found['resource']} (0 of " in message
    assert results == [None]
