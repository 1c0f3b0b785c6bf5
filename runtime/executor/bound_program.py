"""Bind the calls of a program to memory in advance, so that running it is a loop over prepared calls.

Each tensor is assigned its storage before the program runs: the arena, a constant, or an array of the caller (input or output).
Calls that access only the first two are prepared once; calls that access a caller's array are prepared again when the array changes.

Functions of devices access memory of their device only.  An array of the caller in other memory is copied: inputs before the first call,
outputs after the last one (`device_memory`).

Compiled functions are called directly, bypassing `CompiledFunction`, with converted TVM-FFI tensors: 0.1 us per call.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tunesmith.runtime.arrays import empty, nbytes, placed, storage_dtype, tensor, typed, writable
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.device import DeviceLost
from tunesmith.runtime.device.module import BoundCall, DeviceCallable
from tunesmith.runtime.executor.device_memory import HOST, Array, DeviceMemory, copier, kind_of_memory
from tunesmith.runtime.executor.launch_graph import LaunchGraph, groups
from tunesmith.support.errors import RunError

INPUT, OUTPUT, CONSTANT, ARENA = "input", "output", "constant", "arena"
GRAPHS_FROM = 2
"""The run from which on launches are started as graphs, which take longer to make than to launch once."""
COPY = "(copy)"
"""Function name of a copy, which the executor performs itself."""


class TensorSlot(NamedTuple):
    """A tensor and its storage assignment.

    Attributes:
        storage: INPUT, OUTPUT, CONSTANT or ARENA.
        number: index of the input, output or constant; for the arena, the offset in bytes, and on a device the number of the buffer.
        dtype: element type.
        shape: extents; the number of elements is that of the input, output or constant.
        device: kind of the device whose memory holds the tensor; HOST for host memory.
    """

    storage: str
    number: int
    dtype: str
    shape: tuple[int, ...]
    device: str = HOST


class Step(NamedTuple):
    """A call: `function(*operands, *results, *sizes)`; COPY copies the elements of the operand to the result.

    Attributes:
        function: name of the function, or COPY.
        operands: numbers of the tensors read.
        results: numbers of the tensors written.
        sizes: further arguments.
    """

    function: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    sizes: tuple[int, ...] = ()


class Segment(NamedTuple):
    """A sequence of steps without branches, and its successor segments; -1 is the end.

    Attributes:
        steps: numbers of the steps.
        condition: number of a bool tensor with one element; None if the successor is always `then`.
        then: successor if the condition holds.
        otherwise: successor if it does not.
    """

    steps: tuple[int, ...]
    condition: int | None = None
    then: int = -1
    otherwise: int = -1


Functions = Mapping[str, Callable[..., object]]

_NO_DEVICES: Mapping[str, DeviceMemory] = {}


class BoundProgram:
    """The prepared calls of a program.

    Args:
        slots: the tensors.
        steps: all calls.
        segments: control flow; each step is in one segment, and the first segment is the entry.
        constants: storage of the constants.
        arena: memory of the tensors in the arena.
        functions: by name; they take storage arrays, tensors if they are compiled (functions of the host with an attribute `ffi`), or
            arrays of their device.
        devices: memory of each kind of device with tensors.
    Raises:
        RunError: a tensor does not fit its storage, or a function does not exist.
    """

    def __init__(
        self,
        slots: Sequence[TensorSlot],
        steps: Sequence[Step],
        segments: Sequence[Segment],
        constants: Sequence[np.ndarray],
        arena: np.ndarray,
        functions: Functions,
        devices: Mapping[str, DeviceMemory] = _NO_DEVICES,
    ) -> None:
        self._slots, self._segments, self._devices = slots, segments, devices
        self._steps = [_Call(s, *_function(s.function, functions)) for s in steps]
        self._arrays: list[Any] = [
            _storage(i, slot, constants, arena) if slot.device == HOST else _on_device(slot, devices[slot.device])
            for i, slot in enumerate(slots)
        ]
        self._before: list[Callable[[], None]] = []
        self._after: list[Callable[[], None]] = []
        """Copies of inputs and outputs between host and devices."""
        self._host_staging: dict[tuple[str, int], np.ndarray] = {}
        self._streams = [memory.stream for memory in devices.values()]
        self._tensors: list[Any] = [None] * len(slots)
        self._calls: list[list[Callable[[], object]]] = [[_unbound] * len(s.steps) for s in segments]
        self._ready = self._calls
        """The calls of each segment that `run` makes: those of `_calls`, from the second run on with graphs in place of launches."""
        self._runs = 0
        self._graphs: dict[int, tuple[LaunchGraph, int]] = {}
        """Step -> its graph, and its position in it."""
        self._moved: dict[int, int] = {}
        """Step that is in no graph -> its position in `_ready`."""
        self._where = {n: (k, i) for k, s in enumerate(segments) for i, n in enumerate(s.steps)}
        self._bound: dict[tuple[str, int], Array] = {}
        self.outputs: Sequence[Array] = ()
        """The arrays of the outputs that were bound."""
        self._tensors_on: dict[tuple[str, int], list[int]] = {}
        self._steps_on: dict[tuple[str, int], list[int]] = {}
        for i, slot in enumerate(slots):
            if slot.storage in (INPUT, OUTPUT):
                self._tensors_on.setdefault((slot.storage, slot.number), []).append(i)
        for n, s in enumerate(steps):
            keys = {
                (slot.storage, slot.number) for slot in [slots[t] for t in (*s.operands, *s.results)] if slot.storage in (INPUT, OUTPUT)
            }
            for key in keys:
                self._steps_on.setdefault(key, []).append(n)
            if not keys:
                self._prepare(n)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Bind the program to these arrays: storage of inputs and outputs, already checked by the caller."""
        self.outputs = outputs
        stale: dict[int, None] = {}
        streams = [memory.stream for memory in self._devices.values()]
        changed = streams != self._streams
        if changed:  # calls are prepared for one stream, and the memory of the program may be in use on the old one
            for memory, old, new in zip(self._devices.values(), self._streams, streams, strict=True):
                memory.follow(old, new)
            self._streams = streams
            stale.update(dict.fromkeys(range(len(self._steps))))
        for storage, arrays in ((INPUT, inputs), (OUTPUT, outputs)):
            for i, array in enumerate(arrays):
                key = storage, i
                if self._bound.get(key) is array:
                    continue
                self._bound[key] = array
                changed = True
                for t in self._tensors_on.get(key, ()):
                    place = self._edge(self._slots[t], array)
                    if _is_same_memory(place, self._arrays[t]):  # the copy of an array of the host
                        continue
                    self._arrays[t], self._tensors[t] = place, None
                    stale.update(dict.fromkeys(self._steps_on.get(key, ())))
        for n in stale:
            self._prepare(n)
        if self._devices and changed:
            self._before, self._after = self._copies(INPUT), self._copies(OUTPUT)

    def run(self) -> None:
        """Run all calls.

        Raises:
            RunError: a function rejected its arguments, or failed.
        """
        at = 0
        self._runs += 1
        try:
            if self._runs == GRAPHS_FROM and self._devices:
                self._make_graphs()
            for copy in self._before:
                copy()
            while at >= 0:
                for call in self._ready[at]:
                    call()
                at = self._next(at)
            for copy in self._after:
                copy()
            for memory in self._devices.values():
                memory.mark()
            if self._before or self._after:
                self._wait()
        except DeviceLost:
            raise
        except Exception as error:  # functions raise exceptions of any type
            raise RunError(f"a call of the program failed: {error}") from error

    def profile(self, repeats: int) -> list[list[float]]:
        """Run the program `repeats` times; the seconds of each run of each step.

        Calls on a device are timed by its events.  Copies of inputs and outputs to and from devices are no steps.  Errors as in `run`.
        """
        taken: list[list[float]] = [[] for _ in self._steps]
        for _ in range(repeats):
            self._run_all(self._before)
            for n, call in self._in_order():
                taken[n].append(self._seconds(n, call))
        return taken

    def trace(self) -> list[tuple[int, tuple[np.ndarray, ...]]]:
        """Run the program once; the number of each step that ran, in order, with copies of its results.  Errors as in `run`."""
        found = []
        self._run_all(self._before)
        for n, call in self._in_order():
            _checked(call)
            results = [(self._arrays[t], self._slots[t].dtype) for t in self._steps[n].step.results]
            found.append((n, tuple([typed(a.numpy() if isinstance(a, DeviceArray) else a.copy(), d) for a, d in results])))
        return found

    def _run_all(self, copies: Sequence[Callable[[], None]]) -> None:
        for copy in copies:
            _checked(copy)

    def _seconds(self, n: int, call: Callable[[], object]) -> float:
        function = self._steps[n].function
        if isinstance(function, DeviceCallable):
            return self._devices[function.signature.device.kind].seconds(partial(_checked, call))
        start = time.perf_counter_ns()
        _checked(call)
        return (time.perf_counter_ns() - start) * 1e-9

    @property
    def functions(self) -> list[str]:
        """Name of the function of each step."""
        return [s.step.function for s in self._steps]

    def _in_order(self) -> Iterator[tuple[int, Callable[[], object]]]:
        """The steps of a run in order; the caller runs each before it takes the next, which may depend on its result."""
        at = 0
        while at >= 0:
            yield from zip(self._segments[at].steps, self._calls[at], strict=True)
            at = self._next(at)

    def _next(self, at: int) -> int:
        segment = self._segments[at]
        return segment.then if segment.condition is None or self._arrays[segment.condition].item() else segment.otherwise

    def _prepare(self, n: int) -> None:
        """Prepare the call of a step with the current arrays; does nothing while an array is not bound yet."""
        step, function, compiled = self._steps[n]
        arrays = [self._arrays[t] for t in (*step.operands, *step.results)]
        if any(a is None for a in arrays):
            return
        call: Callable[[], object]
        if isinstance(function, DeviceCallable):
            call = function.bind(*arrays)
        elif step.function == COPY and any(isinstance(a, DeviceArray) for a in arrays):
            call = copier(arrays[0], arrays[1], wait=not all(isinstance(a, DeviceArray) for a in arrays))
        else:
            call = partial(function, *[self._argument(t, compiled) for t in (*step.operands, *step.results)], *step.sizes)
        segment, position = self._where[n]
        self._calls[segment][position] = call
        if n in self._graphs and isinstance(call, BoundCall):
            graph, at = self._graphs[n]
            graph.replace(at, call)
        elif self._ready is not self._calls:
            self._ready[segment][self._moved[n]] = call

    def _make_graphs(self) -> None:
        """Put graphs in place of consecutive launches."""
        ready: list[list[Callable[[], object]]] = []
        for segment, calls in zip(self._segments, self._calls, strict=True):
            ready.append([])
            for group in groups(calls):
                steps = [segment.steps[i] for i in group]
                launches = [c for c in (calls[i] for i in group) if isinstance(c, BoundCall)]
                if len(group) == 1:
                    self._moved[steps[0]] = len(ready[-1])
                    ready[-1].append(calls[group[0]])
                else:
                    graph = LaunchGraph(launches)
                    self._graphs |= {n: (graph, i) for i, n in enumerate(steps)}
                    ready[-1].append(graph)
        self._ready = ready

    def _argument(self, t: int, compiled: bool) -> object:
        if not compiled:
            return self._arrays[t]
        if self._tensors[t] is None:
            self._tensors[t] = tensor(self._arrays[t], self._slots[t].dtype)
        return self._tensors[t]

    # ---- arrays of the caller in other memory than the calls need ------------------------------------------------------------

    def _edge(self, slot: TensorSlot, array: Array) -> Array:
        """The array of an input or output: that of the caller, or memory on the device of the slot that is copied from or to it."""
        if kind_of_memory(array) == slot.device:
            return array if array.shape == slot.shape else _reshaped(array, slot.shape)
        if slot.device != HOST:
            return self._devices[slot.device].staging(slot.storage, slot.number, slot.shape, slot.dtype)
        key = slot.storage, slot.number
        size = nbytes(slot.dtype, slot.shape)
        if key not in self._host_staging or self._host_staging[key].nbytes != size:
            self._host_staging[key] = empty(size)
        return placed(self._host_staging[key], 0, slot.dtype, slot.shape)

    def _copies(self, storage: str) -> list[Callable[[], None]]:
        """The copies between the arrays of the caller and their memory on other devices."""
        found: dict[tuple[int, str], Callable[[], None]] = {}
        for (kind, number), tensors in self._tensors_on.items():
            array = self._bound.get((kind, number))
            if kind != storage or array is None:
                continue
            for t in tensors:
                device = self._slots[t].device
                if device == kind_of_memory(array) or (number, device) in found:
                    continue
                source, target = (array, self._arrays[t]) if storage == INPUT else (self._arrays[t], array)
                found[number, device] = copier(source, target, wait=device == HOST)
        return list(found.values())

    def _wait(self) -> None:
        for memory in self._devices.values():
            memory.wait()


class _Call(NamedTuple):
    """A step, its function, and whether it takes tensors instead of arrays."""

    step: Step
    function: Callable[..., object]
    compiled: bool


def _reshaped(array: Array, shape: tuple[int, ...]) -> Array:
    return array.view(shape, array.dtype) if isinstance(array, DeviceArray) else array.reshape(shape)


def checked_step(step: Step, slots: Sequence[TensorSlot], what: str) -> Step:
    """Return the step.  RunError if it writes to other storage than arena and outputs, or copies between tensors that differ in size."""
    for n in step.results:
        if slots[n].storage not in (ARENA, OUTPUT):
            raise RunError(f"{what} of the program writes to {slots[n].storage} {slots[n].number}, which may only be read")
    if step.function == COPY:
        pair = [(slots[n].dtype, nbytes(slots[n].dtype, slots[n].shape)) for n in (*step.operands, *step.results)]
        if len(step.operands) != 1 or len(step.results) != 1 or step.sizes or pair[0] != pair[1]:
            raise RunError(f"{what} of the program is a copy between tensors that differ")
    return step


def _checked(call: Callable[[], object]) -> None:
    try:
        call()
    except DeviceLost:
        raise
    except Exception as error:  # functions raise exceptions of any type
        raise RunError(f"a call of the program failed: {error}") from error


def _is_same_memory(a: object, b: object) -> bool:
    return isinstance(a, DeviceArray) and isinstance(b, DeviceArray) and a.allocation is b.allocation and a.shape == b.shape


def _unbound() -> object:
    raise RunError("an input has not been set: call set_input for each, or pass all inputs to the executor")


def _copy(source: np.ndarray, target: np.ndarray) -> None:
    np.copyto(target, source.reshape(target.shape))


def _function(name: str, functions: Functions) -> tuple[Callable[..., object], bool]:
    """The function, and whether it takes tensors instead of arrays."""
    if name == COPY:
        return _copy, False
    if name not in functions:
        raise RunError(f"the program calls {name!r}, which its library does not have. It has: {', '.join(sorted(functions)) or 'none'}")
    found = functions[name]
    ffi = None if isinstance(found, DeviceCallable) else getattr(found, "ffi", None)
    return (found, False) if ffi is None else (ffi, True)


def _on_device(slot: TensorSlot, memory: DeviceMemory) -> DeviceArray | None:
    """The array of a tensor on a device; None if it is of the caller."""
    if slot.storage == ARENA:
        return memory.buffer(slot.number, slot.shape, slot.dtype)
    return memory.constant(slot.number, slot.shape, slot.dtype) if slot.storage == CONSTANT else None


def _storage(number: int, slot: TensorSlot, constants: Sequence[np.ndarray], arena: np.ndarray) -> np.ndarray | None:
    """The storage array of a tensor; None if it is an array of the caller."""
    if slot.storage == ARENA:
        try:
            return placed(arena, slot.number, slot.dtype, slot.shape)
        except RunError as error:
            raise RunError(f"tensor {number} of the program: {error}") from error
    if slot.storage == CONSTANT:
        array = writable(constants[slot.number])
        if array.dtype != storage_dtype(slot.dtype) or array.size != math.prod(slot.shape):
            raise RunError(
                f"tensor {number} of the program is {slot.dtype}{list(slot.shape)}, and its constant is {array.dtype}{list(array.shape)}"
            )
        return array.reshape(slot.shape)
    return None
