"""A runner whose candidates run in a process of their own, which is replaced when one of them breaks it.

The process has its OpenMP threads pinned, as many as the target has cores, and nothing else to do.  Inputs and the
reference are made there once for each workload; after a crash they are made again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import cast

from tunesmith.ir.target.target import Target
from tunesmith.measure.device_lease import target_lease
from tunesmith.measure.evaluator.evaluators import Evaluators
from tunesmith.measure.job_errors import error_of
from tunesmith.measure.runner import Runner, RunRequest, RunResult, RunSetup
from tunesmith.runtime.threads import allowed_threads, pin_threads
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.support.errors import RunError
from tunesmith.support.worker_pool import JobResult, WorkerPool

MEMORY_LIMIT = 16 << 30
"""Bytes that arguments, references and candidates may take together."""

Job = tuple[str, tuple[object, ...]]


class LocalRunner(Runner):
    """One persistent process that runs candidates one after the other.

    Args:
        threads: of a parallel loop; by default the cores this process may use.
        timeout: seconds that a candidate may take in all, which has to hold the timing of a good one too.
        setup_timeout: seconds that laying out the arguments of a workload may take, running its unscheduled function included.
        memory_limit: bytes that the process may allocate.
    """

    def __init__(
        self,
        threads: int | None = None,
        *,
        timeout: float = 10.0,
        setup_timeout: float = 300.0,
        memory_limit: int | None = MEMORY_LIMIT,
    ) -> None:
        self._timeout = timeout
        self._setup_timeout = setup_timeout
        self._memory_limit = memory_limit
        self._env = pin_threads(threads)
        self._prepared = ""
        self._pool = self._start()

    def run(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        """See `Runner.run`."""
        return [self._run(request) for request in requests]

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        """See `Runner.compare`.  A crash, which no candidate that ran before should cause, falls back to `run`."""
        if not requests:
            return []
        limit = self._timeout + len(requests) * (policy.limit_s + 1.0)
        with target_lease(requests[0].setup.target):
            self._prepare(requests[0].setup)
            job = self._do(("compare", (tuple(requests), policy)), limit)
        if job.error is None:
            results = cast(list[RunResult], self._take(job.value))
            # Who loses a device takes it from those that come after, too.
            crashed = [r.error is not None and r.error.kind == "crash" for r in results]
            return [self._run(q) if lost else r for q, r, lost in zip(requests, results, crashed, strict=True)]
        if job.error == "error":
            raise RunError(f"cannot compare {len(requests)} candidates: {job.message}\n{job.detail}")
        return [self._run(request) for request in requests]

    def close(self) -> None:
        """End the process."""
        self._pool.close()

    def _run(self, request: RunRequest) -> RunResult:
        with target_lease(request.setup.target):  # here, not in the process: its limit is not for waiting
            self._prepare(request.setup)
            job = self._do(("run", (request,)), self._timeout)
        if job.error is None:
            return cast(RunResult, self._take(job.value))
        return RunResult((), True, error_of(job, "run_error", "running it"), False, job.seconds)

    def _prepare(self, setup: RunSetup) -> None:
        """Lay out the arguments first, so that no candidate pays for it or is blamed."""
        if setup.key == self._prepared:  # of others the process keeps a few; it knows which
            return
        job = self._do(("prepare", (setup,)), self._setup_timeout)
        if job.error is not None:
            error = error_of(job, "run_error", "laying out the arguments")
            raise RunError(f"no candidate of {setup.key} can be run: {error.kind} {error.message}")
        self._take(job.value)
        self._prepared = setup.key

    def _do(self, job: Job, timeout: float) -> JobResult:
        result = self._pool.run([job], timeout=timeout)[0]
        if result.error is not None:
            self._prepared = ""  # the process is another one now, or may be
        return result

    def _take(self, answer: object) -> object:
        """The answer of the process; one whose memory was written to is replaced."""
        value, corrupted = cast(tuple[object, bool], answer)
        if corrupted:
            self._pool.close()
            self._prepared = ""
            self._pool = self._start()
        return value

    def _start(self) -> WorkerPool:
        return WorkerPool(f"{__name__}:{run_worker.__name__}", 1, memory_limit=self._memory_limit, env=self._env)


class InProcessRunner(Runner):
    """Runs candidates in this process: for debugging.  A candidate that crashes takes everything with it."""

    def __init__(self) -> None:
        self._bench = Evaluators()

    def run(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        """See `Runner.run`."""
        return [self._run(request) for request in requests]

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        """See `Runner.compare`."""
        if not requests:
            return []
        with target_lease(requests[0].setup.target), _threads_of(requests[0].setup.target):
            return self._bench.compare(requests, policy)

    def _run(self, request: RunRequest) -> RunResult:
        with target_lease(request.setup.target), _threads_of(request.setup.target):
            return self._bench.run(request)

    def close(self) -> None:
        """Give the memory of the arguments back."""
        self._bench = Evaluators()


def _threads_of(target: str) -> AbstractContextManager[None]:
    """The threads that the target's cores are, whatever this process may use otherwise: times are the target's."""
    return allowed_threads(Target.from_json(json.loads(target)).num_cores)


def run_worker() -> Callable[[Job], tuple[object, bool]]:
    """The job of the process: the method of the workbench to call, and its arguments."""
    benches = Evaluators()

    def do(job: Job) -> tuple[object, bool]:
        method, arguments = job
        value = getattr(benches, method)(*arguments)
        return value, benches.corrupted

    return do
