"""The place where candidates for a device run: arguments laid out once for a workload, then each candidate loaded, raced and judged.

Times are the device's own: marks before and after many launches, all of which are there before the device comes to them.  What a candidate
did to the device shows when results are fetched; a device that takes nothing more from this process taints the bench, which is then thrown
away with the process.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np

from tunesmith.codegen.build import check_runs_here
from tunesmith.ir.target.target import Target
from tunesmith.measure.calibration.gpu_probe import compiled
from tunesmith.measure.evaluator.argument_data import make_inputs, poison, run_baseline
from tunesmith.measure.evaluator.blocking_kernel import AT_ONCE, BlockingKernel
from tunesmith.measure.evaluator.correctness import load_reference, mismatch
from tunesmith.measure.evaluator.guard_pages import Array, from_bfloat16, to_bfloat16
from tunesmith.measure.records.record import ErrorInfo
from tunesmith.measure.runner import RunRequest, RunResult, RunSetup
from tunesmith.measure.timing_policy import race
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.device import Device, DeviceLost
from tunesmith.runtime.device.module import BoundCall, DeviceModule
from tunesmith.runtime.device.program import DeviceProgram
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.support.errors import BuildError, RunError, UserError

_TABLES = 4
"""Workloads whose arguments are kept."""
_MOST_COPIES = 512
"""Sets of arguments for calls that find their data elsewhere each time: 180 MB in all, an L2 cache and more, from 350 KB each."""

LED = ("cuda",)
"""Kinds of devices whose kernels may be shorter than it takes to start them."""
_HOST_BOUND = 0.5
"""Calls that take the host more than this part of the device's time to start: the device may have waited for them."""


class DeviceEvaluator:
    """Runs candidates on the first device of the target's kind, one at a time.  Its caller holds the device's lease.

    Attributes:
        tainted: the device takes nothing more from this process.
    """

    def __init__(self) -> None:
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._leads: dict[Target, BlockingKernel | None] = {}
        self.corrupted = False

    def prepare(self, setup: RunSetup) -> None:
        """Lay out the arguments of a workload, unless they are there.

        Raises:
            RunError: there is no such device, no memory, or the unscheduled function does not run.
        """
        if setup.key in self._places:
            self._places.move_to_end(setup.key)
            return
        target = Target.from_json(json.loads(setup.target))
        try:
            check_runs_here(target)
        except BuildError as error:
            raise RunError(str(error)) from None
        while len(self._places) >= _TABLES:
            self._places.popitem(last=False)
        if target.base in LED and target not in self._leads:
            try:
                self._leads[target] = BlockingKernel(Device(target.base), compiled(target.base, target.arch))
            except BuildError:  # without a compiler short kernels take as long as starting them
                self._leads[target] = None
        self._places[setup.key] = _Place(setup, Device(target.base), self._leads.get(target))

    def run(self, request: RunRequest) -> RunResult:
        """Run one candidate.  Anything it does short of ending the process is in the result."""
        start = time.perf_counter()
        self.prepare(request.setup)
        place = self._places[request.setup.key]
        with self._judged() as verdict:
            verdict.append(_raced(request, place))
        return replace(verdict[0], seconds=time.perf_counter() - start)

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        """See `Runner.compare`: rounds in which each candidate has a sample."""
        self.prepare(requests[0].setup)
        place = self._places[requests[0].setup.key]
        verdicts: dict[int, RunResult] = {}
        calls: dict[int, _Timed] = {}
        start = time.perf_counter()
        try:
            for i, request in enumerate(requests):
                with self._judged() as verdict:
                    calls[i] = place.timed(request)
                    wrong = place.wrong(calls[i].call)
                    if wrong is not None:
                        verdict.append(_failed("wrong_result", wrong))
                if verdict:
                    verdicts[i] = verdict[0]
            samples = self._in_turns({i: timed for i, timed in calls.items() if i not in verdicts}, policy, verdicts)
        finally:
            for timed in calls.values():
                timed.close()
        each = (time.perf_counter() - start) / max(1, len(requests))
        for i, (seconds, number) in samples.items():
            verdicts[i] = RunResult(tuple(seconds), True, None, place.reference is not None, each, {"calls": float(number)})
        return [replace(verdicts[i], host=place.host) for i in range(len(requests))]

    def _in_turns(
        self, calls: dict[int, _Timed], policy: TimingPolicy, verdicts: dict[int, RunResult]
    ) -> dict[int, tuple[list[float], int]]:
        """Samples of each, in rounds, and calls in a sample.  One that fails has a verdict instead, and the rounds go on without it."""
        numbers: dict[int, int] = {}
        samples: dict[int, list[float]] = {i: [] for i in calls}
        for i, timed in calls.items():
            with self._judged() as verdict:
                numbers[i] = _calls_in_a_sample(timed, policy)
            if verdict:
                verdicts[i] = verdict[0]
        until = time.perf_counter() + policy.limit_s * max(len(calls), 1)
        while (left := [i for i in calls if i not in verdicts]) and min(len(samples[i]) for i in left) < policy.repeats:
            for i in left:
                with self._judged() as verdict:
                    samples[i].append(calls[i].clock(calls[i].call, numbers[i]) / numbers[i])
                if verdict:
                    verdicts[i] = verdict[0]
            if time.perf_counter() > until:
                break
        return {i: (samples[i], numbers[i]) for i in calls if i not in verdicts}

    @contextmanager
    def _judged(self) -> Iterator[list[RunResult]]:
        """What a candidate raises becomes its result."""
        verdict: list[RunResult] = []
        try:
            yield verdict
        except DeviceLost as error:
            self.corrupted = True
            verdict[:] = [_failed("crash", str(error))]
        except (UserError, ValueError, TypeError) as error:
            verdict[:] = [_failed("run_error", str(error))]


class _Place:
    """The arguments of one workload on a device, and what its outputs must be."""

    def __init__(self, setup: RunSetup, device: Device, lead: BlockingKernel | None) -> None:
        self.setup, self.device, self.lead = setup, device, lead
        facts = device.api.attributes(device.index)
        self.host: dict[str, object] = {"device": facts.name, "compute": facts.compute_version, "driver": facts.driver_version}
        values = iter(make_inputs(setup.params, setup.seed, setup.ranges_by_name()))
        self.inputs = [None if p.written else _storage(p.dtype, next(values)) for p in setup.params]
        self.arrays = self._copies()
        self._others: list[list[DeviceArray]] = []
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
            call = self._module(setup.baseline.data)[setup.baseline.function].bind(*self.arrays)
            self.before, self.reference = run_baseline(setup.params, setup.seed, lambda values: self._run(call, values))

    def _run(self, call: Callable[[], object], values: Sequence[Array]) -> list[Array]:
        """What the unscheduled function makes of these outputs."""
        self._fill(values)
        call()
        return self.outputs()

    def others(self, number: int) -> list[list[DeviceArray]]:
        """So many more sets of arguments.  They are kept: making hundreds takes longer than timing a candidate."""
        self._others += [self._copies() for _ in range(number - len(self._others))]
        return self._others[:number]

    def _copies(self) -> list[DeviceArray]:
        """Arguments in memory of their own."""
        arrays = [DeviceArray(self.device, p.shape, p.dtype) for p in self.setup.params]
        for array, values in zip(arrays, self.inputs, strict=True):
            if values is not None:
                array.fill(values)
        return arrays

    def timed(self, request: RunRequest) -> _Timed:
        """The candidate on the arguments; on several sets of them in turn, if it is to find its data cold."""
        module = self._module(request.code.data)
        function = module[request.code.function]
        calls = [function.bind(*self.arrays)]
        cold = max(request.policy.flush_bytes, request.policy.constant_bytes)
        if cold:
            scratch = sum(sum(f.workspaces) for f in module.program.functions if f.name == request.code.function)
            size = sum(p.nbytes for p in self.setup.params) + scratch  # each call has a workspace of its own, too
            calls += [function.bind(*arrays) for arrays in self.others(min(cold // max(size, 1), _MOST_COPIES))]
        calls[0]()  # loads the code; drivers compile, too, when a kernel is launched for the first time
        self.device.api.synchronise(self.device.index)
        return _Timed(self.device, calls, self.lead)

    def wrong(self, call: Callable[[], object]) -> str | None:
        """What is wrong with the results of a call; None if nothing is, or if there is nothing to compare with."""
        if self.reference is not None:
            self._fill(self.before)
        call()
        self.device.api.synchronise(self.device.index)
        for array, values, p in zip(self.arrays, self.inputs, self.setup.params, strict=True):
            if values is not None and not np.array_equal(array.numpy().view(np.uint8), values.view(np.uint8)):
                array.fill(values)
                return f"wrote to its input {p.name}"
        if self.reference is None:
            return None
        names = [p.name for p in self.setup.params if p.written]
        for name, actual, expected in zip(names, self.outputs(), self.reference, strict=True):
            found = mismatch(actual, expected, self.setup.tolerance)
            if found is not None:
                return f"output {name}: {found}"
        return None

    def outputs(self) -> list[Array]:
        """What is in the arguments that are written; bfloat16 in float32."""
        pairs = zip(self.arrays, self.setup.params, strict=True)
        return [from_bfloat16(a.numpy()) if p.dtype == "bfloat16" else a.numpy() for a, p in pairs if p.written]

    def _fill(self, values: Sequence[Array]) -> None:
        written = [(a, p) for a, p in zip(self.arrays, self.setup.params, strict=True) if p.written]
        for (array, p), x in zip(written, values, strict=True):
            array.fill(_storage(p.dtype, x))

    def _module(self, data: bytes) -> DeviceModule:
        return DeviceModule(DeviceProgram.from_bytes(data), self.device.index)


class _Timed:
    """Calls of one candidate, and the device's clock."""

    def __init__(self, device: Device, calls: Sequence[BoundCall], lead: BlockingKernel | None = None) -> None:
        self._api, self._index, self._calls, self._lead = device.api, device.index, list(calls), lead
        self._marks = [self._api.create_event(self._index) for _ in range(2)]
        self.call = calls[0]
        self._next = 0
        self._started = 0.0
        """Seconds that the host takes to start a call, if that is why the device waits."""

    def clock(self, call: Callable[[], object], number: int) -> float:
        """Seconds of so many calls in a row, sets of arguments taking turns."""
        if self._lead is None:
            return self._row(number)[0]
        if not self._started:
            seconds, started = self._row(number)
            if started < _HOST_BOUND * seconds:
                return seconds
            self._started = started / number
        seconds = 0.0
        while number > 0:
            some = min(number, AT_ONCE)
            self._lead.start(self._started * some)
            seconds += self._row(some)[0]
            number -= some
        return seconds

    def _row(self, number: int) -> tuple[float, float]:
        """Seconds of so many calls for the device, and of starting them for the host."""
        start, stop = self._marks
        begun = time.perf_counter()
        self._api.record_event(self._index, start)
        for i in range(self._next, self._next + number):
            self._calls[i % len(self._calls)]()
        self._api.record_event(self._index, stop)
        started = time.perf_counter() - begun
        self._next += number
        return self._api.elapsed(self._index, start, stop), started

    def close(self) -> None:
        """Give the marks back, and the calls' workspaces."""
        for mark in self._marks:
            with suppress(DeviceLost):  # they went with the device
                self._api.free_event(self._index, mark)
        self._marks, self._calls = [], []


def _raced(request: RunRequest, place: _Place) -> RunResult:
    timed = place.timed(request)
    try:
        if request.verify == "always" and (wrong := place.wrong(timed.call)) is not None:
            return _failed("wrong_result", wrong)
        ran = race(timed.call, request.policy, request.best, None, timed.clock)
        facts = {"calls": float(ran.number)} | ({"waited": ran.waited} if ran.waited == ran.waited else {})
        verified = request.verify == "always" and place.reference is not None
        wrong = None
        better = request.best is None or statistics.median(ran.seconds) < request.best
        if request.verify == "winner" and place.reference is not None and better:
            wrong = place.wrong(timed.call)
            verified = wrong is None
        error = None if wrong is None else ErrorInfo("wrong_result", wrong)
        return RunResult(ran.seconds, ran.clean, error, verified, 0.0, facts, place.host)
    finally:
        timed.close()


def _calls_in_a_sample(timed: _Timed, policy: TimingPolicy) -> int:
    timed.clock(timed.call, max(policy.warmup, 1))
    taken, number = timed.clock(timed.call, 1), policy.number or 1
    while policy.number is None and taken < policy.min_repeat_ms * 1e-3 and number < 1 << 20:
        number = max(2 * number, int(number * 1.05 * policy.min_repeat_ms * 1e-3 / max(taken, 1e-7)))
        taken = timed.clock(timed.call, number)
    return number


def _storage(dtype: str, values: Array) -> Array:
    """Values as they lie in memory; bfloat16 is held in float32 by whoever makes them."""
    return to_bfloat16(values) if dtype == "bfloat16" else np.asarray(values, order="C")  # a scalar stays one


def _failed(kind: str, message: str) -> RunResult:
    return RunResult((), True, ErrorInfo(kind, message), False, 0.0)
