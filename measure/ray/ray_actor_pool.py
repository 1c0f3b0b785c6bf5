"""Run jobs on a pool of Ray actors, with timeouts, replacement of dead actors and crash attribution.

An actor runs its jobs in the order of dispatch.  If it dies, the crash is attributed to the first unanswered job, and the other jobs are
requeued.  A job dispatched to an idle actor follows a handshake: if the handshake is not answered, the actor had died before, and the job
is not the cause.  A job to which a crash was attributed is retried once, alone, on an actor that has just answered; a second death is
reported as a crash of the job.
"""

from __future__ import annotations

import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunesmith.measure.ray.ray_cluster import ray
from tunesmith.measure.records.environment import environment
from tunesmith.support.errors import RunError, UserError
from tunesmith.support.worker_pool import JobResult

WINDOW = 2
"""In-flight jobs per actor: one running and one queued, so that actors are never idle between jobs."""
_BAD_STARTS = 3
_ANSWER_SECONDS = 60.0
"""Seconds after which an idle actor that does not answer a handshake is replaced."""


@dataclass(frozen=True, slots=True)
class Job:
    """A method call on an actor.

    Attributes:
        method: name of the method.
        arguments: plain data.
        timeout: seconds after the job's start when the actor is killed.
    """

    method: str
    arguments: tuple[object, ...]
    timeout: float


@dataclass(frozen=True, slots=True)
class Handshake:
    """An actor's description of itself.

    Attributes:
        node: address of its machine.
        pid: its process id.
        versions: software versions, see `environment`; they must be equal in all processes of a search.
        facts: further facts, specific to the kind of actor.
    """

    node: str
    pid: int
    versions: dict[str, object]
    facts: dict[str, object]


class JobsLost(RunError):
    """No actor can run the remaining jobs.

    Attributes:
        results: result of each job that ended before; None for the others.
    """

    def __init__(self, message: str, results: Sequence[JobResult | None]) -> None:
        super().__init__(message)
        self.results = tuple(results)


class Actor:
    """Base class of actors.  Subclasses add methods, which are called by jobs."""

    def hello(self) -> Handshake:
        """Answer a handshake."""
        return Handshake(ray.util.get_node_ip_address(), os.getpid(), environment().versions, self.facts())

    def facts(self) -> dict[str, object]:
        """Further facts for the handshake."""
        return {}

    def do(self, method: str, *arguments: object) -> tuple[object, ...]:
        """Run one job.  Exceptions, including SystemExit, are returned as data."""
        try:
            return ("done", getattr(self, method)(*arguments))
        except BaseException as error:
            return ("error", type(error).__name__, str(error), traceback.format_exc())


@dataclass(slots=True)
class _InFlight:
    """An unanswered call.  `index` is the job's index in the run; None for a handshake."""

    index: int | None
    reference: Any
    timeout: float | None


@dataclass(slots=True)
class _PooledActor:
    """An actor with its in-flight calls, the start time of the first of them, and its first handshake."""

    handle: Any
    in_flight: deque[_InFlight] = field(default_factory=deque)
    since: float = 0.0
    handshake: Handshake | None = None

    @property
    def ready(self) -> bool:
        """True if the actor has started."""
        return self.handshake is not None

    def request_handshake(self, timeout: float | None) -> None:
        """Send a handshake."""
        self._send(_InFlight(None, self.handle.hello.remote(), timeout))

    def dispatch(self, index: int, job: Job) -> None:
        """Send a job, after a handshake if the actor is idle."""
        if not self.in_flight:
            self.request_handshake(_ANSWER_SECONDS)
        self._send(_InFlight(index, self.handle.do.remote(job.method, *job.arguments), job.timeout))

    def answered(self) -> float:
        """Remove the first call, which was answered, and return its seconds."""
        now = time.monotonic()
        seconds, self.since = now - self.since, now
        self.in_flight.popleft()
        return seconds

    @property
    def deadline(self) -> float | None:
        """Deadline of the first in-flight call; None if it has none."""
        if not self.in_flight or self.in_flight[0].timeout is None:
            return None
        return self.since + self.in_flight[0].timeout

    def _send(self, call: _InFlight) -> None:
        if not self.in_flight:
            self.since = time.monotonic()
        self.in_flight.append(call)


class _Run:
    """State of the jobs of one `ActorPool.run`."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.results: dict[int, JobResult] = {}
        self.waiting = deque(range(len(jobs)))
        self.retries: deque[int] = deque()
        self._deaths = [0] * len(jobs)

    @property
    def over(self) -> bool:
        return len(self.results) == len(self.jobs)

    def end(self, index: int, seconds: float, value: object = None, error: str | None = None, **words: str) -> None:
        """Store the result of a job; `words` are the text fields of `JobResult`."""
        text = {"message": "", "exception": "", "detail": "", **words}
        self.results[index] = JobResult(index, value, error, seconds=seconds, **text)

    def attribute_crash(self, index: int, seconds: float, why: str, detail: str, handshake: Handshake | None) -> None:
        """Attribute the death of an actor to its job: the first time the job is retried, the second time it is a crash."""
        self._deaths[index] += 1
        if self._deaths[index] < 2:
            self.retries.append(index)
        else:
            message = f"the worker process died ({why}), as another did before"
            self.end(index, seconds, handshake, error="crash", message=message, detail=detail)

    def is_retrying(self, actor: _PooledActor) -> bool:
        """True if the actor runs a retried job.  It must run alone: a crash of the next job could lose its answer."""
        return any(call.index is not None and self._deaths[call.index] > 0 for call in actor.in_flight)

    def requeue(self, indices: Sequence[int]) -> None:
        """Queue jobs again that were dispatched but not started."""
        for index in reversed(indices):
            (self.retries if self._deaths[index] else self.waiting).appendleft(index)


class ActorPool:
    """A pool of actors of one kind, which start in the background.  Lost actors are replaced.  Not thread-safe.

    Args:
        kind: class of the actors.
        arguments: arguments of its constructor.
        count: number of actors, at least 1.
        name: what the actors are called in messages, for example "builder".
        cpus: CPUs per actor, as counted by Ray.
        resources: further resources per actor.
        accept: called with the first handshake of an actor; returns the reason why it cannot be used, or None.
        retry_overdue: treat a job that exceeds its timeout like one whose actor died, because its own limits should have ended it.
        start_timeout: seconds within which at least one actor must start.

    Raises:
        UserError: `count` is less than 1.
    """

    def __init__(
        self,
        kind: type[Actor],
        arguments: Sequence[object],
        count: int,
        name: str,
        *,
        cpus: int = 0,
        resources: Mapping[str, float] | None = None,
        accept: Callable[[Handshake], str | None] | None = None,
        retry_overdue: bool = False,
        start_timeout: float = 120.0,
    ) -> None:
        if count < 1:
            raise UserError(f"at least 1 {name} is needed, not {count}")
        self.count = count
        self._cpus, self._resources = cpus, dict(resources or {})
        options = {"num_cpus": cpus, "resources": self._resources, "scheduling_strategy": "SPREAD"}
        self._factory = ray.remote(kind).options(max_restarts=0, max_task_retries=0, **options)
        self._arguments = tuple(arguments)
        self._name = name
        self._accept = accept
        self._retry_overdue = retry_overdue
        self._start_timeout = start_timeout
        self._actors: list[_PooledActor] = []
        self._bad_starts = 0
        self._last_ready = 0.0  # last time in this run at which some actor was ready
        self._closed = False
        self._spawn()

    def run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """Run the jobs and return their results in job order.

        A result without error holds the return value of the method; that of a job that ended its actor holds the actor's handshake.

        Raises:
            JobsLost: actors do not start or are rejected; not caused by a job.
            RunError: the pool is closed.
        """
        if self._closed:
            raise RunError(f"the {self._name}s are closed: create new ones")
        run = _Run(jobs)
        self._last_ready = time.monotonic()
        try:
            while not run.over:
                self._spawn()
                self._dispatch(run)
                self._process_events(run)
        except RunError as error:
            raise JobsLost(str(error), [run.results.get(i) for i in range(len(jobs))]) from error
        finally:
            for actor in [a for a in self._actors if a.ready and a.in_flight]:  # after an error, in-flight results are not needed
                self._remove(actor)
        return [run.results[i] for i in range(len(jobs))]

    def close(self) -> None:
        """Stop the actors.  Idempotent."""
        self._closed = True
        if ray.is_initialized():
            for actor in list(self._actors):
                self._remove(actor)

    def _spawn(self) -> None:
        while len(self._actors) < self.count:
            actor = _PooledActor(self._factory.remote(*self._arguments))
            actor.request_handshake(None)  # without a deadline, as the actor may wait for resources
            self._actors.append(actor)

    def _dispatch(self, run: _Run) -> None:
        while run.waiting or run.retries:
            free = [
                a
                for a in self._actors
                if a.ready and sum(call.index is not None for call in a.in_flight) < WINDOW and not run.is_retrying(a)
            ]
            if not free:
                return
            actor = min(free, key=lambda a: len(a.in_flight))
            if not actor.in_flight and run.retries:
                index = run.retries.popleft()
            elif run.waiting:
                index = run.waiting.popleft()
            else:
                return
            actor.dispatch(index, run.jobs[index])

    def _process_events(self, run: _Run) -> None:
        """Wait for an answer, a death or a deadline, and process it."""
        now = time.monotonic()
        if any(a.ready for a in self._actors):
            self._last_ready = now
        deadlines = [a.deadline for a in self._actors if a.deadline is not None] or [self._last_ready + self._start_timeout]
        heads = {a.in_flight[0].reference: a for a in self._actors if a.in_flight}
        ready, _ = ray.wait(list(heads), num_returns=1, timeout=max(0.0, min(deadlines) - now))
        if ready:
            ready, _ = ray.wait(list(heads), num_returns=len(heads), timeout=0)
        for reference in ready:
            self._receive(heads[reference], run)
        now = time.monotonic()
        for actor in [a for a in self._actors if a.deadline is not None and a.deadline <= now]:
            self._overdue(actor, run)
        if not any(a.ready for a in self._actors) and now - self._last_ready >= self._start_timeout:
            raise RunError(self._start_failure())

    def _receive(self, actor: _PooledActor, run: _Run) -> None:
        """Process an answer of an actor, or its death."""
        head = actor.in_flight[0]
        try:
            answer = ray.get(head.reference)
        except ray.exceptions.RayTaskError as error:  # Ray could not deserialise the job, or serialise its result
            if head.index is None:
                raise RunError(f"a {self._name} does not answer: {error}") from None
            raised, _, message = str(error).strip().splitlines()[-1].partition(": ")
            answer = ("error", raised, message, str(error))
        except Exception as error:  # the actor died, or its memory is corrupted and the answer is invalid
            self._lost(actor, error, run)
            return
        seconds = actor.answered()
        if head.index is None:
            if not actor.ready:
                self._check_handshake(actor, answer)
            return
        self._bad_starts = 0
        kind, *rest = answer
        if kind == "done":
            run.end(head.index, seconds, rest[0])
            return
        exception, message, detail = rest
        first = f"{exception}: {message}".splitlines()[0]
        run.end(head.index, seconds, error="error", message=first, exception=exception, detail=detail)
        if exception == "MemoryError":  # the next job would run out of memory, too
            self._remove(actor)
            run.requeue([call.index for call in actor.in_flight if call.index is not None])

    def _check_handshake(self, actor: _PooledActor, handshake: Handshake) -> None:
        expected = environment().versions
        other = [
            f"{name} {handshake.versions.get(name)} instead of {v}" for name, v in expected.items() if handshake.versions.get(name) != v
        ]
        refusal = f"it has {', '.join(other)}; install the same versions on all nodes" if other else None
        if refusal is None and self._accept is not None:
            refusal = self._accept(handshake)
        if refusal is not None:
            self._remove(actor)
            raise RunError(f"the {self._name} on {handshake.node} cannot be used: {refusal}")
        actor.handshake = handshake

    def _lost(self, actor: _PooledActor, error: Exception, run: _Run) -> None:
        why, detail = _reason(error), str(error)
        if not actor.ready:
            self._remove(actor)
            self._bad_starts += 1
            if self._bad_starts >= _BAD_STARTS:
                raise RunError(f"{self._bad_starts} times in a row a {self._name} died during its start ({why}). {detail}")
            return
        self._discard(actor, run, why, detail)

    def _discard(self, actor: _PooledActor, run: _Run, why: str, detail: str) -> None:
        """Remove an actor, attribute the crash to its running job, if any, and requeue the others."""
        seconds = time.monotonic() - actor.since
        self._remove(actor)
        first, *rest = [call.index for call in actor.in_flight]
        if first is not None:
            run.attribute_crash(first, seconds, why, detail, actor.handshake)
        run.requeue([i for i in rest if i is not None])

    def _overdue(self, actor: _PooledActor, run: _Run) -> None:
        head, seconds = actor.in_flight[0], time.monotonic() - actor.since
        if head.index is None or self._retry_overdue:
            self._discard(actor, run, f"no answer for {head.timeout:g} s", "")
            return
        self._remove(actor)
        run.end(head.index, seconds, actor.handshake, error="timeout", message=f"killed after {head.timeout:g} s")
        run.requeue([call.index for call in actor.in_flight if call.index is not None and call is not head])

    def _remove(self, actor: _PooledActor) -> None:
        self._actors.remove(actor)
        ray.kill(actor.handle)

    def _start_failure(self) -> str:
        required = {**dict(self._resources), "CPU": self._cpus}
        total, free = ray.cluster_resources(), ray.available_resources()
        needs = ", ".join(f"{n} {name} ({free.get(name, 0):g} of {total.get(name, 0):g} free)" for name, n in required.items() if n)
        return (
            f"no {self._name} started within {self._start_timeout:g} s. Each needs, on one node of the cluster: {needs}. "
            "Start more nodes, or wait until other jobs have finished"
        )


def _reason(error: Exception) -> str:
    """The cause in one phrase, extracted from Ray's message, which is a paragraph."""
    text = str(error)
    for start in ("Worker exit detail: ", "The actor is dead because "):
        _, found, rest = text.partition(start)
        if found:
            return rest.split(". Some common causes")[0].split("\n")[0].strip().rstrip(".")
    return (text.splitlines() or [type(error).__name__])[0]
