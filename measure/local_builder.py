"""Build candidates in worker processes of this machine: compilation uses all cores, and a compiler crash costs one candidate."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from typing import cast

from tunesmith.measure.builder import Builder, BuildJob, BuildResult
from tunesmith.measure.candidate import BuildRequest
from tunesmith.measure.job_errors import error_of
from tunesmith.support.errors import UserError
from tunesmith.support.worker_pool import JobResult, WorkerPool

MEMORY_LIMIT = 4 << 30
"""Memory limit in bytes for compiling one candidate."""

_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


MOST_WORKERS = 16
"""Limit of workers per core; a worker takes more than 100 MB and a second of work to start."""


class LocalBuilder(Builder):
    """Persistent worker processes, each compiling one candidate at a time on one thread.

    A candidate whose process died is retried once in another process, because most such deaths are caused from outside.

    Args:
        workers: number of processes; by default the cores this process may use.
        timeout: seconds per candidate.
        memory_limit: bytes that a process may allocate.
        niceness: niceness increment of the workers; useful if candidates are timed concurrently.
    """

    def __init__(
        self, workers: int | None = None, *, timeout: float = 60.0, memory_limit: int | None = MEMORY_LIMIT, niceness: int = 0
    ) -> None:
        cores = len(os.sched_getaffinity(0))
        self.slots = workers or cores
        if self.slots > MOST_WORKERS * cores:
            raise UserError(
                f"{self.slots} workers are too many for the {cores} usable cores: at most {MOST_WORKERS * cores}, {MOST_WORKERS} per core"
            )
        self._pool = WorkerPool(
            f"{__name__}:{build_worker.__name__}", self.slots, (niceness,), timeout=timeout, memory_limit=memory_limit, env=_ONE_THREAD
        )

    def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        """See `Builder.build`."""
        first = self._pool.run(requests)
        again = [i for i, job in enumerate(first) if job.error == "crash"]
        second = self._pool.run([requests[i] for i in again])
        jobs = {**dict(enumerate(first)), **dict(zip(again, second, strict=True))}
        return [_result(jobs[i]) for i in range(len(first))]

    def close(self) -> None:
        """Stop the workers."""
        self._pool.close()


def build_worker(niceness: int) -> BuildJob:
    """The job of a worker process."""
    os.nice(niceness)
    # What is imported lives as long as the process, and programs have no cycles: frequent collections take 5 % of the time of a build.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    return BuildJob()


def _result(job: JobResult) -> BuildResult:
    if job.error is None:
        return cast(BuildResult, job.value)
    return BuildResult(None, error_of(job, "build_error", "building it"), job.seconds)
