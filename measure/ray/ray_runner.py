"""Run candidates on the devices of a Ray cluster, with one actor per device; the loss of a device costs only time.

Each actor owns a device and a `LocalRunner`: a crash of a candidate ends a child process of the actor, not the actor.  The data shared by a
workload's candidates (the baseline program, or the reference outputs) is sent once to each actor, through Ray's object store.
"""

from __future__ import annotations

import os
import socket
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tunesmith.codegen.artifact import Code
from tunesmith.ir.target.target import Target
from tunesmith.measure.job_errors import error_of
from tunesmith.measure.local_runner import MEMORY_LIMIT, LocalRunner
from tunesmith.measure.policies import RacePolicy
from tunesmith.measure.ray.ray_actor_pool import Actor, ActorPool, Handshake, Job, JobsLost
from tunesmith.measure.ray.ray_cluster import RUNNER, RayCluster, ray
from tunesmith.measure.records.environment import environment
from tunesmith.measure.runner import Runner, RunRequest, RunResult, RunSetup, RunsLost
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.support.errors import RunError, TargetError, UserError
from tunesmith.support.worker_pool import JobResult

_CACHED_SETUPS = 4
"""Workloads whose setups are cached, here and in the actors: as many as an evaluator caches."""
_GRACE = 60.0
"""Seconds beyond an actor's own limits after which it is replaced if it does not answer."""

_SetupReference = tuple[str, Any]
"""Key of a setup, and its Ray object reference.  In a tuple, because Ray would fetch a plain argument before each call."""


class RayRunner(Runner):
    """One actor per device, placed by a resource of the nodes: `ray start --resources '{"tunesmith_cpu": 1}'`.

    The driver needs neither the resource nor the device.

    Args:
        cluster: the Ray cluster.
        target: target of the candidates.  Machines with another processor or fewer cores are rejected.
        runners: number of actors; by default the total quantity of the resource.
        resource: name of the resource; by default that of the target's processor, `cpu_model:znver5`, if a node has it, else
            `tunesmith_cpu`.
        timeout, setup_timeout, memory_limit: as for `LocalRunner`.
        start_timeout: seconds within which at least one actor must start.

    Raises:
        UserError: no node has the resource.
    """

    def __init__(
        self,
        cluster: RayCluster,
        target: Target,
        runners: int | None = None,
        *,
        resource: str | None = None,
        timeout: float = 10.0,
        setup_timeout: float = 300.0,
        memory_limit: int | None = MEMORY_LIMIT,
        start_timeout: float = 120.0,
    ) -> None:
        model = model_resource(target)
        if resource is None:
            resource = model if cluster.count(model) else RUNNER
        available = cluster.count(resource)
        if available < 1:
            either = f" or {model!r}" if resource == RUNNER else ""
            raise UserError(
                f"no node of the Ray cluster can run candidates: none has the resource {resource!r}{either}. Start such nodes with "
                f"ray start --resources '{{\"{resource}\": 1}}'"
            )
        self._cluster = cluster  # keeps the cluster alive as long as its actors
        self._timeout, self._limit = timeout, setup_timeout + timeout + _GRACE
        self._setups: OrderedDict[str, Any] = OrderedDict()
        self.slots = available if runners is None else runners
        self._actors = ActorPool(
            _RunActor,
            (target.kind, target.num_cores, timeout, setup_timeout, memory_limit),
            self.slots,
            "runner",
            resources={resource: 1},
            accept=lambda handshake: refusal(target, cast(Mapping[str, object], handshake.facts["machine"])),
            retry_overdue=True,
            start_timeout=start_timeout,
        )

    def run(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        """See `Runner.run`.  A candidate whose actor died twice is reported as a crash."""
        jobs = [Job("run", (self._ship(r.setup), r.code, r.policy, r.best, r.verify), self._limit) for r in requests]
        try:
            return [_result(job) for job in self._actors.run(jobs)]
        except JobsLost as lost:
            raise RunsLost(str(lost), [None if job is None else _result(job) for job in lost.results]) from lost

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        """See `Runner.compare`.  All candidates run on one device."""
        if not requests:
            return []
        each = self._timeout + policy.limit_s + 1.0
        candidates = [(r.code, r.policy, r.best, r.verify) for r in requests]
        job = Job("compare", (self._ship(requests[0].setup), candidates, policy), self._limit + len(requests) * each)
        (done,) = self._actors.run([job])
        if done.error == "crash":
            return self.run(requests)
        return cast(list[RunResult], _value(done))

    def close(self) -> None:
        """Stop the actors."""
        self._actors.close()
        self._setups.clear()

    def _ship(self, setup: RunSetup) -> _SetupReference:
        """Put a setup, with the contents of its reference file, into the object store."""
        known = self._setups.get(setup.key)
        if known is None:
            reference: bytes | None = None
            if setup.reference is not None:
                try:
                    reference = Path(setup.reference).read_bytes()
                except OSError as error:
                    raise RunError(f"cannot read the reference {setup.reference}: {error}") from error
            known = self._setups[setup.key] = ray.put((replace(setup, reference=None), reference))
            if len(self._setups) > _CACHED_SETUPS:
                self._setups.popitem(last=False)
        self._setups.move_to_end(setup.key)
        return setup.key, known


def model_resource(target: Target) -> str:
    """Ray resource of nodes with the target's processor: `cpu_model:znver5`, or `gpu_model:sm_90` for a GPU."""
    name = getattr(target, "mcpu", "") or getattr(target, "arch", "") or getattr(target, "model", "") or target.kind
    return f"{'cpu' if getattr(target, 'mcpu', '') else 'gpu'}_model:{name}"


def refusal(target: Target, machine: Mapping[str, object]) -> str | None:
    """Reason why a machine's times are not comparable with those of the target; None if they are.

    Args:
        target: target of the candidates.  It may use fewer cores or narrower vectors than the machine has.
        machine: identity of the machine's own target; empty if it has no such device.
    """
    names = [n for n in ("mcpu", "arch", "model") if getattr(target, n, "")]
    wrong = [f"{n} {machine.get(n, 'unknown')} instead of {getattr(target, n)}" for n in names if machine.get(n) != getattr(target, n)]
    cores = machine.get("num_cores")
    if isinstance(cores, int) and cores < target.num_cores:
        wrong.append(f"{cores} cores instead of {target.num_cores}")
    if not wrong:
        return None
    return (
        f"candidates are built for {target}, but the machine has {', '.join(wrong)}. Assign the resource to nodes of one kind only, and "
        "use that kind as the target"
    )


class _RunActor(Actor):
    """Actor that owns a device."""

    def __init__(self, kind: str, threads: int, timeout: float, setup_timeout: float, memory_limit: int | None) -> None:
        self._kind = kind
        self._threads = threads
        self._setups: OrderedDict[str, tuple[RunSetup, int]] = OrderedDict()
        self._runner = LocalRunner(threads, timeout=timeout, setup_timeout=setup_timeout, memory_limit=memory_limit)
        self._machine = self._detect()
        self._node = {"name": socket.gethostname(), "node": ray.get_runtime_context().get_node_id()}

    def facts(self) -> dict[str, object]:
        """`machine`, the identity of the machine's own target, and `host`, its description in records."""
        return {"machine": self._machine, "host": self._host(None)}

    def run(self, sent: _SetupReference, code: Code, policy: RacePolicy, best: float | None, verify: str) -> RunResult | str:
        """Run one candidate; a string is the reason why no candidate can be run."""
        try:
            (result,) = self._runner.run([RunRequest(self._setup(sent), code, policy, best, verify)])
        except RunError as error:
            return str(error)
        return replace(result, host=self._host(result))

    def compare(
        self, sent: _SetupReference, candidates: Sequence[tuple[Code, RacePolicy, float | None, str]], policy: TimingPolicy
    ) -> list[RunResult] | str:
        """Compare candidates; a string is the reason why they cannot be compared."""
        try:
            setup = self._setup(sent)
            results = self._runner.compare([RunRequest(setup, *candidate) for candidate in candidates], policy)
        except RunError as error:
            return str(error)
        return [replace(result, host=self._host(result)) for result in results]

    def _host(self, result: RunResult | None) -> dict[str, object]:
        """The host for the record: that of the result, or this machine; with the names of machine and Ray node."""
        known = environment().host if result is None or result.host is None else result.host
        return {**known, **self._node}

    def _setup(self, sent: _SetupReference) -> RunSetup:
        key, where = sent
        known = self._setups.get(key)
        if known is None:
            setup, reference = ray.get(where)
            # An anonymous file, which disappears with this process even if the process is killed.
            file = -1 if reference is None else os.memfd_create("tunesmith-reference")
            if reference is not None:
                with os.fdopen(os.dup(file), "wb") as out:
                    out.write(reference)
                setup = replace(setup, reference=f"/proc/{os.getpid()}/fd/{file}")
            known = self._setups[key] = (setup, file)
            if len(self._setups) > _CACHED_SETUPS:
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
        host = job.value.facts["host"] if isinstance(job.value, Handshake) else None
        error = error_of(job, "run_error", "running it")
        return RunResult((), True, error, False, job.seconds, host=cast("dict[str, object] | None", host))
    return cast(RunResult, _value(job))


def _value(job: JobResult) -> object:
    """Return value of the method.  Raises RunError if the job failed or no candidate could be run."""
    if job.error is not None:
        raise RunError(f"the runner failed: {job.message}\n{job.detail}")
    if isinstance(job.value, str):
        raise RunError(job.value)
    return job.value
