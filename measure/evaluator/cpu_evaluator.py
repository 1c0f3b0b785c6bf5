"""The place where candidates run: arguments laid out once for a workload, then each candidate loaded, raced and judged.

Candidate code is not trusted.  Whatever it does here can end the process, which is why it is a process of its own
(`local_runner`); what it may not do is to harm the next candidate unnoticed, which is why inputs are sealed, outputs stand
between guards, and a bench on which something was written where it should not be says that it wants to be thrown away.
"""

from __future__ import annotations

import json
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
from tunesmith.measure.records.record import ErrorInfo
from tunesmith.measure.runner import RunRequest, RunResult, RunSetup
from tunesmith.measure.timing_policy import race
from tunesmith.runtime.timing import TimingPolicy, interleaved
from tunesmith.support.errors import BuildError, InternalError, RunError

_TABLES = 4
"""Workloads whose arguments are kept: a search that tunes a network goes from one to the next and comes back."""
_RAISED = (RunError, TypeError, ValueError, RuntimeError)
"""What loading a candidate raises, or calling it with arguments that it does not take."""


class CpuEvaluator:
    """Runs candidates in this process, one at a time."""

    def __init__(self) -> None:
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._scratch = np.zeros(0, np.uint8)
        self._constants = cold_memory(0)
        self.corrupted = False
        """Somebody wrote beside an output: memory of this process may be ruined in places nobody looks at."""

    def prepare(self, setup: RunSetup) -> None:
        """Lay out the arguments of a workload, unless they are there.

        Raises:
            RunError: the target is another machine's, there is no memory, or the unscheduled function does not run.
        """
        if setup.key in self._places:
            self._places.move_to_end(setup.key)
            return
        try:
            check_runs_here(Target.from_json(json.loads(setup.target)))
        except BuildError as error:
            raise RunError(str(error)) from None
        while len(self._places) >= _TABLES:
            self._places.popitem(last=False)
        self._places[setup.key] = _Place(setup)

    def run(self, request: RunRequest) -> RunResult:
        """Run one candidate.  Anything it does short of ending the process is in the result."""
        start = time.perf_counter()
        self.prepare(request.setup)
        place = self._places[request.setup.key]
        try:
            call = place.load(request)
            result = self._raced(request, place, call)
        except _RAISED as error:
            result = _failed("run_error", str(error))
        return replace(result, seconds=time.perf_counter() - start)

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        """See `Runner.compare`."""
        self.prepare(requests[0].setup)
        place = self._places[requests[0].setup.key]
        verdicts: list[RunResult | None] = []
        calls: dict[str, Callable[[], object]] = {}
        memory = self._memory(requests[0].policy.constant_bytes)
        for i, request in enumerate(requests):
            try:
                call = place.load(request)
                wrong = self._wrong(place, call)
            except _RAISED as error:
                verdicts.append(_failed("run_error", str(error)))
                continue
            verdicts.append(None if wrong is None else _failed("wrong_result", wrong))
            if wrong is None:
                calls[str(i)] = place.cold(call, memory)
        start = time.perf_counter()
        samples = interleaved(calls, policy)
        each = (time.perf_counter() - start) / max(1, len(calls))
        overwritten = self._overwritten(place)
        if overwritten is not None:  # after right results: nobody can say whose fault it is
            raise RunError(f"while {len(calls)} candidates were compared, one of them {overwritten}")
        out = []
        for i, verdict in enumerate(verdicts):
            if verdict is not None:
                out.append(verdict)
                continue
            s = samples[str(i)]
            out.append(
                RunResult(s.seconds, s.clean, None, place.reference is not None, each, {"calls": float(s.number), "foreign": s.foreign})
            )
        return out

    def _raced(self, request: RunRequest, place: _Place, call: PackedCall) -> RunResult:
        flush = self._flusher(request.policy.flush_bytes)
        if request.verify == "always":
            wrong = self._wrong(place, call)
            if wrong is not None:
                return _failed("wrong_result", wrong)
        timed = race(place.cold(call, self._memory(request.policy.constant_bytes)), request.policy, request.best, flush)
        facts = {"calls": float(timed.number)} | ({"waited": timed.waited} if timed.waited == timed.waited else {})
        wrong = self._overwritten(place)
        verified = request.verify == "always" and place.reference is not None
        if wrong is None and request.verify == "winner" and place.reference is not None:
            if request.best is None or statistics.median(timed.seconds) < request.best:
                wrong = self._wrong(place, call)
                verified = True
        if wrong is not None:
            return RunResult(timed.seconds, timed.clean, ErrorInfo("wrong_result", wrong), False, 0.0, facts)
        return RunResult(timed.seconds, timed.clean, None, verified, 0.0, facts)

    def _wrong(self, place: _Place, call: Callable[[], object]) -> str | None:
        """What is wrong with the output of a call; None if nothing is, or if there is nothing to compare with."""
        if place.reference is None:
            call()
            return self._overwritten(place)
        place.table.fill(place.before)
        call()
        return self._overwritten(place) or place.verdict()

    def _overwritten(self, place: _Place) -> str | None:
        names = place.table.damaged()
        if not names:
            return None
        self.corrupted = True
        return f"wrote outside of its argument {', '.join(names)}"

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


class _Place:
    """The arguments of one workload, and what its outputs must be."""

    def __init__(self, setup: RunSetup) -> None:
        self.setup = setup
        self.table = ArgumentTable(setup.params, make_inputs(setup.params, setup.seed, setup.ranges_by_name()))
        self.arguments = self.table.arguments()
        self.reference: list[Array] | None = None
        self.before: list[Array] = []
        """What the outputs hold before a call that is verified."""
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
        """What the unscheduled function makes of these outputs."""
        assert self.setup.baseline is not None
        self.table.fill(values)
        call()
        if damaged := self.table.damaged():
            raise InternalError(
                f"the unscheduled function {self.setup.baseline.function} wrote outside of its argument {', '.join(damaged)}"
            )
        return [output.copy() for output in self.table.outputs()]

    def load(self, request: RunRequest) -> PackedCall:
        """The candidate, ready to be called on the arguments.  RunError if it cannot be loaded, or has another function."""
        return load_call(request.code, self.arguments)

    def cold(self, call: PackedCall, memory: Array) -> Callable[[], object]:
        """The call as it is timed: with constants that are elsewhere each time, if there is memory for that."""
        specs = [p if i in self.setup.constants else None for i, p in enumerate(self.setup.params)]
        return call.cold(specs, memory) if memory.nbytes else call

    def verdict(self) -> str | None:
        """What is wrong with the outputs as they are."""
        assert self.reference is not None
        written = [p.name for p in self.setup.params if p.written]
        for name, actual, expected in zip(written, self.table.outputs(), self.reference, strict=True):
            found = mismatch(actual, expected, self.setup.tolerance)
            if found is not None:
                return f"output {name}: {found}"
        return None


def _failed(kind: str, message: str) -> RunResult:
    return RunResult((), True, ErrorInfo(kind, message), False, 0.0)
