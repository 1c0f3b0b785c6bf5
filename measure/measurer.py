"""Measure candidates: build them in batches, run them one by one, and log each record as soon as it is complete.

Records are in candidate order for any number of workers.  By default building and running alternate, because a concurrent compiler
disturbs timing; `overlap` runs them concurrently, which pays off if the runner has a device or cores to itself.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path
from typing import Self, TypeVar

from tunesmith.codegen.artifact import Code
from tunesmith.codegen.build import pass_changes
from tunesmith.ir.analysis.operation_count import operation_count
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_trace
from tunesmith.lower.instrument import can_skip
from tunesmith.lower.pass_context import PassContext
from tunesmith.measure.builder import Builder, BuildResult
from tunesmith.measure.candidate import BuildRequest, Candidate, MeasureTask
from tunesmith.measure.evaluator.argument_data import make_inputs
from tunesmith.measure.evaluator.correctness import check_reference, save_reference
from tunesmith.measure.policies import MeasurePolicy
from tunesmith.measure.records.environment import environment
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.record import Record, WorkloadLine
from tunesmith.measure.runner import Runner, RunRequest, RunResult, RunSetup, RunsLost
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.schedule.trace import Trace
from tunesmith.support.errors import InternalError, RecordError, RunError, UserError
from tunesmith.support.temporary_folder import CleanUp, remove_folder
from tunesmith.support.user_code import check_class, shown

T = TypeVar("T")

LARGE = 20_000_000
"""Operations from which on the function that computes a reference is vectorized and parallel.  Unscheduled, a convolution with 15 GFLOP
takes 42 s on a Xeon with AVX-512, with the default schedule 1.5 s."""


class Measurer:
    """Measures candidates on one target.

    Keeps the best verified time of each task for racing; `note_best` adds results of earlier runs.  Not thread-safe.  The builder and
    the runner belong to the caller and are not closed.  Candidates are compiled, in worker processes too, with the passes of the
    `PassContext` in which the measurer is made, and records hold what that context changes; reference programs with the default passes.

    Args:
        target: target of the candidates; the runner's device must match it.
        builder: compiles candidates.
        runner: runs them.
        policy: measurement policy.
        log: log to which each record is appended; None keeps records in memory only.
    Raises:
        UserError: the builder or the runner breaks its contract, or an instrument of the current `PassContext` may leave out passes.
    """

    def __init__(
        self, target: Target, builder: Builder, runner: Runner, policy: MeasurePolicy | None = None, log: RecordLog | None = None
    ) -> None:
        check_class(type(builder), Builder, "the builder")  # type: ignore[type-abstract]
        check_class(type(runner), Runner, "the runner")  # type: ignore[type-abstract]
        self.target = target
        self.builder = builder
        self.runner = runner
        self.policy = policy or MeasurePolicy()
        self.log = log
        self._target_json = target.to_json()
        self._target_text = json.dumps(target.to_json(facts=True))
        self._passes = _pass_changes(target)
        self._passes_text = json.dumps(self._passes) if self._passes else ""
        self._folder = Path(tempfile.mkdtemp(prefix="tunesmith-measure-"))
        # Runs at the first of: close(), garbage collection of the measurer, interpreter exit, SIGTERM.
        self._end = CleanUp(self, remove_folder, self._folder)
        self._setups: dict[str, RunSetup] = {}
        self._best: dict[str, float] = {}
        self._requests = 0

    def measure(
        self, task: MeasureTask, candidates: Sequence[Candidate], *, seed: int = 0, extra: Mapping[str, object] | None = None
    ) -> list[Record]:
        """Measure all candidates; see `stream` for the arguments."""
        return list(self.stream(task, candidates, seed=seed, extra=extra))

    def stream(
        self, task: MeasureTask, candidates: Sequence[Candidate], *, seed: int = 0, extra: Mapping[str, object] | None = None
    ) -> Iterator[Record]:
        """Measure candidates and yield the records in order, each after it is logged.

        Args:
            task: the workload and its sketches.
            candidates: candidates to measure.
            seed: seed of the search that proposed them, stored in the records.
            extra: `extra` of the records; build and run times are added to it.
        Raises:
            RunError: nothing can be built or run; earlier measurements are in the log, those of the last batch too.
            UserError: a candidate refers to an unknown sketch, the reference does not match the workload, or the builder or the runner does
                not return one result for each request.
            InternalError: a sketch and its trace give different programs.  Raised after the last record.
        """
        every = self.policy.law_every
        requests = [self._request(task, c, (self._requests + i) % every == 0) for i, c in enumerate(candidates)]
        self._requests += len(requests)
        setup = self._setup(task)
        broken: list[str] = []
        done = 0
        for results in self._built(requests):
            broken += [r.broken_law for r in results if r.broken_law]
            for chunk in _chunks(results, self.runner.slots):
                lost: RunsLost | None = None
                ran: Iterator[RunResult | None]
                try:
                    ran = iter(self._ran(setup, task, chunk))
                except RunsLost as error:
                    lost, ran = error, iter(error.results)
                for built in chunk:
                    result = None if built.artifact is None else next(ran)
                    if built.artifact is None or result is not None:
                        yield self._record(task, candidates[done], built, result, seed, extra or {})
                    done += 1
                if lost is not None:
                    raise lost
        if broken:
            raise InternalError(f"{len(broken)} of {len(requests)} candidates violate the law of sketches; the first: {broken[0]}")

    def compare(
        self,
        task: MeasureTask,
        candidates: Sequence[Candidate],
        *,
        policy: TimingPolicy | None = None,
        seed: int = 0,
        extra: Mapping[str, object] | None = None,
    ) -> list[Record]:
        """Verify candidates and time them interleaved, in quiet windows: the final ranking of the best candidates.

        Args:
            task: the workload and its sketches.
            candidates: a few candidates that were measured before.
            policy: timing policy; by default that of any function, limited to 4 s per candidate.
            seed: as for `stream`.
            extra: as for `stream`.
        Raises:
            RunError, UserError: as `stream`.
        """
        timing = policy or TimingPolicy(limit_s=4.0)
        built = self._build([self._request(task, c) for c in candidates])
        setup = self._setup(task)
        requests = [self._run_request(setup, task, b) for b in built if b.artifact is not None]
        ran = iter(_one_each(self.runner.compare(requests, timing), RunResult, len(requests), f"{type(self.runner).__name__}.compare"))
        shown = {"kind": "interleaved", "data_seed": self.policy.data_seed, **asdict(timing)}
        shown["constant_bytes"] = self._policy_of(task).race.constant_bytes
        return [
            self._record(task, c, b, None if b.artifact is None else next(ran), seed, extra or {}, shown)
            for c, b in zip(candidates, built, strict=True)
        ]

    def best(self, task: MeasureTask) -> float | None:
        """Seconds of the best verified candidate so far; of the best candidate if the policy is to verify none."""
        return self._best.get(task.digest)

    def note_best(self, task: MeasureTask, seconds: float) -> None:
        """Register the time of a verified candidate, for example from an earlier run."""
        self._best[task.digest] = min(seconds, self._best.get(task.digest, seconds))

    def close(self) -> None:
        """Delete the reference files.  Idempotent."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, task: MeasureTask, candidate: Candidate, check_law: bool = False) -> BuildRequest:
        return task.request(candidate, self._target_text, check_law, self._passes_text)

    def _build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        """The results of the builder, which may be user code."""
        return _one_each(self.builder.build(requests), BuildResult, len(requests), f"{type(self.builder).__name__}.build")

    def _built(self, requests: Sequence[BuildRequest]) -> Iterator[list[BuildResult]]:
        """Build results in batches: a single batch, or, with `overlap`, batches of which one is built ahead."""
        if not self.policy.overlap:
            yield self._build(requests)
            return
        batches = _chunks(requests, 2 * self.builder.slots)
        with ThreadPoolExecutor(1, "tunesmith-build") as executor:
            pending = [executor.submit(self._build, batch) for batch in batches[:1]]
            for batch in [*batches[1:], None]:
                results = pending.pop().result() if pending else []
                if batch is not None:
                    pending.append(executor.submit(self._build, batch))
                yield results

    def _ran(self, setup: RunSetup, task: MeasureTask, built: Sequence[BuildResult]) -> list[RunResult]:
        """Run results of the candidates that were built."""
        requests = [self._run_request(setup, task, b) for b in built if b.artifact is not None]
        return _one_each(self.runner.run(requests), RunResult, len(requests), f"{type(self.runner).__name__}.run") if requests else []

    def _run_request(self, setup: RunSetup, task: MeasureTask, built: BuildResult) -> RunRequest:
        assert built.artifact is not None
        return RunRequest(setup, built.artifact.code(), self._policy_of(task).race, self._best.get(task.digest), self.policy.verify)

    def _policy_of(self, task: MeasureTask) -> MeasurePolicy:
        """The policy for a task: constants of functions that loops call are not cold."""
        return replace(self.policy, race=replace(self.policy.race, constant_bytes=0)) if task.in_loop else self.policy

    def _record(
        self,
        task: MeasureTask,
        candidate: Candidate,
        built: BuildResult,
        ran: RunResult | None,
        seed: int,
        extra: Mapping[str, object],
        policy: Mapping[str, object] | None = None,
    ) -> Record:
        sketch = task.sketches[candidate[0]]
        row = tuple([int(x) for x in candidate[1]])
        facts: dict[str, object] = {"build_s": built.seconds, "run_s": 0.0 if ran is None else ran.seconds}
        if built.artifact is not None:
            facts |= built.artifact.facts
        if ran is not None:
            facts |= ran.facts
        error = built.error if ran is None else ran.error
        host, versions = environment()
        if ran is not None and ran.host is not None:
            host = ran.host
        record = Record(
            workload=task.digest,
            target=self._target_json,
            trace=_trace(sketch.trace, row, error is not None),
            sketch=sketch.name,
            row=row,
            samples=() if ran is None else ran.samples,
            clean=ran is None or ran.clean,
            error=error,
            verified=ran is not None and ran.verified,
            host=host,
            versions=versions,
            seed=seed,
            timestamp=time.time(),
            policy={name: None if value == math.inf else value for name, value in (policy or self._policy_of(task).to_json()).items()},
            extra={**extra, **facts},
            sizes=task.sizes,
            passes=self._passes,
        )
        if record.verified or (self.policy.verify == "never" and error is None):
            self.note_best(task, record.seconds)
        if self.log is not None:
            self.log.append(record)
        return record

    def _setup(self, task: MeasureTask) -> RunSetup:
        """The task's setup for runners; the first call computes the reference and logs the program."""
        ranges = tuple([(name, low, high) for name, (low, high) in sorted(task.ranges.items())])
        settings = [self.policy.data_seed, ranges, task.relative_tolerance, task.reference is None, self.policy.verify == "never"]
        key = f"{task.digest}-{blake2b(json.dumps(settings).encode(), digest_size=4).hexdigest()}"
        known = self._setups.get(key)
        if known is not None:
            return known
        reference: str | None = None
        baseline: Code | None = None
        if task.reference is not None:
            inputs = make_inputs(task.params, self.policy.data_seed, task.ranges)
            path = self._folder / f"{key}.npz"
            save_reference(path, check_reference(task.params, task.reference(inputs)))
            reference = str(path)
        elif self.policy.verify != "never":
            baseline = self._baseline(task)
        setup = RunSetup(
            key,
            self._target_text,
            task.params,
            self.policy.data_seed,
            ranges,
            task.relative_tolerance,
            reference,
            baseline,
            tuple([i for i, p in enumerate(task.params) if p.name in task.func.constants]),
        )
        if self.log is not None:
            self.log.append(WorkloadLine(task.digest, task.name or task.func.name, task.script))
        self._setups[key] = setup
        return setup

    def _baseline(self, task: MeasureTask) -> Code:
        """The unscheduled function, compiled; a large one has the default schedule of CPUs, which computes the same bits."""
        steps: list[object] = []
        if self.target.is_cpu and (operation_count(task.func) or 0) > LARGE:
            steps = list(default_trace(task.func, self.target).to_json())
        (built,) = self._build([BuildRequest(task.script, json.dumps(steps), (), self._target_text)])
        if built.artifact is None:
            why = "" if built.error is None else built.error.message
            raise RunError(
                f"{task.name or task.func.name} has no reference, and its unscheduled function cannot be compiled to compute one: {why}. "
                "Pass a reference to the task"
            )
        return built.artifact.code()


def _pass_changes(target: Target) -> dict[str, object]:
    """The changes of passes that candidates are compiled with; refuses those that neither workers nor records would know of."""
    for i in PassContext.current().instruments:
        if can_skip(i):
            raise UserError(
                f"the instrument {i.name} may leave out passes (should_run), which the processes that compile candidates do not call and "
                "records do not show: name the passes in PassContext(disabled=[...])"
            )
    return pass_changes(target)


def _trace(trace: Trace, row: tuple[int, ...], failed: bool) -> list[object]:
    """The trace with the row's decisions as JSON; the unchanged trace if the row does not fit it and the candidate failed."""
    try:
        trace = trace.with_configuration(row)
    except RecordError:
        if not failed:
            raise
    return list(trace.to_json())


def _one_each(results: object, kind: type[T], count: int, what: str) -> list[T]:
    """The results of a builder or a runner, one for each request.  UserError if they are something else."""
    expected = f"it returns a list with one {kind.__name__} for each of {count} requests, in their order"
    if not isinstance(results, (list, tuple)):
        raise UserError(f"{what} returned {shown(results)}; {expected}")
    odd = [r for r in results if not isinstance(r, kind)]
    if odd:
        raise UserError(f"{what} returned a list with {shown(odd[0])}, {odd[0]!r:.200}; {expected}")
    if len(results) != count:
        raise UserError(f"{what} returned {len(results)} results; {expected}")
    return list(results)


def _chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[i : i + size] for i in range(0, len(items), size)]
