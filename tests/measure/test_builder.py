"""Test the builder interface on all builders, and crashes, timeouts and memory limits of builders in other processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tunesmith.ir.target.target import Target
from tunesmith.measure import builder as module
from tunesmith.measure.builder import Builder, BuildJob, InProcessBuilder
from tunesmith.measure.candidate import BuildRequest, MeasureTask
from tunesmith.measure.local_builder import MOST_WORKERS, LocalBuilder
from tunesmith.support.errors import UserError

TARGET = json.dumps(Target("llvm").to_json(facts=True))


@pytest.fixture(scope="module", params=["in process", "local", "ray"])
def builder(request: pytest.FixtureRequest) -> Iterator[Builder]:
    with made_builder(request) as made:
        yield made


def made_builder(request: pytest.FixtureRequest, workers: int = 2, **limits: Any) -> Builder:
    if request.param == "in process":
        return InProcessBuilder()
    if request.param == "local":
        return LocalBuilder(workers, **limits)
    cluster = request.getfixturevalue("ray_cluster")
    from tunesmith.measure.ray.ray_builder import RayBuilder

    return RayBuilder(cluster, workers, **limits)


@pytest.fixture(params=["local", "ray"])
def one_worker(request: pytest.FixtureRequest) -> Iterator[Callable[..., Builder]]:
    """Factory of builders with one worker process and limits."""
    with contextlib.ExitStack() as stack:
        yield lambda **limits: stack.enter_context(made_builder(request, 1, **limits))


def some(task: MeasureTask) -> list[BuildRequest]:
    return [task.request(c, TARGET) for c in ((0, [4]), (1, [8]), (0, [16]), (1, [4]))]


def test_results_are_in_the_order_of_the_requests(builder: Builder, add_task: MeasureTask) -> None:
    requests = some(add_task)
    results = builder.build(requests)
    assert builder.build([]) == []
    again = builder.build(requests[::-1])
    for result, other in zip(results, again[::-1], strict=True):
        assert result.error is None and result.artifact is not None and other.artifact is not None
        assert result.artifact.functions == ("add",) and result.artifact.target["kind"] == "llvm"
        assert result.artifact.data == other.artifact.data
        assert result.seconds > 0 and {"lower_s", "llvm_s", "concretize_s"} <= set(result.artifact.facts)
    assert len({r.artifact.data for r in results if r.artifact}) == len(requests)


def test_invalid_requests_fail_individually(builder: Builder, add_task: MeasureTask) -> None:
    good = some(add_task)[0]
    bad = [
        replace(good, row=(5000,)),
        replace(good, workload="no program"),
        replace(good, trace='[["no_such", {}, []]]'),
        replace(good, target='{"kind": "riscv"}'),
        replace(good, target="{"),
    ]
    results = builder.build([good, *bad, good])
    assert [r.error is None for r in results] == [True] + [False] * len(bad) + [True]
    errors = [r.error for r in results[1:-1] if r.error]
    assert {e.kind for e in errors} == {"build_error"} and all(r.artifact is None for r in results[1:-1])
    for error, text in zip(
        errors, ("violates the constraint [waste]", "Python syntax", "no_such", "riscv", "JSONDecodeError"), strict=True
    ):
        assert text in error.message


def test_law_check_on_request(builder: Builder, add_task: MeasureTask) -> None:
    results = builder.build([replace(r, check_law=True) for r in some(add_task)])
    assert [(r.error, r.broken_law) for r in results] == [(None, "")] * 4


def test_law_violation_is_reported(add_task: MeasureTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith.measure.candidate.concretize", lambda func, row: add_task.func)
    checked = replace(some(add_task)[0], check_law=True)
    seen, unseen = InProcessBuilder().build([checked, replace(checked, check_law=False)])
    assert "differs from its trace" in seen.broken_law and seen.artifact is not None
    assert unseen.broken_law == ""


def test_bug_in_a_pass_fails_one_candidate(add_task: MeasureTask, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise KeyError("vi")

    monkeypatch.setattr(module, "build", fails)
    (result,) = InProcessBuilder().build(some(add_task)[:1])
    assert result.error is not None and (result.error.kind, result.error.message) == ("build_error", "KeyError: 'vi'")


def test_memory_errors_propagate_to_the_worker_process(add_task: MeasureTask, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(module, "build", fails)
    with pytest.raises(MemoryError):
        BuildJob()(some(add_task)[0])


def working(builder: Any) -> list[int]:
    """Ids of the processes that have a job."""
    if isinstance(builder, LocalBuilder):
        return [w.process.pid for w in list(builder._pool._dispatcher.workers) if w.job is not None]
    return [
        a.handshake.pid for a in list(builder._actors._actors) if a.handshake and any(c.index is not None for c in list(a.in_flight)[:1])
    ]


def kill_builds(builder: Builder, times: int, killed: list[int]) -> None:
    """Kill processes that have a job, each of them once."""
    until = time.monotonic() + 60
    while len(killed) < times and time.monotonic() < until:
        for pid in working(builder):
            if pid not in killed:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        time.sleep(0.0005)


@pytest.mark.parametrize("times", [1, 2])
def test_build_of_a_killed_process_is_retried_once(add_task: MeasureTask, one_worker: Callable[..., Builder], times: int) -> None:
    killed: list[int] = []
    builder = one_worker()
    killer = threading.Thread(target=kill_builds, args=(builder, times, killed))
    killer.start()
    first, *others = builder.build(some(add_task)[:1])
    killer.join()
    assert len(killed) == times and not others
    if times == 1:
        assert first.error is None and first.artifact is not None
    else:
        assert first.error is not None and first.error.kind == "crash"
        assert "while building it: the worker process died (" in first.error.message
        assert "signal SIGKILL" in first.error.message or not isinstance(builder, LocalBuilder)
    assert all(r.error is None for r in builder.build(some(add_task)))


def test_slow_build_is_a_timeout(add_task: MeasureTask, one_worker: Callable[..., Builder]) -> None:
    (result,) = one_worker(timeout=1e-4).build(some(add_task)[:1])
    assert result.error is not None and result.error.kind == "timeout" and "killed after 0.0001 s" in result.error.message


def test_build_beyond_the_memory_limit_is_out_of_memory(add_task: MeasureTask, one_worker: Callable[..., Builder]) -> None:
    requests = some(add_task)
    # Together with the memory of Python and LLVM, the message and its text exceed 256 MiB.
    huge = replace(requests[0], workload=requests[0].workload + "\n" + "#" * (260 << 20))
    bad, good = one_worker(memory_limit=256 << 20).build([huge, requests[1]])
    assert bad.error is not None and bad.error.kind == "out_of_memory", bad
    assert good.error is None


def test_too_many_workers_are_rejected() -> None:
    most = MOST_WORKERS * len(os.sched_getaffinity(0))
    with pytest.raises(UserError, match=f"{most + 1} workers are too many for the .* usable cores: at most {most}"):
        LocalBuilder(most + 1)
