"""Frame: the calls of a program, prepared on the memory that they work on, so that running is a loop over ready calls.

Every tensor has its place before anything runs: in the arena, in a constant, or in an array of the caller (an input, or an output).
Calls that touch only the first two are prepared once; those on a caller's array again whenever another array comes.

Compiled functions are called past `CompiledFunction`, with tensors that TVM-FFI has converted already: 0.1 us a call.
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
"""In place of the name of a function: the executor copies by itself."""


class Place(NamedTuple):
    """A tensor and where it lies.

    Attributes:
        home: INPUT, OUTPUT, CONSTANT or ARENA.
        number: which input, output or constant; in the arena the offset in bytes.
        dtype: element type.
        shape: extents, of as many elements as the input, output or constant has.
    """

    home: str
    number: int
    dtype: str
    shape: tuple[int, ...]


class Step(NamedTuple):
    """A call: `function(*operands, *results, *sizes)`; with COPY, the elements of the operand go into the result.

    Attributes:
        function: its name, or COPY.
        operands: numbers of the tensors that it reads.
        results: numbers of the tensors that it writes.
        sizes: further arguments.
    """

    function: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    sizes: tuple[int, ...] = ()


class Segment(NamedTuple):
    """Steps that run one after the other, and which segment comes next; -1 is the end.

    Attributes:
        steps: numbers of steps.
        condition: number of a bool tensor with one element; None if the next segment is always `then`.
        then: where the condition holds.
        otherwise: where it does not.
    """

    steps: tuple[int, ...]
    condition: int | None = None
    then: int = -1
    otherwise: int = -1


Functions = Mapping[str, Callable[..., object]]


class Frame:
    """Prepared calls.

    Args:
        places: the tensors.
        steps: all calls.
        segments: in which order they run, each step in one; the first comes first.
        constants: their storage.
        arena: memory for those in the arena.
        functions: by name; they take storage arrays, or tensors if they are compiled (then they have an attribute `ffi`).
    Raises:
        RunError: a tensor does not fit its place, or there is no such function.
    """

    def __init__(
        self,
        places: Sequence[Place],
        steps: Sequence[Step],
        segments: Sequence[Segment],
        constants: Sequence[np.ndarray],
        arena: np.ndarray,
        functions: Functions,
    ) -> None:
        self._places, self._segments = places, segments
        self._steps = [(s, *_function(s.function, functions)) for s in steps]
        self._arrays: list[Any] = [_storage(i, p, constants, arena) for i, p in enumerate(places)]
        self._tensors: list[Any] = [None] * len(places)
        self._calls: list[list[Callable[[], object]]] = [[_unbound] * len(s.steps) for s in segments]
        self._where = {n: (k, i) for k, s in enumerate(segments) for i, n in enumerate(s.steps)}
        self._bound: dict[tuple[str, int], np.ndarray] = {}
        self._tensors_on: dict[tuple[str, int], list[int]] = {}
        self._steps_on: dict[tuple[str, int], list[int]] = {}
        for i, p in enumerate(places):
            if p.home in (INPUT, OUTPUT):
                self._tensors_on.setdefault((p.home, p.number), []).append(i)
        for n, s in enumerate(steps):
            keys = {(p.home, p.number) for p in [places[t] for t in (*s.operands, *s.results)] if p.home in (INPUT, OUTPUT)}
            for key in keys:
                self._steps_on.setdefault(key, []).append(n)
            if not keys:
                self._prepare(n)

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Work on these arrays from now on: storage of inputs and outputs, which the caller has checked."""
        stale: dict[int, None] = {}
        for home, arrays in ((INPUT, inputs), (OUTPUT, outputs)):
            for i, array in enumerate(arrays):
                key = home, i
                if self._bound.get(key) is array:
                    continue
                self._bound[key] = array
                for t in self._tensors_on.get(key, ()):
                    shape = self._places[t].shape
                    self._arrays[t] = array if array.shape == shape else array.reshape(shape)
                    self._tensors[t] = None
                stale.update(dict.fromkeys(self._steps_on.get(key, ())))
        for n in stale:
            self._prepare(n)

    def run(self) -> None:
        """Run all calls.

        Raises:
            RunError: a function refused its arguments, or failed.
        """
        at = 0
        try:
            while at >= 0:
                for call in self._calls[at]:
                    call()
                at = self._next(at)
        except Exception as error:  # the functions raise what they like
            raise RunError(f"a call of the program failed: {error}") from error

    def profile(self, repeats: int) -> list[list[float]]:
        """Run all calls `repeats` times and time each: for each step, the seconds of its runs.  Errors as in `run`."""
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
        """What each step calls."""
        return [step.function for step, _, _ in self._steps]

    def _next(self, at: int) -> int:
        segment = self._segments[at]
        return segment.then if segment.condition is None or self._arrays[segment.condition].item() else segment.otherwise

    def _prepare(self, n: int) -> None:
        """Make the call of a step from the arrays as they are now; nothing yet if one is still to come."""
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
            self._tensors[t] = tensor(self._arrays[t], self._places[t].dtype)
        return self._tensors[t]


def checked_step(step: Step, places: Sequence[Place], what: str) -> Step:
    """The step, if it writes nowhere but into the arena and outputs, and a copy is between tensors of one size; else RunError."""
    for n in step.results:
        if places[n].home not in (ARENA, OUTPUT):
            raise RunError(f"{what} of the program writes to {places[n].home} {places[n].number}, which may only be read")
    if step.function == COPY:
        pair = [(places[n].dtype, nbytes(places[n].dtype, places[n].shape)) for n in (*step.operands, *step.results)]
        if len(step.operands) != 1 or len(step.results) != 1 or step.sizes or pair[0] != pair[1]:
            raise RunError(f"{what} of the program is a copy between tensors that differ")
    return step


def _unbound() -> object:
    raise RunError("an input has not been set: call set_input for each, or pass all inputs to the executor")


def _copy(source: np.ndarray, target: np.ndarray) -> None:
    np.copyto(target, source.reshape(target.shape))


def _function(name: str, functions: Functions) -> tuple[Callable[..., object], bool]:
    """The function and whether it takes tensors instead of arrays."""
    if name == COPY:
        return _copy, False
    if name not in functions:
        raise RunError(f"the program calls {name!r}, which its library does not have. It has: {', '.join(sorted(functions)) or 'none'}")
    found = functions[name]
    ffi = getattr(found, "ffi", None)
    return (found, False) if ffi is None else (ffi, True)


def _storage(number: int, place: Place, constants: Sequence[np.ndarray], arena: np.ndarray) -> np.ndarray | None:
    """The storage of a tensor; None while it is the caller's."""
    if place.home == ARENA:
        try:
            return placed(arena, place.number, place.dtype, place.shape)
        except RunError as error:
            raise RunError(f"tensor {number} of the program: {error}") from error
    if place.home == CONSTANT:
        array = writable(constants[place.number])
        if array.dtype != storage_dtype(place.dtype) or array.size != math.prod(place.shape):
            raise RunError(
                f"tensor {number} of the program is {place.dtype}{list(place.shape)}, and its constant is {array.dtype}{list(array.shape)}"
            )
        return array.reshape(place.shape)
    return None
