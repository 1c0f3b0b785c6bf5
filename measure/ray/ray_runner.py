"""A runner on each device of a Ray cluster: candidates are spread over devices of one kind, and a device that is lost costs time only.

An actor owns a device and holds a `LocalRunner`: a candidate that crashes ends a process below the actor, not the actor.  What a workload's
candidates share (the program that serves as reference, or the right outputs) travels once to each actor, by Ray's object store.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tunesmith.codegen.artifact import Code
from tunesmith.ir.target.target import Target
from tunesmith.measure.job_errors import error_of
from tunesmith.measure.local_runner import MEMORY_LIMIT, LocalRunner
from tunesmith.measure.ray.ray_actor_pool import Actor, ActorPool, Job
from tunesmith.measure.ray.ray_cluster import RUNNER, RayCluster, ray
from tunesmith.measure.records.environment import environment
from tunesmith.measure.runner import Runner, RunRequest, RunResult, RunSetup
from tunesmith.measure.timing_policy import RacePolicy
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.support.errors import RunError, TargetError, UserError
from tunesmith.support.worker_pool import JobResult

_KEPT = 4
"""Workloads whose setups are kept, here and in the actors: as many as a workbench keeps."""
_GRACE = 60.0
"""Seconds beyond its own limits after which an actor that does not answer is given up."""

_Sent = tuple[str, Any]
"""Key of a setup, and where it can be had.  Inside of a tuple, because Ray would fetch a bare argument before each call."""


class RayRunner(Runner):
    """An actor on each device, placed by a resource that the nodes have: `ray start --resources '{"tunesmith_cpu": 1}'`.

    Args:
        cluster: where they live.
        target: what candidates are built for.  A machine with another processor, or fewer cores, is refused.
        runners: number of actors; by default as many as the cluster has of the resource.
        resource: its name.
        timeout, setup_timeout, memory_limit: as for `LocalRunner`.
        start_timeout: seconds in which some actor must have started.

    Raises:
        UserError: no node has the resource.
    """

    def __init__(
        self,
        cluster: RayCluster,
        target: Target,
        runners: int | None = None,
        *,
        resource: str = RUNNER,
        timeout: float = 10.0,
        setup_timeout: float = 300.0,
        memory_limit: int | None = MEMORY_LIMIT,
        start_timeout: float = 120.0,
    ) -> None:
        there = cluster.count(resource)
        if there < 1:
            raise UserError(
                f"no node of the Ray cluster may run candidates: none has the resource {resource!r}. Start those that may with "
                f"ray start --resources '{{\"{resource}\": 1}}'"
            )
        self._cluster = cluster  # which lives as long as its actors
        self._timeout, self._limit = timeout, setup_timeout + timeout + _GRACE
        self._setups: OrderedDict[str, Any] = OrderedDict()
        self.slots = there if runners is None else runners
        self._crew = ActorPool(
            _RunActor,
            (target.kind, target.num_cores, timeout, setup_timeout, memory_limit),
            self.slots,
            "runner",
            resources={resource: 1},
            accept=lambda greeting: refusal(target, greeting.facts),
            retry_overdue=True,
            start_timeout=start_timeout,
        )

    def run(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        """See `Runner.run`.  A candidate whose actor was lost twice is a crash."""
        jobs = [Job("run", (self._ship(r.setup), r.code, r.policy, r.best, r.verify), self._limit) for r in requests]
        return [_result(job) for job in self._crew.run(jobs)]

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        """See `Runner.compare`.  All of them run on one device."""
        if not requests:
            return []
        each = self._timeout + policy.limit_s + 1.0
        candidates = [(r.code, r.policy, r.best, r.verify) for r in requests]
        job = Job("compare", (self._ship(requests[0].setup), candidates, policy), self._limit + len(requests) * each)
        (done,) = self._crew.run([job])
        if done.error == "crash":
            return self.run(requests)
        return cast(list[RunResult], _value(done))

    def close(self) -> None:
        """End the actors."""
        self._crew.close()
        self._setups.clear()

    def _ship(self, setup: RunSetup) -> _Sent:
        """Put a setup where every actor can fetch it, the file with the reference included."""
        known = self._setups.get(setup.key)
        if known is None:
            reference: bytes | None = None
            if setup.reference is not None:
                try:
                    reference = Path(setup.reference).read_bytes()
                except OSError as error:
                    raise RunError(f"cannot read the reference {setup.reference}: {error}") from error
            known = self._setups[setup.key] = ray.put((replace(setup, reference=None), reference))
            if len(self._setups) > _KEPT:
                self._setups.popitem(last=False)
        self._setups.move_to_end(setup.key)
        return setup.key, known


def refusal(target: Target, machine: Mapping[str, object]) -> str | None:
    """Why times of a machine must not be mixed with those of the target; None if they may.

    Args:
        target: what candidates are built for.  It may use fewer cores, or narrower vectors, than the machine has.
        machine: the identity of the machine's own target; nothing in it where it has no such device.
    """
    names = [n for n in ("mcpu", "arch", "model") if getattr(target, n, "")]
    wrong = [f"{n} {machine.get(n, 'unknown')} instead of {getattr(target, n)}" for n in names if machine.get(n) != getattr(target, n)]
    cores = machine.get("num_cores")
    if isinstance(cores, int) and cores < target.num_cores:
        wrong.append(f"{cores} cores instead of {target.num_cores}")
    if not wrong:
        return None
    return (
        f"candidates are built for {target}, and the machine has {', '.join(wrong)}. Give the resource to nodes of one kind, and name "
        "that kind as the target"
    )


class _RunActor(Actor):
    """The owner of a device."""

    def __init__(self, kind: str, threads: int, timeout: float, setup_timeout: float, memory_limit: int | None) -> None:
        self._kind = kind
        self._threads = threads
        self._setups: OrderedDict[str, tuple[RunSetup, int]] = OrderedDict()
        self._runner = LocalRunner(threads, timeout=timeout, setup_timeout=setup_timeout, memory_limit=memory_limit)
        self._machine = self._detect()

    def facts(self) -> dict[str, object]:
        """The identity of the machine's own target."""
        return self._machine

    def run(self, sent: _Sent, code: Code, policy: RacePolicy, best: float | None, verify: str) -> RunResult | str:
        """Run one candidate; text says why none can be run."""
        try:
            (result,) = self._runner.run([RunRequest(self._setup(sent), code, policy, best, verify)])
        except RunError as error:
            return str(error)
        return replace(result, host=environment().host)

    def compare(
        self, sent: _Sent, candidates: Sequence[tuple[Code, RacePolicy, float | None, str]], policy: TimingPolicy
    ) -> list[RunResult] | str:
        """Compare candidates; text says why they cannot be compared."""
        try:
            setup = self._setup(sent)
            results = self._runner.compare([RunRequest(setup, *candidate) for candidate in candidates], policy)
        except RunError as error:
            return str(error)
        return [replace(result, host=environment().host) for result in results]

    def _setup(self, sent: _Sent) -> RunSetup:
        key, where = sent
        known = self._setups.get(key)
        if known is None:
            setup, reference = ray.get(where)
            # A file without a name: nothing is left of it when this process ends, however it ends.
            file = -1 if reference is None else os.memfd_create("tunesmith-reference")
            if reference is not None:
                with os.fdopen(os.dup(file), "wb") as out:
                    out.write(reference)
                setup = replace(setup, reference=f"/proc/{os.getpid()}/fd/{file}")
            known = self._setups[key] = (setup, file)
            if len(self._setups) > _KEPT:
                _, (_, old) = self._setups.popitem(last=False)
                if old >= 0:
                    os.close(old)
        self._setups.move_to_end(key)
        return known[0]

    def _detect(self) -> dict[str, object]:
        try:
            return dict(Target.detect(self._kind).to_json())
        except TargetError:  # no such device here
            return {}


def _result(job: JobResult) -> RunResult:
    if job.error in ("crash", "timeout"):
        return RunResult((), True, error_of(job, "run_error", "running it"), False, job.seconds)
    return cast(RunResult, _value(job))


def _value(job: JobResult) -> object:
    """What the method returned.  RunError if it has no result, or could not run anything."""
    if job.error is not None:
        raise RunError(f"the runner failed: {job.message}\n{job.detail}")
    if isinstance(job.value, str):
        raise RunError(job.value)
    return job.value
