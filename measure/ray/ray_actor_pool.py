"""A crew of Ray actors that do jobs, and what becomes of a job whose actor dies, hangs, or was dead before.

An actor does its jobs in the order they were sent, so when it dies the first without an answer is the suspect and the others go
back to the queue.  A job that is sent to an idle actor follows a greeting: an actor that does not answer it had died before, and the
job is not to blame.  A suspect is tried once more, alone, on an actor that has just answered; if that dies too, the job did it.
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
"""Jobs under way in an actor: one that it does and one that waits there, so that it never waits for us."""
_BAD_STARTS = 3
_ANSWER_SECONDS = 60.0
"""An actor that has nothing to do and does not answer for so long is given up."""


@dataclass(frozen=True, slots=True)
class Job:
    """A call of a method of the actor's object.

    Attributes:
        method: its name.
        arguments: plain data.
        timeout: seconds it may take once the actor has begun it; the actor is killed then.
    """

    method: str
    arguments: tuple[object, ...]
    timeout: float


@dataclass(frozen=True, slots=True)
class Handshake:
    """What an actor says of itself.

    Attributes:
        node: address of its machine.
        pid: its process there.
        versions: as `environment` has them; all processes of a search must have the same.
        facts: what else its kind of worker has to say.
    """

    node: str
    pid: int
    versions: dict[str, object]
    facts: dict[str, object]


class Actor:
    """What lives in an actor.  Kinds of workers derive from this and add methods, which are the jobs."""

    def hello(self) -> Handshake:
        """It is alive, and this is where."""
        return Handshake(ray.util.get_node_ip_address(), os.getpid(), environment().versions, self.facts())

    def facts(self) -> dict[str, object]:
        """What else there is to say in a greeting."""
        return {}

    def do(self, method: str, *arguments: object) -> tuple[object, ...]:
        """Do one job.  Whatever it raises, SystemExit included, is data."""
        try:
            return ("done", getattr(self, method)(*arguments))
        except BaseException as error:
            return ("error", type(error).__name__, str(error), traceback.format_exc())


@dataclass(slots=True)
class _Sent:
    """A call without an answer.  `index` is the job's place in the run; None for a greeting."""

    index: int | None
    reference: Any
    timeout: float | None


@dataclass(slots=True)
class _PooledActor:
    """An actor: what was sent to it, since when it works on the first of that, and how it greeted us."""

    actor: Any
    sent: deque[_Sent] = field(default_factory=deque)
    since: float = 0.0
    greeting: Handshake | None = None

    @property
    def ready(self) -> bool:
        """It has started."""
        return self.greeting is not None

    def handshake(self, timeout: float | None) -> None:
        """Ask whether it is there."""
        self._send(_Sent(None, self.actor.hello.remote(), timeout))

    def give(self, index: int, job: Job) -> None:
        """Send a job."""
        if not self.sent:
            self.handshake(_ANSWER_SECONDS)
        self._send(_Sent(index, self.actor.do.remote(job.method, *job.arguments), job.timeout))

    def answered(self) -> float:
        """Drop the first, which has its answer; returns the seconds it took."""
        now = time.monotonic()
        seconds, self.since = now - self.since, now
        self.sent.popleft()
        return seconds

    @property
    def deadline(self) -> float | None:
        """When the first of what was sent has taken too long; None for never."""
        if not self.sent or self.sent[0].timeout is None:
            return None
        return self.since + self.sent[0].timeout

    def _send(self, sent: _Sent) -> None:
        if not self.sent:
            self.since = time.monotonic()
        self.sent.append(sent)


class _Run:
    """The jobs of one `ActorPool.run` and what is known of them."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.results: dict[int, JobResult] = {}
        self.waiting = deque(range(len(jobs)))
        self.suspects: deque[int] = deque()
        self._deaths = [0] * len(jobs)

    @property
    def over(self) -> bool:
        return len(self.results) == len(self.jobs)

    def end(self, index: int, seconds: float, value: object = None, error: str | None = None, **words: str) -> None:
        """Note how a job ended; the words are those of `JobResult`."""
        text = {"message": "", "exception": "", "detail": "", **words}
        self.results[index] = JobResult(index, value, error, seconds=seconds, **text)

    def attribute_crash(self, index: int, seconds: float, why: str, detail: str) -> None:
        """The actor that did the job is gone: the job gets a second chance, or is a crash."""
        self._deaths[index] += 1
        if self._deaths[index] < 2:
            self.suspects.append(index)
        else:
            self.end(index, seconds, error="crash", message=f"the worker process died ({why}), as another did before", detail=detail)

    def tries_again(self, member: _PooledActor) -> bool:
        """A suspect stays alone: a job behind it that kills the actor at once would take the suspect's answer along."""
        return any(s.index is not None and self._deaths[s.index] > 0 for s in member.sent)

    def put_back(self, indices: Sequence[int]) -> None:
        """These were sent to an actor that did not come to them."""
        for index in reversed(indices):
            (self.suspects if self._deaths[index] else self.waiting).appendleft(index)


class ActorPool:
    """A number of actors of one kind.  They start in the background; one that is lost is replaced.  For one thread at a time.

    Args:
        kind: class of what lives in an actor.
        arguments: of its constructor.
        count: number of actors, at least 1.
        name: what they are, in messages: "builder".
        cpus: that an actor takes, as Ray counts them.
        resources: that an actor takes beside them.
        accept: called with the first greeting of an actor; says why it cannot be used, or returns None.
        retry_overdue: a job that takes too long is treated like one whose actor died: its own limits should have ended it.
        start_timeout: seconds in which some actor must have started.

    Raises:
        UserError: fewer than 1 actor is asked for.
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
        self._crew: list[_PooledActor] = []
        self._bad_starts = 0
        self._seen = 0.0  # when an actor was last there, in this run
        self._closed = False
        self._spawn()

    def run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """Do these jobs and return their results in the order of the jobs.

        A result without error holds what the method returned.

        Raises:
            RunError: actors do not start, are refused, or the crew is closed: no job is to blame for that.
        """
        if self._closed:
            raise RunError(f"the {self._name}s are closed: make new ones")
        run = _Run(jobs)
        self._seen = time.monotonic()
        try:
            while not run.over:
                self._spawn()
                self._dispatch(run)
                self._listen(run)
        finally:
            for member in [m for m in self._crew if m.ready and m.sent]:  # something was raised: what goes on is nobody's any more
                self._remove(member)
        return [run.results[i] for i in range(len(jobs))]

    def close(self) -> None:
        """End the actors.  Closing twice is fine."""
        self._closed = True
        if ray.is_initialized():
            for member in list(self._crew):
                self._remove(member)

    def _spawn(self) -> None:
        while len(self._crew) < self.count:
            member = _PooledActor(self._factory.remote(*self._arguments))
            member.handshake(None)  # it may have to wait for a place
            self._crew.append(member)

    def _dispatch(self, run: _Run) -> None:
        while run.waiting or run.suspects:
            free = [m for m in self._crew if m.ready and sum(s.index is not None for s in m.sent) < WINDOW and not run.tries_again(m)]
            if not free:
                return
            member = min(free, key=lambda m: len(m.sent))
            if not member.sent and run.suspects:
                index = run.suspects.popleft()
            elif run.waiting:
                index = run.waiting.popleft()
            else:
                return
            member.give(index, run.jobs[index])

    def _listen(self, run: _Run) -> None:
        """Wait until something happens, and deal with it."""
        now = time.monotonic()
        if any(m.ready for m in self._crew):
            self._seen = now
        deadlines = [m.deadline for m in self._crew if m.deadline is not None] or [self._seen + self._start_timeout]
        heads = {m.sent[0].reference: m for m in self._crew if m.sent}
        ready, _ = ray.wait(list(heads), num_returns=1, timeout=max(0.0, min(deadlines) - now))
        if ready:
            ready, _ = ray.wait(list(heads), num_returns=len(heads), timeout=0)
        for reference in ready:
            self._hear(heads[reference], run)
        now = time.monotonic()
        for member in [m for m in self._crew if m.deadline is not None and m.deadline <= now]:
            self._overdue(member, run)
        if not any(m.ready for m in self._crew) and now - self._seen >= self._start_timeout:
            raise RunError(self._nobody())

    def _hear(self, member: _PooledActor, run: _Run) -> None:
        """Take an answer of an actor, or notice its death."""
        head = member.sent[0]
        try:
            answer = ray.get(head.reference)
        except ray.exceptions.RayTaskError as error:  # Ray could not even read what was sent, or send what came out
            if head.index is None:
                raise RunError(f"a {self._name} does not answer: {error}") from None
            raised, _, message = str(error).strip().splitlines()[-1].partition(": ")
            answer = ("error", raised, message, str(error))
        except Exception as error:  # it is gone, or its memory is ruined and it answers with garbage
            self._lost(member, error, run)
            return
        seconds = member.answered()
        if head.index is None:
            if not member.ready:
                self._welcome(member, answer)
            return
        self._bad_starts = 0
        kind, *rest = answer
        if kind == "done":
            run.end(head.index, seconds, rest[0])
            return
        exception, message, detail = rest
        first = f"{exception}: {message}".splitlines()[0]
        run.end(head.index, seconds, error="error", message=first, exception=exception, detail=detail)
        if exception == "MemoryError":  # what is left of its memory would fail the next job too
            self._remove(member)
            run.put_back([s.index for s in member.sent if s.index is not None])

    def _welcome(self, member: _PooledActor, greeting: Handshake) -> None:
        wanted = environment().versions
        other = [f"{name} {greeting.versions.get(name)} instead of {v}" for name, v in wanted.items() if greeting.versions.get(name) != v]
        refusal = f"it has {', '.join(other)}; install the same on all nodes" if other else None
        if refusal is None and self._accept is not None:
            refusal = self._accept(greeting)
        if refusal is not None:
            self._remove(member)
            raise RunError(f"the {self._name} on {greeting.node} cannot be used: {refusal}")
        member.greeting = greeting

    def _lost(self, member: _PooledActor, error: Exception, run: _Run) -> None:
        why, detail = _reason(error), str(error)
        if not member.ready:
            self._remove(member)
            self._bad_starts += 1
            if self._bad_starts >= _BAD_STARTS:
                raise RunError(f"{self._bad_starts} times in a row a {self._name} died while it started ({why}). {detail}")
            return
        self._give_up(member, run, why, detail)

    def _give_up(self, member: _PooledActor, run: _Run, why: str, detail: str) -> None:
        """Replace an actor; if it was at work, that is the suspect."""
        seconds = time.monotonic() - member.since
        self._remove(member)
        first, *rest = [s.index for s in member.sent]
        if first is not None:
            run.attribute_crash(first, seconds, why, detail)
        run.put_back([i for i in rest if i is not None])

    def _overdue(self, member: _PooledActor, run: _Run) -> None:
        head, seconds = member.sent[0], time.monotonic() - member.since
        if head.index is None or self._retry_overdue:
            self._give_up(member, run, f"no answer for {head.timeout:g} s", "")
            return
        self._remove(member)
        run.end(head.index, seconds, error="timeout", message=f"killed after {head.timeout:g} s")
        run.put_back([s.index for s in member.sent if s.index is not None and s is not head])

    def _remove(self, member: _PooledActor) -> None:
        self._crew.remove(member)
        ray.kill(member.actor)

    def _nobody(self) -> str:
        wanted = {**dict(self._resources), "CPU": self._cpus}
        there, free = ray.cluster_resources(), ray.available_resources()
        needs = ", ".join(f"{n} {name} ({free.get(name, 0):g} of {there.get(name, 0):g} free)" for name, n in wanted.items() if n)
        return (
            f"no {self._name} started within {self._start_timeout:g} s. Each needs, on one node of the cluster: {needs}. "
            "Start more nodes, or wait until others have finished"
        )


def _reason(error: Exception) -> str:
    """Ray's reason in a few words: its messages are paragraphs."""
    text = str(error)
    for start in ("Worker exit detail: ", "The actor is dead because "):
        _, found, rest = text.partition(start)
        if found:
            return rest.split(". Some common causes")[0].split("\n")[0].strip().rstrip(".")
    return (text.splitlines() or [type(error).__name__])[0]
