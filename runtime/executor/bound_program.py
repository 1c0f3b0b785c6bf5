"""Bind the calls of a program to memory in advance, so that running it is a loop over prepared calls.

Each tensor is assigned its storage before the program runs: the arena, a constant, or an array of the caller (input or output).
Calls that access only the first two are prepared once; calls that access a caller's array are prepared again when the array changes.

Compiled functions are called directly, bypassing `CompiledFunction`, with converted TVM-FFI tensors: 0.1 us per call.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tunesmith.runtime.arrays import nbytes, placed, storage_dtype, tensor, writable
from tunesmith.support.errors import RunError

INPUT, OUTPUT, CONSTANT, ARENA = "input", "output", "constant", "arena"
COPY = "(copy)"
"""Function name of a copy, which the executor performs itself."""


class TensorSlot(NamedTuple):
    """A tensor and its storage assignment.

    Attributes:
        storage: INPUT, OUTPUT, CONSTANT or ARENA.
        number: index of the input, output or constant; for the arena, the offset in bytes.
        dtype: element type.
        shape: extents; the number of elements is that of the input, output or constant.
    """

    storage: str
    number: int
    dtype: str
    shape: tuple[int, ...]


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


class BoundProgram:
    """The prepared calls of a program.

    Args:
        slots: the tensors.
        steps: all calls.
        segments: control flow; each step is in one segment, and the first segment is the entry.
        constants: storage of the constants.
        arena: memory of the tensors in the arena.
        functions: by name; they take storage arrays, or tensors if they are compiled (functions with an attribute `ffi`).
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
    ) -> None:
        self._slots, self._segments = slots, segments
        self._steps = [(s, *_function(s.function, functions)) for s in steps]
        self._arrays: list[Any] = [_storage(i, slot, constants, arena) for i, slot in enumerate(slots)]
        self._tensors: list[Any] = [None] * len(slots)
        self._calls: list[list[Callable[[], object]]] = [[_unbound] * len(s.steps) for s in segments]
        self._where = {n: (k, i) for k, s in enumerate(segments) for i, n in enumerate(s.steps)}
        self._bound: dict[tuple[str, int], np.ndarray] = {}
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

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Bind the program to these arrays: storage of inputs and outputs, already checked by the caller."""
        stale: dict[int, None] = {}
        for storage, arrays in ((INPUT, inputs), (OUTPUT, outputs)):
            for i, array in enumerate(arrays):
                key = storage, i
                if self._bound.get(key) is array:
                    continue
                self._bound[key] = array
                for t in self._tensors_on.get(key, ()):
                    shape = self._slots[t].shape
                    self._arrays[t] = array if array.shape == shape else array.reshape(shape)
                    self._tensors[t] = None
                stale.update(dict.fromkeys(self._steps_on.get(key, ())))
        for n in stale:
            self._prepare(n)

    def run(self) -> None:
        """Run all calls.

        Raises:
            RunError: a function rejected its arguments, or failed.
        """
        at = 0
        try:
            while at >= 0:
                for call in self._calls[at]:
                    call()
                at = self._next(at)
        except Exception as error:  # functions raise exceptions of any type
            raise RunError(f"a call of the program failed: {error}") from error

    def profile(self, repeats: int) -> list[list[float]]:
        """Run the program `repeats` times; the seconds of each run of each step.  Errors as in `run`."""
        taken: list[list[float]] = [[] for _ in self._steps]
        clock = time.perf_counter_ns
        for _ in range(repeats):
            at = 0
            while at >= 0:
                for n, call in zip(self._segments[at].steps, self._calls[at], strict=True):
                    start = clock()
                    try:
                        call()
                    except Exception as error:
                        raise RunError(f"a call of the program failed: {error}") from error
                    taken[n].append((clock() - start) * 1e-9)
                at = self._next(at)
        return taken

    @property
    def functions(self) -> list[str]:
        """Name of the function of each step."""
        return [step.function for step, _, _ in self._steps]

    def _next(self, at: int) -> int:
        segment = self._segments[at]
        return segment.then if segment.condition is None or self._arrays[segment.condition].item() else segment.otherwise

    def _prepare(self, n: int) -> None:
        """Prepare the call of a step with the current arrays; does nothing while an array is not bound yet."""
        step, function, compiled = self._steps[n]
        numbers = (*step.operands, *step.results)
        if any(self._arrays[t] is None for t in numbers):
            return
        segment, position = self._where[n]
        self._calls[segment][position] = partial(function, *[self._argument(t, compiled) for t in numbers], *step.sizes)

    def _argument(self, t: int, compiled: bool) -> object:
        if not compiled:
            return self._arrays[t]
        if self._tensors[t] is None:
            self._tensors[t] = tensor(self._arrays[t], self._slots[t].dtype)
        return self._tensors[t]


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
    ffi = getattr(found, "ffi", None)
    return (found, False) if ffi is None else (ffi, True)


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
