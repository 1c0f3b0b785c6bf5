"""A crew of Ray actors: jobs that kill, hang and fail, actors that die by themselves, and who gets the blame."""

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

from tunesmith.measure.ray import ray_actor_pool as ray_crew
from tunesmith.measure.ray.ray_actor_pool import Actor, ActorPool, Handshake, Job
from tunesmith.measure.ray.ray_cluster import ray
from tunesmith.measure.records.environment import Environment, environment
from tunesmith.support.errors import RunError, UserError

if TYPE_CHECKING:
    from tunesmith.measure.ray.ray_cluster import RayCluster


class Doing(Actor):
    """An actor that does what tests want."""

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
        """Kill this process unless another was killed here."""
        if not Path(flag).exists():
            Path(flag).touch()
            time.sleep(0.2)  # what it answered before gets out
            self.die()
        return "alive"

    def sleep(self, seconds: float, flag: str = "") -> None:
        if flag:
            with open(flag, "a") as file:
                file.write("x")
        time.sleep(seconds)

    def hang(self) -> None:
        """In native code, with the lock of the interpreter held."""
        ctypes.PyDLL(None).sleep(600)

    def fail(self, kind: str) -> None:
        raise {"ValueError": ValueError, "MemoryError": MemoryError, "SystemExit": SystemExit}[kind]("a reason\nand more")


@pytest.fixture(scope="module", autouse=True)
def by_value() -> Iterator[None]:
    """Actors get the classes of this module themselves: they cannot import it."""
    module = sys.modules[__name__]
    ray.cloudpickle.register_pickle_by_value(module)
    yield
    ray.cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture
def hire(ray_cluster: RayCluster) -> Iterator[Callable[..., ActorPool]]:
    made: list[ActorPool] = []

    def make(count: int = 2, *arguments: object, **settings: Any) -> ActorPool:
        made.append(ActorPool(Doing, arguments, count, "worker", **settings))
        return made[-1]

    yield make
    for crew in made:
        crew.close()


def job(method: str, *arguments: object, timeout: float = 60.0) -> Job:
    return Job(method, arguments, timeout)


def echoes(n: int) -> list[Job]:
    return [job("echo", i) for i in range(n)]


def pids(crew: ActorPool) -> list[int]:
    return [m.greeting.pid for m in crew._crew if m.greeting is not None]


def gone(pid: int) -> bool:
    """The process ends, within a while."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def started(crew: ActorPool, count: int) -> list[int]:
    until = time.monotonic() + 60
    while len(pids(crew)) < count and time.monotonic() < until:
        crew.run([job("sleep", 0.05) for _ in range(2 * count)])
    return pids(crew)


def test_results_are_in_the_order_of_the_jobs_and_both_work(hire: Callable[..., ActorPool]) -> None:
    crew = hire()
    assert crew.run([]) == []
    there = started(crew, 2)
    results = crew.run([job("pid") if i % 2 else job("echo", i) for i in range(20)])
    assert [r.ticket for r in results] == list(range(20)) and all(r.error is None and r.seconds > 0 for r in results)
    assert [r.value for r in results[::2]] == list(range(0, 20, 2))
    assert {r.value for r in results[1::2]} == set(there)


def test_what_a_job_raises_is_its_result(hire: Callable[..., ActorPool]) -> None:
    crew = hire(1)
    (before,) = started(crew, 1)
    first, second, third, last = crew.run([job("fail", "ValueError"), job("fail", "SystemExit"), job("no_such"), job("pid")])
    assert (first.error, first.exception, first.message) == ("error", "ValueError", "ValueError: a reason")
    assert "and more" in first.detail and "Traceback" in first.detail
    assert second.exception == "SystemExit" and third.exception == "AttributeError"
    assert last.value == before


def test_memory_that_ran_out_costs_the_actor(hire: Callable[..., ActorPool]) -> None:
    crew = hire(1)
    (before,) = started(crew, 1)
    failed, after = crew.run([job("fail", "MemoryError"), job("pid")])
    assert failed.exception == "MemoryError" and after.error is None and after.value != before
    assert gone(before)


def test_a_job_that_kills_two_actors_is_a_crash_and_costs_no_other(hire: Callable[..., ActorPool]) -> None:
    jobs = echoes(12)
    jobs[3] = jobs[4] = job("die")
    results = hire().run(jobs)
    assert [r.error for r in results] == ["crash" if i in (3, 4) else None for i in range(12)]
    assert [r.value for r in results if r.error is None] == [i for i in range(12) if i not in (3, 4)]
    assert "the worker process died (" in results[3].message and "as another did before" in results[3].message
    assert "actor" in results[3].detail


def test_a_job_whose_actor_was_killed_gets_a_second_chance(hire: Callable[..., ActorPool], tmp_path: Path) -> None:
    results = hire(1).run([*echoes(2), job("die_once", str(tmp_path / "flag")), *echoes(2)])
    assert [(r.error, r.value) for r in results] == [(None, 0), (None, 1), (None, "alive"), (None, 0), (None, 1)]


def test_a_suspect_is_tried_alone(hire: Callable[..., ActorPool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, list[int | None]]] = []
    give = ray_crew._PooledActor.give

    def noted(self: ray_crew._PooledActor, index: int, job: Job) -> None:
        given.append((index, [s.index for s in self.sent]))
        give(self, index, job)

    monkeypatch.setattr(ray_crew._PooledActor, "give", noted)
    hire(1).run([job("die_once", str(tmp_path / "flag")), *echoes(3)])
    second = max(i for i, (index, _) in enumerate(given) if index == 0)
    assert [index for index, _ in given].count(0) == 2
    assert given[second] == (0, []) and all(0 not in beside for _, beside in given[second + 1 :])


def test_actors_that_died_while_idle_are_nobodys_fault(hire: Callable[..., ActorPool]) -> None:
    crew = hire(2)
    there = started(crew, 2)
    for pid in there:
        os.kill(pid, signal.SIGKILL)
    assert all(gone(pid) for pid in there)
    results = crew.run(echoes(1))
    assert (results[0].error, results[0].value) == (None, 0)
    assert not set(started(crew, 2)) & set(there)


def test_a_suspect_is_tried_alone_on_an_actor_that_has_just_answered(hire: Callable[..., ActorPool], tmp_path: Path) -> None:
    """All actors die at once, as with their machine, while each has a job: nobody is blamed twice."""
    crew = hire(2)
    there = started(crew, 2)
    flag = tmp_path / "begun"

    def strike() -> None:
        until = time.monotonic() + 30
        while (not flag.exists() or flag.stat().st_size < 2) and time.monotonic() < until:
            time.sleep(0.01)
        for pid in there:
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=strike)
    killer.start()
    results = crew.run([job("sleep", 1.0, str(flag)) for _ in range(2)] + echoes(6))
    killer.join()
    assert [r.error for r in results] == [None] * 8
    assert flag.stat().st_size == 4, "both were done twice"


@pytest.mark.parametrize("method", ["sleep", "hang"])
def test_a_job_that_takes_too_long_is_killed_with_its_actor(hire: Callable[..., ActorPool], method: str) -> None:
    crew = hire(1)
    (before,) = started(crew, 1)
    slow = job("sleep", 600.0, timeout=0.4) if method == "sleep" else job("hang", timeout=0.4)
    results = crew.run([*echoes(1), slow, *echoes(2)])
    assert [r.error for r in results] == [None, "timeout", None, None]
    assert results[1].message == "killed after 0.4 s" and results[1].seconds >= 0.4
    assert gone(before)


def test_where_jobs_have_limits_of_their_own_a_late_one_is_tried_again(hire: Callable[..., ActorPool], tmp_path: Path) -> None:
    flag = tmp_path / "begun"
    results = hire(1, retry_overdue=True).run([job("sleep", 600.0, str(flag), timeout=0.4), *echoes(1)])
    assert [r.error for r in results] == ["crash", None] and "no answer for 0.4 s" in results[0].message
    assert flag.read_text() == "xx"


def test_an_idle_actor_that_does_not_answer_is_given_up(hire: Callable[..., ActorPool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_crew, "_ANSWER_SECONDS", 0.4)
    crew = hire(1)
    (before,) = started(crew, 1)
    os.kill(before, signal.SIGSTOP)
    try:
        (result,) = crew.run([job("pid")])
    finally:
        os.kill(before, signal.SIGCONT)
    assert result.error is None and result.value != before


def test_after_an_interrupt_nothing_of_the_old_run_is_left(hire: Callable[..., ActorPool]) -> None:
    crew = hire(1)
    (before,) = started(crew, 1)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        crew.run([job("sleep", 600.0), *echoes(3)])
    assert time.monotonic() - start < 60
    assert [r.value for r in crew.run(echoes(2))] == [0, 1]
    assert gone(before)


def test_actors_that_do_not_start_are_an_error_of_the_crew(hire: Callable[..., ActorPool]) -> None:
    with pytest.raises(RunError, match=r"3 times in a row a worker died while it started(.|\n)*no such device"):
        hire(1, True).run(echoes(1))
    with pytest.raises(UserError, match="at least 1 worker is needed, not 0"):
        hire(0)


def test_where_there_is_no_room_it_is_said(hire: Callable[..., ActorPool]) -> None:
    crew = hire(1, resources={"moon": 2}, cpus=1, start_timeout=0.3)
    with pytest.raises(RunError, match=r"no worker started within 0.3 s.*2 moon \(0 of 0 free\), 1 CPU \([\d.]+ of 8 free\)"):
        crew.run(echoes(1))


def test_what_is_not_accepted_does_nothing(hire: Callable[..., ActorPool], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Handshake] = []

    def accept(greeting: Handshake) -> str:
        asked.append(greeting)
        return "it is Tuesday"

    with pytest.raises(RunError, match="the worker on [0-9.]+ cannot be used: it is Tuesday"):
        hire(1, accept=accept).run(echoes(1))
    assert asked[0].versions == environment().versions
    other = environment()
    monkeypatch.setattr(ray_crew, "environment", lambda: Environment(other.host, {**other.versions, "llvmlite": "9.9"}))
    with pytest.raises(RunError, match=r"it has llvmlite [0-9.]+ instead of 9\.9; install the same on all nodes"):
        hire(1).run(echoes(1))


def test_closed_means_closed(hire: Callable[..., ActorPool]) -> None:
    crew = hire(1)
    there = started(crew, 1)
    crew.close()
    crew.close()
    with pytest.raises(RunError, match="the workers are closed"):
        crew.run(echoes(1))
    assert all(gone(pid) for pid in there)
