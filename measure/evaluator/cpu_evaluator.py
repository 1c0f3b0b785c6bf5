"""Evaluate CPU candidates: prepare the arguments once per workload, then load, time and verify each candidate.

Candidate code is not trusted.  It may end the process, so the evaluator runs in a separate process (`local_runner`).  It must not affect
later candidates unnoticed: inputs are read-only, outputs have guard pages, and if a guard was overwritten, the evaluator is marked
corrupted and its process is replaced.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tunesmith.codegen.build import check_runs_here
from tunesmith.ir.target.target import Target
from tunesmith.measure.evaluator.argument_data import ArgumentTable, make_inputs, poison, run_baseline
from tunesmith.measure.evaluator.correctness import load_reference, mismatch
from tunesmith.measure.evaluator.guard_pages import Array
from tunesmith.measure.evaluator.packed_call import PackedCall, cold_memory, load_call
from tunesmith.measure.race import race
from tunesmith.measure.records.record import ErrorInfo
from tunesmith.measure.runner import RunRequest, RunResult, RunSetup
from tunesmith.runtime.timing import TimingPolicy, interleaved
from tunesmith.support import dtype as dtypes
from tunesmith.support.errors import BuildError, InternalError, RunError

_CACHED_BYTES = 1 << 30
"""Bytes of arguments and references that are cached: a search that tunes a network alternates between its workloads."""
_RAISED = (RunError, TypeError, ValueError, RuntimeError)
"""Errors of loading a candidate, and of calling it with arguments that it does not accept."""


class CpuEvaluator:
    """Runs CPU candidates in this process, one at a time."""

    def __init__(self) -> None:
        self._workloads: OrderedDict[str, _CpuWorkload] = OrderedDict()
        self._scratch = np.zeros(0, np.uint8)
        self._constants = cold_memory(0)
        self.corrupted = False
        """A candidate wrote outside an output: other memory of this process may be damaged, too."""

    def prepare(self, setup: RunSetup) -> None:
        """Prepare the arguments of a workload, unless they are cached.

        Raises:
            RunError: the target does not match this machine, memory is exhausted, or the unscheduled function fails.
        """
        if setup.key in self._workloads:
            self._workloads.move_to_end(setup.key)
            return
        try:
            check_runs_here(Target.from_json(json.loads(setup.target)))
        except BuildError as error:
            raise RunError(str(error)) from None
        while self._workloads and sum(w.nbytes for w in self._workloads.values()) + _nbytes(setup) > _CACHED_BYTES:
            self._workloads.popitem(last=False)
        self._workloads[setup.key] = _CpuWorkload(setup)

    def run(self, request: RunRequest) -> RunResult:
        """Run one candidate.  The result reports any failure that does not end the process."""
        start = time.perf_counter()
        self.prepare(request.setup)
        workload = self._workloads[request.setup.key]
        try:
            call = workload.load(request)
            result = self._raced(request, workload, call)
        except _RAISED as error:
            result = _failed("run_error", str(error))
        return replace(result, seconds=time.perf_counter() - start)

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        """See `Runner.compare`."""
        self.prepare(requests[0].setup)
        workload = self._workloads[requests[0].setup.key]
        failures: list[RunResult | None] = []
        calls: dict[str, Callable[[], object]] = {}
        memory = self._memory(requests[0].policy.constant_bytes)
        for i, request in enumerate(requests):
            try:
                call = workload.load(request)
                wrong = self._wrong(workload, call)
            except _RAISED as error:
                failures.append(_failed("run_error", str(error)))
                continue
            failures.append(None if wrong is None else _failed("wrong_result", wrong))
            if wrong is None:
                calls[str(i)] = workload.cold(call, memory)
        start = time.perf_counter()
        samples = interleaved(calls, policy)
        each = (time.perf_counter() - start) / max(1, len(calls))
        overwritten = self._overwritten(workload)
        if overwritten is not None:  # all results were correct: the culprit is unknown
            raise RunError(f"while {len(calls)} candidates were compared, one of them {overwritten}")
        out = []
        for i, failure in enumerate(failures):
            if failure is not None:
                out.append(failure)
                continue
            s = samples[str(i)]
            out.append(
                RunResult(s.seconds, s.clean, None, workload.reference is not None, each, {"calls": float(s.number), "foreign": s.foreign})
            )
        return out

    def close(self) -> None:
        """Release the memory of the arguments."""
        self._workloads.clear()

    def _raced(self, request: RunRequest, workload: _CpuWorkload, call: PackedCall) -> RunResult:
        flush = self._flusher(request.policy.flush_bytes)
        if request.verify == "always":
            wrong = self._wrong(workload, call)
            if wrong is not None:
                return _failed("wrong_result", wrong)
        timed = race(workload.cold(call, self._memory(request.policy.constant_bytes)), request.policy, request.best, flush)
        facts = {"calls": float(timed.number)} | ({"waited": timed.waited} if timed.waited == timed.waited else {})
        wrong = self._overwritten(workload)
        verified = request.verify == "always" and workload.reference is not None
        if wrong is None and request.verify == "winner" and workload.reference is not None:
            if request.best is None or statistics.median(timed.seconds) < request.best:
                wrong = self._wrong(workload, call)
                verified = True
        if wrong is not None:
            return RunResult(timed.seconds, timed.clean, ErrorInfo("wrong_result", wrong), False, 0.0, facts)
        return RunResult(timed.seconds, timed.clean, None, verified, 0.0, facts)

    def _wrong(self, workload: _CpuWorkload, call: Callable[[], object]) -> str | None:
        """Error in the outputs of a call; None if they are correct, or if there is no reference."""
        if workload.reference is None:
            call()
            return self._overwritten(workload)
        workload.table.fill(workload.before)
        call()
        return self._overwritten(workload) or workload.mismatch()

    def _overwritten(self, workload: _CpuWorkload) -> str | None:
        names = workload.table.damaged()
        if not names:
            return None
        self.corrupted = True
        return f"wrote outside its argument {', '.join(names)}"

    def _memory(self, size: int) -> Array:
        if self._constants.nbytes != size:
            self._constants = cold_memory(size)
        return self._constants

    def _flusher(self, size: int) -> Callable[[], object] | None:
        if size == 0:
            return None
        if self._scratch.nbytes != size:
            self._scratch = np.zeros(size, np.uint8)
        return lambda: np.add(self._scratch, 1, out=self._scratch)


class _CpuWorkload:
    """Arguments of one workload, and its expected outputs."""

    def __init__(self, setup: RunSetup) -> None:
        self.setup = setup
        self.nbytes = _nbytes(setup)
        self.table = ArgumentTable(setup.params, make_inputs(setup.params, setup.seed, setup.ranges_by_name()))
        self.arguments = self.table.arguments()
        self.reference: list[Array] | None = None
        self.before: list[Array] = []
        """Contents of the outputs before a verified call."""
        if setup.reference is not None:
            try:
                self.reference = load_reference(setup.reference)
            except (OSError, ValueError) as error:
                raise RunError(f"cannot read the reference {setup.reference}: {error}") from error
            self.before = poison(setup.params, self.reference)
        elif setup.baseline is not None:
            call = load_call(setup.baseline, self.arguments)
            self.before, self.reference = run_baseline(setup.params, setup.seed, lambda values: self._run(call, values))

    def _run(self, call: PackedCall, values: Sequence[Array]) -> list[Array]:
        """Outputs of the unscheduled function, started from these contents."""
        assert self.setup.baseline is not None
        self.table.fill(values)
        call()
        if damaged := self.table.damaged():
            raise InternalError(f"the unscheduled function {self.setup.baseline.function} wrote outside its argument {', '.join(damaged)}")
        return [output.copy() for output in self.table.outputs()]

    def load(self, request: RunRequest) -> PackedCall:
        """The candidate, bound to the arguments.  Raises RunError if it cannot be loaded or lacks the function."""
        return load_call(request.code, self.arguments)

    def cold(self, call: PackedCall, memory: Array) -> Callable[[], object]:
        """The call to time: with cold constants, if memory is provided for them."""
        specs = [p if i in self.setup.constants else None for i, p in enumerate(self.setup.params)]
        return call.cold(specs, memory) if memory.nbytes else call

    def mismatch(self) -> str | None:
        """Error in the current outputs; None if they match the reference."""
        assert self.reference is not None
        written = [p.name for p in self.setup.params if p.written]
        for name, actual, expected in zip(written, self.table.outputs(), self.reference, strict=True):
            found = mismatch(actual, expected, self.setup.tolerance)
            if found is not None:
                return f"output {name}: {found}"
        return None


def _nbytes(setup: RunSetup) -> int:
    """Bytes of the arguments of a workload, and of the expected contents of its outputs before and after a call."""
    return sum(dtypes.nbytes(p.dtype) * math.prod(p.shape) * (3 if p.written else 1) for p in setup.params)


def _failed(kind: str, message: str) -> RunResult:
    return RunResult((), True, ErrorInfo(kind, message), False, 0.0)
