"""Build candidates in Ray actors: compilation uses the cores of a cluster, and a compiler crash costs one candidate."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from tunesmith.measure.builder import Builder, BuildJob, BuildResult
from tunesmith.measure.candidate import BuildRequest
from tunesmith.measure.job_errors import error_of
from tunesmith.measure.local_builder import MEMORY_LIMIT
from tunesmith.measure.ray.ray_actor_pool import Actor, ActorPool, Job
from tunesmith.measure.ray.ray_cluster import RayCluster
from tunesmith.support.worker_pool import JobResult


class RayBuilder(Builder):
    """Actors with one CPU each, compiling one candidate at a time on one thread.

    A candidate whose actor died is retried once in another actor, because most such deaths are caused from outside or by a lost machine.

    Args:
        cluster: the Ray cluster.
        workers: number of actors; by default the CPUs of the cluster.  Actors beyond its capacity wait.
        timeout: seconds per candidate.
        memory_limit: bytes that an actor may allocate, beyond those of Ray itself.
        niceness: niceness increment of the actors.
        start_timeout: seconds within which at least one actor must start.
    """

    def __init__(
        self,
        cluster: RayCluster,
        workers: int | None = None,
        *,
        timeout: float = 60.0,
        memory_limit: int | None = MEMORY_LIMIT,
        niceness: int = 0,
        start_timeout: float = 120.0,
    ) -> None:
        self._cluster = cluster  # keeps the cluster alive as long as its actors
        self._timeout = timeout
        self.slots = max(1, cluster.cpus) if workers is None else workers
        self._actors = ActorPool(_BuildActor, (niceness, memory_limit), self.slots, "builder", cpus=1, start_timeout=start_timeout)

    def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        """See `Builder.build`."""
        return [_result(job) for job in self._actors.run([Job("build", (r,), self._timeout) for r in requests])]

    def close(self) -> None:
        """Stop the actors."""
        self._actors.close()


class _BuildActor(Actor):
    """Actor that builds candidates."""

    def __init__(self, niceness: int, memory_limit: int | None) -> None:
        os.nice(niceness)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        self._job = BuildJob()
        if memory_limit is not None:
            _limit_memory(memory_limit)

    def build(self, request: BuildRequest) -> BuildResult:
        """Build one candidate; MemoryError ends the actor."""
        return self._job(request)


def _limit_memory(limit: int) -> None:
    """Make allocations fail that exceed the current size by more than `limit` bytes, instead of exhausting the machine's memory."""
    # Ray reserves hundreds of megabytes: buffers and stacks of its threads count even if unused.
    held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit += held
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _result(job: JobResult) -> BuildResult:
    if job.error is None:
        return cast(BuildResult, job.value)
    return BuildResult(None, error_of(job, "build_error", "building it"), job.seconds)
