"""One contestant of a benchmark, alone in its process: prepared once for each workload, checked, then timed a window at a time.

Contestants must not share a process: threads that OpenMP has pinned make every thread that is created later inherit one
core, and a pool that spins takes cores from whoever runs next.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

from tunesmith.codegen.artifact import Code
from tunesmith.driver.bench.baseline_calls import baseline_call
from tunesmith.measure.baselines.baseline import Baseline
from tunesmith.measure.baselines.registry import create_baseline
from tunesmith.measure.evaluator.argument_data import ArgumentTable, poison
from tunesmith.measure.evaluator.correctness import load_reference, mismatch
from tunesmith.measure.evaluator.guard_pages import Array
from tunesmith.measure.evaluator.packed_call import load_call
from tunesmith.measure.timing_policy import waiting
from tunesmith.ops.workload import Workload, workload
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.module import DeviceModule
from tunesmith.runtime.device.program import DeviceProgram
from tunesmith.runtime.timing import CpuClock

_SAMPLE_S = 0.002
_WAKE_S = 0.02
"""Untimed at the beginning of a turn: a pool of threads that is not pinned takes up to 7 ms to wake up."""
_SPREAD_S = 0.5
"""Until then the beginning is prolonged while threads wait for a core: on a busy machine those that are not pinned may have
woken up on the same one, and take turns of 7 ms there until the system moves them apart."""
_LEAST = 3
"""Samples of a window, however long one takes."""
_WAITED = 0.05
"""A sample is dropped when its threads spent more of it than this, all together, waiting for a core that somebody else had."""

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Setting:
    """A workload for all contestants.

    Attributes:
        text: the operator's workload.
        seed: of the inputs, which every process makes for itself, all the same.
        reference: a file with the outputs that numpy computes.
        tolerance: relative, see `measure.evaluator.correctness`.
        code: for ours, the compiled function.
    """

    text: str
    seed: int
    reference: str
    tolerance: float
    code: Code | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """What became of preparing.

    Attributes:
        offered: the contestant has such an operator.
        variant: which of its ways to compute it competes.
        wrong: what is wrong with its output, empty if nothing is.
    """

    offered: bool
    variant: str = ""
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """Samples of one turn.

    Attributes:
        seconds: of one call, one entry a sample; samples during which somebody took a core away are left out.
        number: calls in a sample.
        foreign: part of a core that all other processes used meanwhile.
        starved: there was no other kind of sample; those during which the least was taken away stand for all.
    """

    seconds: tuple[float, ...]
    number: int
    foreign: float
    starved: bool = False


class Contestant(ABC):
    """Answers jobs: `(name of a method, arguments)`."""

    def __init__(self) -> None:
        self._call: Call | None = None
        self._finish: Call | None = None
        """Waits for what calls have begun; None where they are complete when they return."""

    def __call__(self, job: tuple[str, tuple[Any, ...]]) -> object:
        method, arguments = job
        return getattr(self, method)(*arguments)

    def available(self) -> str:
        """Why it cannot be used; empty if it can."""
        return ""

    def prepare(self, setting: Setting) -> Prepared:
        """Get ready for a workload and compare the output with the reference; what was prepared before is forgotten."""
        self._call = self._finish = None
        w = workload(setting.text)
        inputs = w.random_inputs(setting.seed)
        reference = load_reference(setting.reference)
        made = self.ready(w, inputs, reference, setting)
        if made is None:
            return Prepared(False)
        variant, call, outputs = made
        for actual, expected in zip(outputs, reference, strict=True):
            wrong = mismatch(actual, expected, setting.tolerance)
            if wrong is not None:
                return Prepared(True, variant, wrong)
        self._call = call
        return Prepared(True, variant)

    def window(self, length: float) -> Window:
        """Time for so many seconds."""
        call, finish = self._call, self._finish
        assert call is not None
        _wake(call, finish)
        number = _calls_in_a_sample(call, finish)
        before = CpuClock.now()
        start = time.perf_counter()
        samples: list[tuple[float, float]] = []
        while len(samples) < _LEAST or time.perf_counter() - start < length:
            waited = waiting() or 0  # where the system does not tell, no sample is dropped
            seconds = _sample(call, number, finish)
            samples.append((((waiting() or 0) - waited) * 1e-9 / (seconds * number), seconds))
        foreign = before.foreign(CpuClock.now())
        kept = [seconds for waited, seconds in samples if waited <= _WAITED]
        return Window(tuple(kept or [seconds for _, seconds in sorted(samples)[:_LEAST]]), number, foreign, not kept)

    @abstractmethod
    def ready(
        self, w: Workload, inputs: Sequence[Array], reference: Sequence[Array], setting: Setting
    ) -> tuple[str, Call, Sequence[Array]] | None:
        """Which way it computes the workload, the call to time, and the outputs of one call; None if it has no such operator."""


class Ours(Contestant):
    """Compiled code, called on arguments that are laid out as they are while a search measures."""

    def __init__(self) -> None:
        super().__init__()
        self._table: ArgumentTable | None = None

    def ready(
        self, w: Workload, inputs: Sequence[Array], reference: Sequence[Array], setting: Setting
    ) -> tuple[str, Call, Sequence[Array]] | None:
        """See `Contestant.ready`."""
        params = [ParamSpec(s.name, s.dtype, s.shape, False) for s in w.inputs] + [
            ParamSpec(s.name, s.dtype, s.shape, True) for s in w.outputs
        ]
        self._table = ArgumentTable(params, inputs)
        assert setting.code is not None
        call = load_call(setting.code, self._table.arguments())
        self._table.fill(poison(params, reference))
        call()
        return "replayed record", call, self._table.outputs()


class OursOnDevice(Contestant):
    """Compiled code for a device, called on arrays in its memory."""

    def ready(
        self, w: Workload, inputs: Sequence[Array], reference: Sequence[Array], setting: Setting
    ) -> tuple[str, Call, Sequence[Array]] | None:
        """See `Contestant.ready`."""
        assert setting.code is not None
        module = DeviceModule(DeviceProgram.from_bytes(setting.code.data))
        device = module.device
        given = [DeviceArray.from_numpy(device, a, s.dtype) for s, a in zip(w.inputs, inputs, strict=True)]
        outputs = [DeviceArray(device, s.shape, s.dtype) for s in w.outputs]
        call = module[setting.code.function].bind(*given, *outputs)
        call()
        self._finish = partial(device.api.synchronise, device.index)
        return "replayed record", call, [o.numpy() for o in outputs]


class OneBaseline(Contestant):
    """A vendor's library."""

    def __init__(self, peer: Baseline) -> None:
        super().__init__()
        self._peer = peer

    def available(self) -> str:
        """See `Contestant.available`."""
        return self._peer.available() or ""

    def ready(
        self, w: Workload, inputs: Sequence[Array], reference: Sequence[Array], setting: Setting
    ) -> tuple[str, Call, Sequence[Array]] | None:
        """See `Contestant.ready`."""
        request = baseline_call(w, inputs)
        made = None if request is None else self._peer.prepare(request.op, request.params, request.inputs)
        self._finish = None if made is None else made.finish
        return None if made is None else (made.variant, made.run, [made()])


def ours(on_device: bool = False) -> Contestant:
    """The job of the process that runs compiled code."""
    return OursOnDevice() if on_device else Ours()


def peer(name: str, threads: int) -> Contestant:
    """The job of a peer's process."""
    return OneBaseline(create_baseline(name, threads))


def _wake(call: Call, finish: Call | None) -> None:
    """Run until the threads of this process are awake, and have found their cores or had time enough to."""
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
    """So many that a sample takes 2 ms."""
    number = 1
    while True:
        taken = min(_sample(call, number, finish), _sample(call, number, finish)) * number
        if taken >= _SAMPLE_S:
            return number
        number = max(number + 1, int(number * min(100.0, 1.1 * _SAMPLE_S / max(taken, 1e-8))))


def _sample(call: Call, number: int, finish: Call | None) -> float:
    """Seconds of one call, mean over `number` of them."""
    start = time.perf_counter()
    for _ in repeat(None, number):
        call()
    if finish is not None:
        finish()
    return (time.perf_counter() - start) / number
