"""Time one system of a benchmark in its own process: prepare each workload, check the output, then time windows on request.

A system is tunesmith, a vendor library, or a function of the user (`user_function`).

Systems must not share a process: when OpenMP has pinned threads, threads created later inherit one core, and a spinning thread pool
takes cores from the next system.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import cast

from tunesmith.driver.bench.setting import Data, Setting
from tunesmith.measure.baselines.baseline import Baseline
from tunesmith.measure.baselines.model_call import arrays
from tunesmith.measure.baselines.registry import create_baseline
from tunesmith.measure.evaluator.argument_data import ArgumentTable
from tunesmith.measure.evaluator.correctness import CAP, mismatch, relative_error
from tunesmith.measure.evaluator.guard_pages import Array
from tunesmith.measure.evaluator.packed_call import load_call
from tunesmith.measure.race import waiting
from tunesmith.ops.workload import workload
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.device import Device
from tunesmith.runtime.device.module import DeviceModule
from tunesmith.runtime.device.program import DeviceProgram
from tunesmith.runtime.model import LoadedModel
from tunesmith.runtime.module import load_module
from tunesmith.runtime.timing import CpuClock

_SAMPLE_S = 0.002
_WAKE_S = 0.02
"""Untimed warm-up of a turn: an unpinned thread pool takes up to 7 ms to wake up."""
_SPREAD_S = 0.5
"""Maximum warm-up, while threads wait for a core: on a busy machine unpinned threads may wake up on the same core and alternate there
in slices of 7 ms until the system moves them apart."""
_LEAST = 3
"""Minimum samples of a window, however long one takes."""
_WAITED = 0.05
"""A sample is dropped if its threads waited for an occupied core for more than this fraction of it, summed over threads."""
_IMPRECISE = (
    ". Rounding errors of this workload may have {bound:.2g} times the size of its outputs, and more than {cap} is refused, since zeros "
    "would be accepted: accumulate sums in float32"
)

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Result of preparing a workload.

    Attributes:
        offered: the system has the operator.
        variant: the selected implementation.
        wrong: how its output is wrong; empty if correct.
        precision: its compute precision, see `measure.precision`.
        error: the largest difference from the reference, relative to the largest element of the reference.
    """

    offered: bool
    variant: str = ""
    wrong: str = ""
    precision: str = ""
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """A call that a system has prepared.

    Attributes:
        variant: the selected implementation.
        call: the call to time.
        outputs: the outputs of one call.
        precision: the compute precision; empty for the dtype of the inputs.
    """

    variant: str
    call: Call
    outputs: Sequence[Array]
    precision: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """Samples of one turn.

    Attributes:
        seconds: seconds of one call, one entry per sample; samples that lost a core to another process are dropped.
        number: calls per sample.
        foreign: fraction of a core used by all other processes.
        starved: every sample lost a core; `seconds` holds the least disturbed ones.
    """

    seconds: tuple[float, ...]
    number: int
    foreign: float
    starved: bool = False


class System(ABC):
    """A timed system; its jobs are `(name of a method, arguments)`."""

    def __init__(self) -> None:
        self._call: Call | None = None
        self._finish: Call | None = None
        """Waits for asynchronous calls to complete; None for synchronous calls."""

    def __call__(self, job: tuple[str, tuple[object, ...]]) -> object:
        method, arguments = job
        return getattr(self, method)(*arguments)

    def available(self) -> str:
        """Why the system is unavailable; empty if available."""
        return ""

    def prepare(self, setting: Setting) -> Prepared:
        """Prepare a workload and compare the output with the reference; replaces the previous workload.

        The tolerance is that of the precision in which the system computes, at most `CAP` (`measure.evaluator.correctness`).
        """
        self._call = self._finish = None
        data = Data.load(setting)
        made = self.ready(setting, data)
        if made is None:
            return Prepared(False)
        precision = made.precision or setting.precision
        wrong = wrong_outputs(made.outputs, data.reference, setting.tolerance(precision))
        if wrong:
            return Prepared(True, made.variant, wrong, precision)
        self._call = made.call
        error = max([relative_error(a, e) for a, e in zip(made.outputs, data.reference, strict=True)])
        return Prepared(True, made.variant, "", precision, error)

    def window(self, length: float) -> Window:
        """Time calls for `length` seconds."""
        call, finish = self._call, self._finish
        assert call is not None
        _wake(call, finish)
        number = _calls_in_a_sample(call, finish)
        before = CpuClock.now()
        start = time.perf_counter()
        samples: list[tuple[float, float]] = []
        while len(samples) < _LEAST or time.perf_counter() - start < length:
            waited = waiting() or 0  # None if the OS does not report it: drop no sample
            seconds = _sample(call, number, finish)
            samples.append((((waiting() or 0) - waited) * 1e-9 / (seconds * number), seconds))
        foreign = before.foreign(CpuClock.now())
        kept = [seconds for waited, seconds in samples if waited <= _WAITED]
        return Window(tuple(kept or [seconds for _, seconds in sorted(samples)[:_LEAST]]), number, foreign, not kept)

    def changed(self) -> str:
        """How the calls since `prepare` differ from the one that was checked, for code that may change; empty if they do not."""
        return ""

    @abstractmethod
    def ready(self, setting: Setting, data: Data) -> Ready | None:
        """The call to time, and the outputs of one call; None if the system lacks the workload."""


class CompiledSystem(System):
    """Compiled code, called on arguments laid out as during a search; or a compiled model, whose library is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self._table: ArgumentTable | None = None

    def ready(self, setting: Setting, data: Data) -> Ready | None:
        """See `System.ready`."""
        if setting.exported:
            return self._model(setting, data)
        self._table = ArgumentTable(setting.params, data.inputs)
        assert setting.code is not None
        call = load_call(setting.code, self._table.arguments())
        self._table.fill(data.before)
        call()
        return Ready(setting.note, call, self._table.outputs())

    def _model(self, setting: Setting, data: Data) -> Ready:
        """The call of a model with bound inputs."""
        model = cast(LoadedModel, load_module(setting.exported))
        for i, x in enumerate(data.inputs):
            model.set_input(i, x)
        return Ready(setting.note, model.run, arrays(model(*data.inputs)))


class CompiledDeviceSystem(CompiledSystem):
    """Compiled code for a device, called on arrays in device memory."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._device = Device(kind)

    def ready(self, setting: Setting, data: Data) -> Ready | None:
        """See `System.ready`."""
        self._finish = partial(self._device.api.synchronise, self._device.index)
        if setting.exported:
            return self._model(setting, data)
        assert setting.code is not None
        module = DeviceModule(DeviceProgram.from_bytes(setting.code.data))
        inputs, before = iter(data.inputs), iter(data.before)
        given = [DeviceArray.from_numpy(module.device, next(before if p.written else inputs), p.dtype) for p in setting.params]
        call = module[setting.code.function].bind(*given)
        call()
        return Ready(setting.note, call, [a.numpy() for a, p in zip(given, setting.params, strict=True) if p.written])

    def _model(self, setting: Setting, data: Data) -> Ready:
        """The call of a model with bound inputs, which are in device memory."""
        model = cast(LoadedModel, load_module(setting.exported))
        found = Ready(setting.note, model.run, arrays(model(*data.inputs)))
        for i, x in enumerate(data.inputs):
            model.set_input(i, DeviceArray.from_numpy(self._device, x))
        return found


class BaselineSystem(System):
    """A vendor library."""

    def __init__(self, baseline: Baseline) -> None:
        super().__init__()
        self._baseline = baseline

    def available(self) -> str:
        """See `System.available`."""
        return self._baseline.available() or ""

    def ready(self, setting: Setting, data: Data) -> Ready | None:
        """See `System.ready`."""
        if setting.onnx:
            model = self._baseline.prepare_onnx(setting.onnx, data.inputs)
            return None if model is None else Ready("ONNX", model.run, model.outputs(), model.precision)
        if not setting.operator:
            return None
        made = self._baseline.prepare(workload(setting.operator), data.inputs)
        self._finish = None if made is None else made.finish
        return None if made is None else Ready(made.variant, made.run, [made()], made.precision)


def ours(device: str = "") -> System:
    """The system that runs compiled code, on this processor or a device of this kind."""
    return CompiledDeviceSystem(device) if device else CompiledSystem()


def baseline(name: str, threads: int) -> System:
    """The system that runs a baseline."""
    return BaselineSystem(create_baseline(name, threads))


def wrong_outputs(outputs: Sequence[Array], reference: Sequence[Array], bound: float) -> str:
    """How the outputs are wrong, if rounding errors have this relative bound; empty if they are right."""
    for actual, expected in zip(outputs, reference, strict=True):
        wrong = mismatch(actual, expected, min(bound, CAP))
        if wrong is not None:
            capped = bound > CAP and mismatch(actual, expected, bound) is None
            return wrong + (_IMPRECISE.format(bound=bound, cap=CAP) if capped else "")
    return ""


def _wake(call: Call, finish: Call | None) -> None:
    """Run until the threads of this process are awake and each has a core, or `_SPREAD_S` has passed."""
    begun = time.perf_counter()
    while True:
        waited = waiting() or 0
        start = time.perf_counter()
        while time.perf_counter() - start < _WAKE_S:
            call()
            if finish is not None:
                finish()
        now = time.perf_counter()
        if now - begun > _SPREAD_S or ((waiting() or 0) - waited) * 1e-9 <= _WAITED * (now - start):
            return


def _calls_in_a_sample(call: Call, finish: Call | None) -> int:
    """Number of calls per sample of 2 ms."""
    number = 1
    while True:
        taken = min(_sample(call, number, finish), _sample(call, number, finish)) * number
        if taken >= _SAMPLE_S:
            return number
        number = max(number + 1, int(number * min(100.0, 1.1 * _SAMPLE_S / max(taken, 1e-8))))


def _sample(call: Call, number: int, finish: Call | None) -> float:
    """Mean seconds of one call over `number` calls."""
    start = time.perf_counter()
    for _ in repeat(None, number):
        call()
    if finish is not None:
        finish()
    return (time.perf_counter() - start) / number
