"""Time tuned programs and torch in one process, interleaved, on the same tensors and the same stream.

Runs in a separate process (`support.worker_pool`), which may hang, crash or lose the device without ending the check.  A job is
`(method, arguments)`; results are plain data.  Without CUDA the same procedure runs on the processor with the host's clock, as a test.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tunesmith.experiments.gpu_check.gpu_state import gpu_state, quick_clock
from tunesmith.measure.calibration.gpu_probe import THREADS, compiled
from tunesmith.measure.device_lease import device_lease
from tunesmith.ops.workload import Workload, workload
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.device import DEVICES, Device
from tunesmith.runtime.device.module import DeviceModule
from tunesmith.runtime.device.program import DeviceFunction, DeviceProgram, Launch

SAMPLE_S = 0.003
"""Minimum duration of a sample."""
GRAPH_S = 100e-6
"""Shorter calls are captured into CUDA graphs: a launch from Python takes 5 to 25 us and would be part of the time."""
MOST_CALLS = 1000
"""Maximum number of calls in a graph."""
FELL = 0.97
"""A sample is repeated if the clock after it is below this fraction of the clock before it."""
RETAKEN = 6
"""Maximum number of repeated samples per system."""
SPIN_CYCLES = 200_000
"""A tenth of a millisecond in which the device waits while the host enqueues the beginning of a sample."""

_LOST = ("DeviceLost", "CUDA error", "CUDA_ERROR", "AcceleratorError")

Call = Callable[[], Any]


class Baselines:
    """The worker of the process.

    Args:
        kind: kind of the tuned programs' device, `cuda` or `opencl`.
    """

    def __init__(self, kind: str) -> None:
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # one kernel per function: a pool of compilers takes longer to start
        self._on_gpu = kind == "cuda"
        if self._on_gpu and not torch.cuda.is_available():
            raise RuntimeError(f"torch {torch.__version__} sees no CUDA device")
        self._kind = kind
        self._clock: Any = _CudaClock() if self._on_gpu else _HostClock()
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True

    def __call__(self, job: tuple[str, tuple[Any, ...]]) -> object:
        method, arguments = job
        return getattr(self, method)(*arguments)

    def facts(self) -> dict[str, object]:
        """Versions of torch and CUDA."""
        found: dict[str, object] = {"torch": torch.__version__, "cuda": torch.version.cuda}
        if self._on_gpu:
            found |= {"cudnn": torch.backends.cudnn.version(), "device": torch.cuda.get_device_name(0)}
        return found

    def try_compiler(self) -> float:
        """Seconds of torch.compile for its first function; later ones are much faster."""
        begun = time.perf_counter()
        x = torch.ones(1000, device="cuda" if self._on_gpu else "cpu")
        with torch.no_grad():
            assert float(torch.compile(lambda x: torch.relu(x) + 1, dynamic=False)(x).sum()) == 2000
        return time.perf_counter() - begun

    def graph_launch_us(self, arch: str) -> float:
        """Microseconds from one empty kernel to the next in a CUDA graph."""
        code = compiled("cuda", arch)
        launch = Launch("nothing", (0,), (1, 1, 1), (THREADS, 1, 1))
        program = DeviceProgram(
            "cuda", arch, code, (DeviceFunction("nothing", (ParamSpec("x", "int32", (32,), written=True),), (), (launch,)),)
        )
        x = torch.zeros(32, dtype=torch.int32, device="cuda")
        with self._clock.stream():
            call = DeviceModule(program)["nothing"].bind(x)
            call()
            torch.cuda.synchronize()
            work = self._clock.captured([call], 500)
            return min(self._clock.seconds(work) for _ in range(10)) / 500 * 1e6

    def compare(self, text: str, program: bytes | None, cold_bytes: int, rounds: int, limit_s: float, compiler: bool) -> dict[str, object]:
        """Time all systems on one workload.

        Args:
            text: the workload.
            program: the tuned program; None times only the baselines.
            cold_bytes: calls use sets of tensors in rotation with this total size, so that no call finds its data in a cache; 0 for one
                set.
            rounds: samples per system.
            limit_s: after this time no system is prepared, and after three rounds no round starts.
            compiler: include torch.compile.
        Returns:
            `times`: seconds of each sample by system; `differences` from ours, relative to the root mean square; `left_out`: reasons of
            skipped systems; `calls`: calls per sample, and whether they were captured; `not_captured`: why a short call was not captured;
            `before`, `after`: state of the GPU; `retaken`: repeated samples; `tainted`: this process can no longer use the device.
        """
        begun = time.perf_counter()
        w = workload(text)
        left_out: dict[str, str] = {}
        runners: dict[str, _Runner] = {}
        differences: dict[str, float] = {}
        before = gpu_state()
        with torch.no_grad(), self._clock.stream():
            sets = _Sets(w, cold_bytes, "cuda" if self._on_gpu else "cpu")
            reference: np.ndarray | None = None
            for name, make in self._systems(w, program, compiler):
                if time.perf_counter() - begun > limit_s:
                    left_out[name] = "no time left to prepare it"
                    continue
                try:
                    calls, output = make(sets)
                    calls[0]()
                    self._clock.wait()
                    found = output()
                    reference = found if reference is None else reference
                    differences[name] = _difference(found, reference, w)
                    runners[name] = self._runner(calls)
                except Exception as error:
                    left_out[name] = f"{type(error).__name__}: {error}"[:1500]
            with device_lease(Device(self._kind)):
                retaken = self._rounds(runners, rounds, begun + limit_s)
        return {
            "times": {name: r.times for name, r in runners.items()},
            "differences": differences,
            "left_out": left_out,
            "calls": {name: [r.number, r.captured] for name, r in runners.items()},
            "not_captured": {name: r.why_not for name, r in runners.items() if r.why_not},
            "sets": sets.number,
            "retaken": retaken,
            "tainted": any(word in why for why in left_out.values() for word in _LOST),
            "before": before.to_json(),
            "after": gpu_state().to_json(),
        }

    def _systems(
        self, w: Workload, program: bytes | None, compiler: bool
    ) -> list[tuple[str, Callable[[_Sets], tuple[list[Call], Callable[[], np.ndarray]]]]]:
        """Names of the systems, with functions that create a call for each set and the output of the first call."""
        found: list[tuple[str, Any]] = []
        if program is not None:
            found.append(("ours", lambda sets: self._ours(w, DeviceProgram.from_bytes(program), sets)))
        formula = _formula(w)
        vendor = {"matmul": "cuBLAS", "conv2d": "cuDNN"}.get(w.name, "eager") if self._on_gpu else "eager"
        found.append((vendor, lambda sets: _torch_calls(formula, sets, w)))
        if compiler and w.name not in ("matmul", "conv2d"):

            def compiled_calls(sets: _Sets) -> tuple[list[Call], Callable[[], np.ndarray]]:
                torch._dynamo.reset()
                function = torch.compile(formula, dynamic=False)
                for _ in range(2):
                    function(*sets.inputs[0])
                return _torch_calls(function, sets, w)

            found.append(("torch.compile", compiled_calls))
        return found

    def _ours(self, w: Workload, program: DeviceProgram, sets: _Sets) -> tuple[list[Call], Callable[[], np.ndarray]]:
        function = DeviceModule(program)[program.functions[0].name]
        if self._on_gpu:
            outputs = [_empty(w, "cuda") for _ in range(sets.number)]
            bound = [function.bind(*x, y) for x, y in zip(sets.given, outputs, strict=True)]
            return list(bound), lambda: outputs[0].cpu().numpy()
        device = Device(self._kind)
        arrays = [DeviceArray(device, w.outputs[0].shape, w.outputs[0].dtype) for _ in range(sets.number)]
        bound = [function.bind(*[DeviceArray.from_numpy(device, t) for t in x], y) for x, y in zip(sets.given, arrays, strict=True)]
        return list(bound), arrays[0].numpy

    def _runner(self, calls: Sequence[Call]) -> _Runner:
        """Warm up for 50 ms, and choose the number of calls per sample."""
        clock = self._clock
        number, taken = 3, 0.0
        until = time.perf_counter() + 0.05
        while taken < SAMPLE_S or time.perf_counter() < until:
            taken = clock.seconds(_sequence(calls, number, 0))
            if taken < SAMPLE_S:
                number = max(number + 1, math.ceil(number * min(20.0, 1.1 * SAMPLE_S / max(taken, 1e-6))))
        if not clock.captures or taken / number >= GRAPH_S:
            return _Runner(calls, number, None)
        try:
            return self._captured(calls, min(MOST_CALLS, number))
        except Exception as error:
            return _Runner(calls, number, None, why_not=f"{type(error).__name__}: {error}"[:500])

    def _captured(self, calls: Sequence[Call], number: int) -> _Runner:
        """Capture the calls into a graph; without the host's overhead, more calls fit in a sample."""
        clock = self._clock
        graph = clock.captured(calls, number)
        each = min(clock.seconds(graph) for _ in range(2)) / number
        number = min(MOST_CALLS, max(3, math.ceil(1.1 * SAMPLE_S / max(each, 1e-7))))
        graph = clock.captured(calls, number)
        clock.seconds(graph)
        return _Runner(calls, number, graph)

    def _rounds(self, runners: dict[str, _Runner], rounds: int, until: float) -> int:
        """Take samples in turn; the first system rotates."""
        retaken = dict.fromkeys(runners, 0)
        names = list(runners)
        for i in range(rounds):
            if i >= 3 and time.perf_counter() > until:
                break
            for name in [*names[i % len(names) :], *names[: i % len(names)]]:
                while True:
                    high = quick_clock() if self._on_gpu else None
                    seconds = self._clock.seconds(runners[name].work())
                    low = quick_clock() if self._on_gpu else None
                    fell = high is not None and low is not None and low < FELL * high
                    if not fell or retaken[name] >= RETAKEN:
                        break
                    retaken[name] += 1
                runners[name].times.append(seconds / runners[name].number)
        return sum(retaken.values())


@dataclass
class _Runner:
    """A prepared system."""

    calls: Sequence[Call]
    number: int
    graph: Call | None
    why_not: str = ""
    times: list[float] = field(default_factory=list)
    begun: int = 0

    @property
    def captured(self) -> bool:
        return self.graph is not None

    def work(self) -> Call:
        """The calls of one sample."""
        if self.graph is not None:
            return self.graph
        self.begun += self.number
        return _sequence(self.calls, self.number, self.begun - self.number)


class _Sets:
    """Copies of the inputs; for torch's convolutions, other views of the images and copies of the filters.

    Attributes:
        number: number of sets.
        given: inputs in the form of the workload.
        inputs: inputs in the form of torch's function.
    """

    def __init__(self, w: Workload, cold_bytes: int, device: str) -> None:
        self.number = 1 + -(-cold_bytes // max(1, w.nbytes)) if cold_bytes else 1
        self.number = min(self.number, 64)
        generator = torch.Generator(device).manual_seed(1)
        first = [torch.empty(t.shape, dtype=getattr(torch, t.dtype), device=device).uniform_(-1, 1, generator=generator) for t in w.inputs]
        self.given = [first, *[[t.clone() for t in first] for _ in range(self.number - 1)]]
        self.inputs = [_to_torch(w, x) for x in self.given]


class _CudaClock:
    """Timing with events on a separate stream, after a short spin that lets the host enqueue ahead."""

    captures = True

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def stream(self) -> Any:
        return torch.cuda.stream(self._stream)

    def wait(self) -> None:
        torch.cuda.synchronize()

    def seconds(self, work: Call) -> float:
        if hasattr(torch.cuda, "_sleep"):
            torch.cuda._sleep(SPIN_CYCLES)
        self._marks[0].record(self._stream)
        work()
        self._marks[1].record(self._stream)
        self._marks[1].synchronize()
        return float(self._marks[0].elapsed_time(self._marks[1])) * 1e-3

    def captured(self, calls: Sequence[Call], number: int) -> Call:
        """Capture `number` calls in turn as one graph."""
        graph = torch.cuda.CUDAGraph()
        # Unloading code synchronises with the device, which breaks a capture: disable garbage collection meanwhile.
        gc.collect()
        torch.cuda.synchronize()
        gc.disable()
        try:
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="relaxed"):
                _sequence(calls, number, 0)()
        finally:
            gc.enable()
        graph.replay()
        torch.cuda.synchronize()
        return graph.replay


class _HostClock:
    """Timing with the host's clock, to test the procedure without CUDA."""

    captures = False

    def stream(self) -> Any:
        return nullcontext()

    def wait(self) -> None:
        DEVICES.get("opencl").synchronise(0)

    def seconds(self, work: Call) -> float:
        begun = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - begun


def _sequence(calls: Sequence[Call], number: int, begin: int) -> Call:
    def work() -> None:
        for i in range(begin, begin + number):
            calls[i % len(calls)]()

    return work


def _torch_calls(function: Callable[..., Any], sets: _Sets, w: Workload) -> tuple[list[Call], Callable[[], np.ndarray]]:
    """A call for each set of inputs.  As many results are kept alive as there are sets, so that outputs rotate as well."""
    results: deque[Any] = deque(maxlen=sets.number)

    def call(inputs: Sequence[Any]) -> Call:
        return lambda: results.append(function(*inputs))

    return [call(x) for x in sets.inputs], lambda: _from_torch(w, results[0]).cpu().numpy()


def _to_torch(w: Workload, given: Sequence[Any]) -> list[Any]:
    """Inputs of a convolution as torch views: images in place with channels_last strides, filters as channels_last copies."""
    if w.name != "conv2d":
        return list(given)
    x, f, *rest = given
    if w.params["layout"] == "NHWC":
        x = x.permute(0, 3, 1, 2)
        f = f.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    return [x, f, *rest]


def _from_torch(w: Workload, y: Any) -> Any:
    return y.permute(0, 2, 3, 1).contiguous() if w.name == "conv2d" and w.params["layout"] == "NHWC" else y


def _formula(w: Workload) -> Callable[..., Any]:
    """The operator in idiomatic torch.  Raises ValueError for unsupported operators."""
    p: Any = w.params
    # Extract values first: torch.compile inspects everything that a function refers to.
    if w.name in ("matmul", "batch_matmul") and not (p["ta"] or p["tb"]):
        return torch.matmul
    if w.name == "conv2d" and not (p["bias"] or p["relu"] or p["residual"] or p["groups"] > 1):
        stride, pad, dilation = p["stride"], p["pad"], p["dilation"]
        return lambda x, f: F.conv2d(x, f, None, stride, pad, dilation)
    if w.name == "softmax":
        return lambda x: torch.softmax(x, -1)
    if w.name == "layer_norm":
        shape, eps = (int(p["n"]),), float(p["eps"])
        return lambda x, gamma, beta: F.layer_norm(x, shape, gamma, beta, eps)
    if w.name == "sum":
        axes = tuple([int(a) for a in p["axis"]]) or tuple(range(len(p["shape"])))
        return lambda x: torch.sum(x, axes)
    if w.name == "relu":
        return lambda x: torch.relu(x)
    if w.name == "add":
        return lambda x, y: x + y
    raise ValueError(f"there is no baseline for {w.text}")


def _empty(w: Workload, device: str) -> Any:
    (spec,) = w.outputs
    return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device=device)


def _difference(found: np.ndarray, reference: np.ndarray, w: Workload) -> float:
    """The largest difference relative to the root mean square of the reference; for a sum to that of its terms, which may cancel."""
    wrong = float(np.abs(found.astype(np.float64) - reference.astype(np.float64)).max())
    scale = math.sqrt(float(np.mean(np.square(reference, dtype=np.float64))))
    if w.name == "sum":
        scale = max(scale, math.sqrt(w.flops / max(1, reference.size) / 3))
    return wrong / scale if scale else wrong
