"""Run candidates in a separate process, which is replaced after a crash or memory corruption.

The process is dedicated to running candidates and has pinned OpenMP threads, one per core of the target.  It creates the inputs and the
reference once per workload, and again after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
"""Memory limit in bytes for arguments, references and candidates together."""

Job = tuple[str, tuple[object, ...]]


class LocalRunner(Runner):
    """One persistent process that runs candidates sequentially.

    Args:
        threads: threads of a parallel loop; by default the cores this process may use.
        timeout: seconds per candidate in total; must suffice for the full timing of a good candidate.
        setup_timeout: seconds for preparing the arguments of a workload, including one run of its unscheduled function.
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
        """See `Runner.compare`.  After a crash, unexpected for candidates that ran before, it falls back to `run`."""
        if not requests:
            return []
        limit = self._timeout + len(requests) * (policy.limit_s + 1.0)
        with target_lease(requests[0].setup.target):
            self._prepare(requests[0].setup)
            job = self._do(("compare", (tuple(requests), policy)), limit)
        if job.error is None:
            results = cast(list[RunResult], self._take(job.value))
            # A candidate that loses the device also fails those after it.
            crashed = [r.error is not None and r.error.kind == "crash" for r in results]
            return [self._run(q) if lost else r for q, r, lost in zip(requests, results, crashed, strict=True)]
        if job.error == "error":
            raise RunError(f"cannot compare {len(requests)} candidates: {job.message}\n{job.detail}")
        return [self._run(request) for request in requests]

    def close(self) -> None:
        """Stop the process."""
        self._pool.close()

    def _run(self, request: RunRequest) -> RunResult:
        with target_lease(request.setup.target):  # taken here, because the process's time limit must not include waiting
            self._prepare(request.setup)
            job = self._do(("run", (request,)), self._timeout)
        if job.error is None:
            return cast(RunResult, self._take(job.value))
        return RunResult((), True, error_of(job, "run_error", "running it"), False, job.seconds)

    def _prepare(self, setup: RunSetup) -> None:
        """Prepare the arguments in a separate job, so that neither its time nor its failure is attributed to a candidate."""
        if setup.key == self._prepared:  # the process itself caches a few more
            return
        job = self._do(("prepare", (setup,)), self._setup_timeout)
        if job.error is not None:
            error = error_of(job, "run_error", "preparing the arguments")
            raise RunError(f"no candidate of {setup.key} can be run: {error.kind} {error.message}")
        self._take(job.value)
        self._prepared = setup.key

    def _do(self, job: Job, timeout: float) -> JobResult:
        result = self._pool.run([job], timeout=timeout)[0]
        if result.error is not None:
            self._prepared = ""  # the process may have been replaced
        return result

    def _take(self, answer: object) -> object:
        """Unpack the answer of the process; the process is replaced if its memory is corrupted."""
        value, corrupted = cast(tuple[object, bool], answer)
        if corrupted:
            self._pool.close()
            self._prepared = ""
            self._pool = self._start()
        return value

    def _start(self) -> WorkerPool:
        return WorkerPool(f"{__name__}:{RunJob.__name__}", 1, memory_limit=self._memory_limit, env=self._env)


class InProcessRunner(Runner):
    """Runs candidates in this process, for debugging.  A crash of a candidate ends the process."""

    def __init__(self) -> None:
        self._evaluators = Evaluators()

    def run(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        """See `Runner.run`."""
        return [self._run(request) for request in requests]

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        """See `Runner.compare`."""
        if not requests:
            return []
        with target_lease(requests[0].setup.target), _threads_of(requests[0].setup.target):
            return self._evaluators.compare(requests, policy)

    def _run(self, request: RunRequest) -> RunResult:
        with target_lease(request.setup.target), _threads_of(request.setup.target):
            return self._evaluators.run(request)

    def close(self) -> None:
        """Release the memory of the arguments, and the devices."""
        self._evaluators.close()


def _threads_of(target: str) -> AbstractContextManager[None]:
    """Limit this process to one thread per core of the target, so that times are those of the target."""
    return allowed_threads(Target.from_json(json.loads(target)).num_cores)


class RunJob:
    """The job of the process: call a method of the evaluators; the answer is its result and whether memory is corrupted."""

    def __init__(self) -> None:
        self._evaluators = Evaluators()

    def __call__(self, job: Job) -> tuple[object, bool]:
        """Call a method."""
        method, arguments = job
        value = getattr(self._evaluators, method)(*arguments)
        return value, self._evaluators.corrupted

    def close(self) -> None:
        """Release the memory and the devices, unless the memory is corrupted: the end of the process releases it then."""
        if not self._evaluators.corrupted:
            self._evaluators.close()
