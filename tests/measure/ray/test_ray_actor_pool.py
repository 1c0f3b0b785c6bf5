"""Test the pool of Ray actors: jobs that kill, hang or fail, dying actors, and crash attribution."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("the extra `ray` is not installed", allow_module_level=True)

from tunesmith.measure.ray import ray_actor_pool
from tunesmith.measure.ray.ray_actor_pool import Actor, ActorPool, Handshake, Job, JobsLost
from tunesmith.measure.ray.ray_cluster import ray
from tunesmith.measure.records.environment import Environment, environment
from tunesmith.support.errors import RunError, UserError

if TYPE_CHECKING:
    from tunesmith.measure.ray.ray_cluster import RayCluster


class JobActor(Actor):
    """Actor with the jobs of the tests."""

    def __init__(self, broken: bool = False) -> None:
        if broken:
            raise ValueError("no such device")

    def pid(self) -> int:
        return os.getpid()

    def echo(self, x: object) -> object:
        return x

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def die_once(self, flag: str) -> str:
        """Kill this process on the first call only."""
        if not Path(flag).exists():
            Path(flag).touch()
            time.sleep(0.2)  # let earlier answers be sent
            self.die()
        return "alive"

    def sleep(self, seconds: float, flag: str = "") -> None:
        if flag:
            with open(flag, "a") as file:
                file.write("x")
        time.sleep(seconds)

    def hang_twice(self, flag: str) -> None:
        """The first two calls hang, the later ones return."""
        with open(flag, "a") as file:
            file.write("x")
        if Path(flag).stat().st_size <= 2:
            time.sleep(600)

    def hang(self) -> None:
        """Hang in native code, holding the GIL."""
        ctypes.PyDLL(None).sleep(600)

    def fail(self, kind: str) -> None:
        raise {"ValueError": ValueError, "MemoryError": MemoryError, "SystemExit": SystemExit}[kind]("a reason\nand more")


@pytest.fixture(scope="module", autouse=True)
def by_value() -> Iterator[None]:
    """Pickle the classes of this module by value, because actors cannot import it."""
    module = sys.modules[__name__]
    ray.cloudpickle.register_pickle_by_value(module)
    yield
    ray.cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture
def make_pool(ray_cluster: RayCluster) -> Iterator[Callable[..., ActorPool]]:
    made: list[ActorPool] = []

    def make(count: int = 2, *arguments: object, **settings: Any) -> ActorPool:
        made.append(ActorPool(JobActor, arguments, count, "worker", **settings))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def job(method: str, *arguments: object, timeout: float = 60.0) -> Job:
    return Job(method, arguments, timeout)


def echoes(n: int) -> list[Job]:
    return [job("echo", i) for i in range(n)]


def pids(pool: ActorPool) -> list[int]:
    return [a.handshake.pid for a in pool._actors if a.handshake is not None]


def gone(pid: int) -> bool:
    """True if the process ends within 30 s."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def started(pool: ActorPool, count: int) -> list[int]:
    until = time.monotonic() + 60
    while len(pids(pool)) < count and time.monotonic() < until:
        pool.run([job("sleep", 0.05) for _ in range(2 * count)])
    return pids(pool)


def test_results_are_in_job_order_and_both_actors_work(make_pool: Callable[..., ActorPool]) -> None:
    pool = make_pool()
    assert pool.run([]) == []
    there = started(pool, 2)
    # While an actor sleeps, the other one gets the jobs.
    results = pool.run([(job("echo", i), job("pid"), job("sleep", 0.05))[i % 3] for i in range(30)])
    assert [r.ticket for r in results] == list(range(30)) and all(r.error is None and r.seconds > 0 for r in results)
    assert [r.value for r in results[::3]] == list(range(0, 30, 3))
    assert {r.value for r in results[1::3]} == set(there)


def test_exception_of_a_job_is_its_result(make_pool: Callable[..., ActorPool]) -> None:
    pool = make_pool(1)
    (before,) = started(pool, 1)
    first, second, third, last = pool.run([job("fail", "ValueError"), job("fail", "SystemExit"), job("no_such"), job("pid")])
    assert (first.error, first.exception, first.message) == ("error", "ValueError", "ValueError: a reason")
    assert "and more" in first.detail and "Traceback" in first.detail
    assert second.exception == "SystemExit" and third.exception == "AttributeError"
    assert last.value == before


def test_memory_error_replaces_the_actor(make_pool: Callable[..., ActorPool]) -> None:
    pool = make_pool(1)
    (before,) = started(pool, 1)
    failed, after = pool.run([job("fail", "MemoryError"), job("pid")])
    assert failed.exception == "MemoryError" and after.error is None and after.value != before
    assert gone(before)


def test_job_that_kills_two_actors_is_a_crash(make_pool: Callable[..., ActorPool]) -> None:
    jobs = echoes(12)
    jobs[3] = jobs[4] = job("die")
    results = make_pool().run(jobs)
    assert [r.error for r in results] == ["crash" if i in (3, 4) else None for i in range(12)]
    assert [r.value for r in results if r.error is None] == [i for i in range(12) if i not in (3, 4)]
    assert "the worker process died (" in results[3].message and "as another did before" in results[3].message
    assert "actor" in results[3].detail


def test_job_of_a_killed_actor_is_retried(make_pool: Callable[..., ActorPool], tmp_path: Path) -> None:
    results = make_pool(1).run([*echoes(2), job("die_once", str(tmp_path / "flag")), *echoes(2)])
    assert [(r.error, r.value) for r in results] == [(None, 0), (None, 1), (None, "alive"), (None, 0), (None, 1)]


def test_job_is_retried_alone(make_pool: Callable[..., ActorPool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatched: list[tuple[int, list[int | None]]] = []
    dispatch = ray_actor_pool._PooledActor.dispatch

    def noted(self: ray_actor_pool._PooledActor, index: int, job: Job) -> None:
        dispatched.append((index, [call.index for call in self.in_flight]))
        dispatch(self, index, job)

    monkeypatch.setattr(ray_actor_pool._PooledActor, "dispatch", noted)
    make_pool(1).run([job("die_once", str(tmp_path / "flag")), *echoes(3)])
    second = max(i for i, (index, _) in enumerate(dispatched) if index == 0)
    assert [index for index, _ in dispatched].count(0) == 2
    assert dispatched[second] == (0, []) and all(0 not in beside for _, beside in dispatched[second + 1 :])


def test_death_of_an_idle_actor_is_not_attributed_to_a_job(make_pool: Callable[..., ActorPool]) -> None:
    pool = make_pool(2)
    there = started(pool, 2)
    for pid in there:
        os.kill(pid, signal.SIGKILL)
    assert all(gone(pid) for pid in there)
    results = pool.run(echoes(1))
    assert (results[0].error, results[0].value) == (None, 0)
    assert not set(started(pool, 2)) & set(there)


def test_job_is_retried_alone_on_an_actor_that_has_just_answered(make_pool: Callable[..., ActorPool], tmp_path: Path) -> None:
    """All actors die at once, each with a job, as if their machine failed: no job is reported as a crash."""
    pool = make_pool(2)
    there = started(pool, 2)
    flag = tmp_path / "begun"

    def strike() -> None:
        until = time.monotonic() + 30
        while (not flag.exists() or flag.stat().st_size < 2) and time.monotonic() < until:
            time.sleep(0.01)
        for pid in there:
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=strike)
    killer.start()
    results = pool.run([job("hang_twice", str(flag)) for _ in range(2)] + echoes(6))
    killer.join()
    assert [r.error for r in results] == [None] * 8
    assert flag.stat().st_size == 4, "both jobs ran twice"


@pytest.mark.parametrize("method", ["sleep", "hang"])
def test_slow_job_is_killed_with_its_actor(make_pool: Callable[..., ActorPool], method: str) -> None:
    pool = make_pool(1)
    (before,) = started(pool, 1)
    slow = job("sleep", 600.0, timeout=0.4) if method == "sleep" else job("hang", timeout=0.4)
    results = pool.run([*echoes(1), slow, *echoes(2)])
    assert [r.error for r in results] == [None, "timeout", None, None]
    assert results[1].message == "killed after 0.4 s" and results[1].seconds >= 0.4
    assert gone(before)


def test_overdue_job_is_retried_if_requested(make_pool: Callable[..., ActorPool], tmp_path: Path) -> None:
    flag = tmp_path / "begun"
    results = make_pool(1, retry_overdue=True).run([job("sleep", 600.0, str(flag), timeout=0.4), *echoes(1)])
    assert [r.error for r in results] == ["crash", None] and "no answer for 0.4 s" in results[0].message
    assert flag.read_text() == "xx"


def test_idle_actor_that_does_not_answer_is_replaced(make_pool: Callable[..., ActorPool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_actor_pool, "_ANSWER_SECONDS", 0.4)
    pool = make_pool(1)
    (before,) = started(pool, 1)
    os.kill(before, signal.SIGSTOP)
    try:
        (result,) = pool.run([job("pid")])
    finally:
        os.kill(before, signal.SIGCONT)
    assert result.error is None and result.value != before


def test_interrupt_discards_in_flight_jobs(make_pool: Callable[..., ActorPool]) -> None:
    pool = make_pool(1)
    (before,) = started(pool, 1)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pool.run([job("sleep", 600.0), *echoes(3)])
    assert time.monotonic() - start < 60
    assert [r.value for r in pool.run(echoes(2))] == [0, 1]
    assert gone(before)


def test_actors_that_do_not_start_are_an_error_of_the_pool(make_pool: Callable[..., ActorPool]) -> None:
    with pytest.raises(RunError, match=r"3 times in a row a worker died during its start(.|\n)*no such device"):
        make_pool(1, True).run(echoes(1))
    with pytest.raises(UserError, match="at least 1 worker is needed, not 0"):
        make_pool(0)


def test_missing_resources_are_reported(make_pool: Callable[..., ActorPool]) -> None:
    pool = make_pool(1, resources={"moon": 2}, cpus=1, start_timeout=0.3)
    with pytest.raises(RunError, match=r"no worker started within 0.3 s.*2 moon \(0 of 0 free\), 1 CPU \([\d.]+ of 8 free\)"):
        pool.run(echoes(1))


def test_actors_that_are_not_accepted_raise(make_pool: Callable[..., ActorPool], monkeypatch: pytest.MonkeyPatch) -> None:
    handshakes: list[Handshake] = []

    def accept(handshake: Handshake) -> str:
        handshakes.append(handshake)
        return "it is Tuesday"

    with pytest.raises(RunError, match="the worker on [0-9.]+ cannot be used: it is Tuesday"):
        make_pool(1, accept=accept).run(echoes(1))
    assert handshakes[0].versions == environment().versions
    other = environment()
    monkeypatch.setattr(ray_actor_pool, "environment", lambda: Environment(other.host, {**other.versions, "llvmlite": "9.9"}))
    with pytest.raises(RunError, match=r"it has llvmlite [0-9.]+ instead of 9\.9; install the same versions on all nodes"):
        make_pool(1).run(echoes(1))


def test_closed_pool_rejects_jobs(make_pool: Callable[..., ActorPool]) -> None:
    pool = make_pool(1)
    there = started(pool, 1)
    pool.close()
    pool.close()
    with pytest.raises(RunError, match="the workers are closed"):
        pool.run(echoes(1))
    assert all(gone(pid) for pid in there)


def test_results_before_the_loss_of_all_actors_are_in_the_error(
    make_pool: Callable[..., ActorPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(1)
    (before,) = pool.run(echoes(1))
    assert before.error is None
    monkeypatch.setattr(pool, "_spawn", lambda: None)  # the node that had the device is gone
    monkeypatch.setattr(pool, "_start_timeout", 1.0)
    monkeypatch.setattr(ray_actor_pool, "WINDOW", 1)  # an answer may be lost if its actor dies right after it
    with pytest.raises(JobsLost, match="no worker started within 1 s") as caught:
        pool.run([*echoes(1), job("die"), *echoes(2)])
    first, *others = caught.value.results
    assert first is not None and first.error is None and others == [None] * 3
