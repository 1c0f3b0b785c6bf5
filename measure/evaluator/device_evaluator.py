"""Evaluate device candidates: prepare the arguments once per workload, then load, time and verify each candidate.

Times are measured by the device: events before and after many launches, all enqueued before the device reaches them.  Errors that a
candidate causes on the device appear when results are fetched.  If the device no longer accepts work from this process, the evaluator is
marked corrupted and its process is replaced.
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
from tunesmith.measure.race import race
from tunesmith.measure.records.record import ErrorInfo
from tunesmith.measure.runner import RunRequest, RunResult, RunSetup
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.device import Device, DeviceLost
from tunesmith.runtime.device.module import BoundCall, DeviceModule
from tunesmith.runtime.device.program import DeviceProgram
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.support.errors import BuildError, RunError, UserError

_CACHED_WORKLOADS = 4
"""Workloads whose arguments are cached."""
_MOST_COPIES = 512
"""Limit of argument sets for calls with cold data: at 350 KB per set they hold 180 MB, more than an L2 cache."""

LAUNCH_BOUND = ("cuda",)
"""Device kinds on which a kernel may be shorter than its launch."""
_HOST_BOUND = 0.5
"""If launching takes more than this fraction of the device time, the device may have waited for the host."""


class DeviceEvaluator:
    """Runs candidates on the first device of the target's kind, one at a time.  The caller holds the device's lease.

    Attributes:
        corrupted: the device no longer accepts work from this process.
    """

    def __init__(self) -> None:
        self._workloads: OrderedDict[str, _DeviceWorkload] = OrderedDict()
        self._blocking_kernels: dict[Target, BlockingKernel | None] = {}
        self.corrupted = False

    def prepare(self, setup: RunSetup) -> None:
        """Prepare the arguments of a workload, unless they are cached.

        Raises:
            RunError: there is no such device, memory is exhausted, or the unscheduled function fails.
        """
        if setup.key in self._workloads:
            self._workloads.move_to_end(setup.key)
            return
        target = Target.from_json(json.loads(setup.target))
        try:
            check_runs_here(target)
        except BuildError as error:
            raise RunError(str(error)) from None
        while len(self._workloads) >= _CACHED_WORKLOADS:
            self._workloads.popitem(last=False)
        if target.base in LAUNCH_BOUND and target not in self._blocking_kernels:
            try:
                self._blocking_kernels[target] = BlockingKernel(Device(target.base), compiled(target.base, target.arch))
            except BuildError:  # without a compiler, times of short kernels are bounded by their launch
                self._blocking_kernels[target] = None
        self._workloads[setup.key] = _DeviceWorkload(setup, Device(target.base), self._blocking_kernels.get(target))

    def run(self, request: RunRequest) -> RunResult:
        """Run one candidate.  The result reports any failure that does not end the process."""
        start = time.perf_counter()
        self.prepare(request.setup)
        workload = self._workloads[request.setup.key]
        with self._caught() as result:
            result.append(_raced(request, workload))
        return replace(result[0], seconds=time.perf_counter() - start)

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        """See `Runner.compare`: candidates are timed in rounds of one sample each."""
        self.prepare(requests[0].setup)
        workload = self._workloads[requests[0].setup.key]
        results: dict[int, RunResult] = {}
        calls: dict[int, _TimedCalls] = {}
        start = time.perf_counter()
        try:
            for i, request in enumerate(requests):
                with self._caught() as failure:
                    calls[i] = workload.timed(request)
                    wrong = workload.wrong(calls[i].call)
                    if wrong is not None:
                        failure.append(_failed("wrong_result", wrong))
                if failure:
                    results[i] = failure[0]
            samples = self._interleaved({i: timed for i, timed in calls.items() if i not in results}, policy, results)
        finally:
            for timed in calls.values():
                timed.close()
        each = (time.perf_counter() - start) / max(1, len(requests))
        for i, (seconds, number) in samples.items():
            results[i] = RunResult(tuple(seconds), True, None, workload.reference is not None, each, {"calls": float(number)})
        return [replace(results[i], host=workload.host) for i in range(len(requests))]

    def close(self) -> None:
        """Release the memory of the arguments, and the blocking kernels."""
        self._workloads.clear()
        kernels, self._blocking_kernels = list(self._blocking_kernels.values()), {}
        for kernel in kernels:
            if kernel is not None:
                with suppress(DeviceLost):  # a lost device has nothing to release
                    kernel.close()

    def _interleaved(
        self, calls: dict[int, _TimedCalls], policy: TimingPolicy, results: dict[int, RunResult]
    ) -> dict[int, tuple[list[float], int]]:
        """Samples and calls per sample of each candidate, timed in rounds.  Failures are added to `results`; the others continue."""
        numbers: dict[int, int] = {}
        samples: dict[int, list[float]] = {i: [] for i in calls}
        for i, timed in calls.items():
            with self._caught() as failure:
                numbers[i] = _calls_in_a_sample(timed, policy)
            if failure:
                results[i] = failure[0]
        until = time.perf_counter() + policy.limit_s * max(len(calls), 1)
        while (left := [i for i in calls if i not in results]) and min(len(samples[i]) for i in left) < policy.repeats:
            for i in left:
                with self._caught() as failure:
                    samples[i].append(calls[i].clock(calls[i].call, numbers[i]) / numbers[i])
                if failure:
                    results[i] = failure[0]
            if time.perf_counter() > until:
                break
        return {i: (samples[i], numbers[i]) for i in calls if i not in results}

    @contextmanager
    def _caught(self) -> Iterator[list[RunResult]]:
        """Convert an exception of a candidate to its result; the yielded list receives it."""
        failure: list[RunResult] = []
        try:
            yield failure
        except DeviceLost as error:
            self.corrupted = True
            failure[:] = [_failed("crash", str(error))]
        except (UserError, ValueError, TypeError) as error:
            failure[:] = [_failed("run_error", str(error))]


class _DeviceWorkload:
    """Arguments of one workload on a device, and its expected outputs."""

    def __init__(self, setup: RunSetup, device: Device, blocking_kernel: BlockingKernel | None) -> None:
        self.setup, self.device, self.blocking_kernel = setup, device, blocking_kernel
        facts = device.api.attributes(device.index)
        self.host: dict[str, object] = {"device": facts.name, "compute": facts.compute_version, "driver": facts.driver_version}
        values = iter(make_inputs(setup.params, setup.seed, setup.ranges_by_name()))
        self.inputs = [None if p.written else _storage(p.dtype, next(values)) for p in setup.params]
        self.arrays = self._copies()
        self._others: list[list[DeviceArray]] = []
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
            call = self._module(setup.baseline.data)[setup.baseline.function].bind(*self.arrays)
            self.before, self.reference = run_baseline(setup.params, setup.seed, lambda values: self._run(call, values))

    def _run(self, call: Callable[[], object], values: Sequence[Array]) -> list[Array]:
        """Outputs of the unscheduled function, started from these contents."""
        self._fill(values)
        call()
        return self.outputs()

    def others(self, number: int) -> list[list[DeviceArray]]:
        """`number` further sets of arguments.  They are cached: creating hundreds takes longer than timing a candidate."""
        self._others += [self._copies() for _ in range(number - len(self._others))]
        return self._others[:number]

    def _copies(self) -> list[DeviceArray]:
        """A new set of arguments in separate memory."""
        arrays = [DeviceArray(self.device, p.shape, p.dtype) for p in self.setup.params]
        for array, values in zip(arrays, self.inputs, strict=True):
            if values is not None:
                array.fill(values)
        return arrays

    def timed(self, request: RunRequest) -> _TimedCalls:
        """The candidate bound to the arguments; to several sets in rotation if its data must be cold."""
        module = self._module(request.code.data)
        function = module[request.code.function]
        calls = [function.bind(*self.arrays)]
        cold = max(request.policy.flush_bytes, request.policy.constant_bytes)
        if cold:
            scratch = sum(sum(f.workspaces) for f in module.program.functions if f.name == request.code.function)
            size = sum(p.nbytes for p in self.setup.params) + scratch  # each call also has its own workspace
            calls += [function.bind(*arrays) for arrays in self.others(min(cold // max(size, 1), _MOST_COPIES))]
        calls[0]()  # loads the code; drivers may also compile at the first launch of a kernel
        self.device.api.synchronise(self.device.index)
        return _TimedCalls(self.device, calls, self.blocking_kernel)

    def wrong(self, call: Callable[[], object]) -> str | None:
        """Error in the results of a call; None if they are correct, or if there is no reference."""
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
        """Contents of the written arguments; bfloat16 as float32."""
        pairs = zip(self.arrays, self.setup.params, strict=True)
        return [from_bfloat16(a.numpy()) if p.dtype == "bfloat16" else a.numpy() for a, p in pairs if p.written]

    def _fill(self, values: Sequence[Array]) -> None:
        written = [(a, p) for a, p in zip(self.arrays, self.setup.params, strict=True) if p.written]
        for (array, p), x in zip(written, values, strict=True):
            array.fill(_storage(p.dtype, x))

    def _module(self, data: bytes) -> DeviceModule:
        return DeviceModule(DeviceProgram.from_bytes(data), self.device.index)


class _TimedCalls:
    """Calls of one candidate, timed by device events."""

    def __init__(self, device: Device, calls: Sequence[BoundCall], blocking_kernel: BlockingKernel | None = None) -> None:
        self._api, self._index, self._calls, self._blocking_kernel = device.api, device.index, list(calls), blocking_kernel
        self._events = [self._api.create_event(self._index) for _ in range(2)]
        self.call = calls[0]
        self._next = 0
        self._started = 0.0
        """Host seconds to launch a call, if the device waits for launches; else 0."""

    def clock(self, call: Callable[[], object], number: int) -> float:
        """Seconds of `number` consecutive calls, with the argument sets in rotation."""
        if self._blocking_kernel is None:
            return self._enqueue(number)[0]
        if not self._started:
            seconds, started = self._enqueue(number)
            if started < _HOST_BOUND * seconds:
                return seconds
            self._started = started / number
        seconds = 0.0
        while number > 0:
            batch = min(number, AT_ONCE)
            self._blocking_kernel.start(self._started * batch)
            seconds += self._enqueue(batch)[0]
            number -= batch
        return seconds

    def _enqueue(self, number: int) -> tuple[float, float]:
        """Device seconds of `number` calls, and host seconds to launch them."""
        start, stop = self._events
        begun = time.perf_counter()
        self._api.record_event(self._index, start)
        for i in range(self._next, self._next + number):
            self._calls[i % len(self._calls)]()
        self._api.record_event(self._index, stop)
        started = time.perf_counter() - begun
        self._next += number
        return self._api.elapsed(self._index, start, stop), started

    def close(self) -> None:
        """Release the events and the calls' workspaces."""
        for event in self._events:
            with suppress(DeviceLost):  # a lost device has no events to free
                self._api.free_event(self._index, event)
        self._events, self._calls = [], []


def _raced(request: RunRequest, workload: _DeviceWorkload) -> RunResult:
    timed = workload.timed(request)
    try:
        if request.verify == "always" and (wrong := workload.wrong(timed.call)) is not None:
            return _failed("wrong_result", wrong)
        ran = race(timed.call, request.policy, request.best, None, timed.clock)
        facts = {"calls": float(ran.number)} | ({"waited": ran.waited} if ran.waited == ran.waited else {})
        verified = request.verify == "always" and workload.reference is not None
        wrong = None
        better = request.best is None or statistics.median(ran.seconds) < request.best
        if request.verify == "winner" and workload.reference is not None and better:
            wrong = workload.wrong(timed.call)
            verified = wrong is None
        error = None if wrong is None else ErrorInfo("wrong_result", wrong)
        return RunResult(ran.seconds, ran.clean, error, verified, 0.0, facts, workload.host)
    finally:
        timed.close()


def _calls_in_a_sample(timed: _TimedCalls, policy: TimingPolicy) -> int:
    timed.clock(timed.call, max(policy.warmup, 1))
    taken, number = timed.clock(timed.call, 1), policy.number or 1
    while policy.number is None and taken < policy.min_repeat_ms * 1e-3 and number < 1 << 20:
        number = max(2 * number, int(number * 1.05 * policy.min_repeat_ms * 1e-3 / max(taken, 1e-7)))
        taken = timed.clock(timed.call, number)
    return number


def _storage(dtype: str, values: Array) -> Array:
    """Values in their storage format; input bfloat16 values are float32."""
    return to_bfloat16(values) if dtype == "bfloat16" else np.asarray(values, order="C")  # a scalar stays one


def _failed(kind: str, message: str) -> RunResult:
    return RunResult((), True, ErrorInfo(kind, message), False, 0.0)
