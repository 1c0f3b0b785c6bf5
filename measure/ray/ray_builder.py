"""Builders as Ray actors: compiling uses the cores of a cluster, and a compiler that dies takes one candidate with it."""

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
    """Actors with one processor each, compiling one candidate at a time on one thread.

    A candidate whose actor died is tried once more, in another: most often somebody else had killed it, or its machine is gone.

    Args:
        cluster: where they live.
        workers: number of actors; by default the processors of the cluster.  Those for which there is no room wait for it.
        timeout: seconds that one candidate may take.
        memory_limit: bytes that an actor may allocate, beyond what Ray itself holds in it.
        niceness: by how much the actors step back for other processes.
        start_timeout: seconds in which some actor must have started.
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
        self._cluster = cluster  # which lives as long as its actors
        self._timeout = timeout
        self.slots = max(1, cluster.cpus) if workers is None else workers
        self._crew = ActorPool(_BuildActor, (niceness, memory_limit), self.slots, "builder", cpus=1, start_timeout=start_timeout)

    def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        """See `Builder.build`."""
        return [_result(job) for job in self._crew.run([Job("build", (r,), self._timeout) for r in requests])]

    def close(self) -> None:
        """End the actors."""
        self._crew.close()


class _BuildActor(Actor):
    """The process of a builder."""

    def __init__(self, niceness: int, memory_limit: int | None) -> None:
        os.nice(niceness)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        self._job = BuildJob()
        if memory_limit is not None:
            _limit_memory(memory_limit)

    def build(self, request: BuildRequest) -> BuildResult:
        """Build one; MemoryError ends the actor."""
        return self._job(request)


def _limit_memory(limit: int) -> None:
    """Let allocations beyond so many bytes more than now fail, instead of bringing the machine down."""
    # Ray holds hundreds of megabytes that nobody uses: buffers and stacks of its threads count, touched or not.
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
