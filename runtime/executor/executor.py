"""Define the common interface of executors, which run compiled models.

y = ex(x)                          new output arrays in each call
ex.set_input("x", x); ex.run(); ex.get_output(0)      reused output arrays, for loops

Inputs are numpy, torch or other DLPack arrays in CPU memory.  They are used without a copy, except that arrays that are not contiguous
are copied once.  Executors are thread safe: calls of one executor are serialised, different executors run concurrently.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from tunesmith.runtime.arrays import storage, storage_dtype, typed
from tunesmith.runtime.executor.bound_program import BoundProgram, Functions
from tunesmith.support.arguments import as_count
from tunesmith.support.errors import RunError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a model.

    Attributes:
        name: name in the model.
        dtype: element type.
        shape: extents; a string such as "n" or "2*n+1" if it depends on the sizes of the inputs.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        """`x: float32[n, 64]`."""
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """Measured times of a call of the program.

    Attributes:
        call: its number, in program order.
        function: name of the function.
        microseconds: median over the runs.
        calls: number of runs; 0 if the call is in a branch that was never taken.
    """

    call: int
    function: str
    microseconds: float
    calls: int


MOST_ROWS = 100
"""Number of calls up to which a profile is printed call by call."""


class Profile(tuple[ProfileRow, ...]):
    """Rows in program order; as a string, a table sorted by decreasing time: of all calls, or of all functions if there are many calls."""

    __slots__ = ()

    @property
    def microseconds(self) -> float:
        """Sum over all calls."""
        return sum(row.microseconds for row in self)

    def by_function(self) -> dict[str, tuple[int, float]]:
        """Function -> (its number of calls in one run, the sum of their microseconds), the largest first."""
        found: dict[str, tuple[int, float]] = {}
        for row in self:
            calls, us = found.get(row.function, (0, 0.0))
            found[row.function] = calls + 1, us + row.microseconds
        return dict(sorted(found.items(), key=lambda item: -item[1][1]))

    def __str__(self) -> str:
        whole = self.microseconds or 1.0
        if len(self) > MOST_ROWS:
            heads = [f"{'calls':>6} {'us':>10} {'share':>6}  function"]
            rows = [f"{calls:>6} {us:>10.2f} {us / whole:>6.1%}  {name}" for name, (calls, us) in self.by_function().items()]
            return "\n".join([*heads, *rows, f"{len(self):>6} {self.microseconds:>10.2f} {'':>6}  all"])
        lines = [f"{'call':>5} {'us':>10} {'share':>6} {'calls':>6}  function"]
        for row in sorted(self, key=lambda r: (-r.microseconds, r.call)):
            lines.append(f"{row.call:>5} {row.microseconds:>10.2f} {row.microseconds / whole:>6.1%} {row.calls:>6}  {row.function}")
        return "\n".join([*lines, f"{'':>5} {self.microseconds:>10.2f} {'':>6} {'':>6}  all"])


class Executor(ABC):
    """Runs a program.  Subclasses provide the bound program for given input shapes.

    Args:
        inputs: inputs of the model.
        outputs: outputs of the model.
        functions: functions that the program may call, by name.
    """

    kind: str

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], functions: Functions) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._functions = functions
        self._given: list[np.ndarray | None] = [None] * len(self.inputs)
        self._output_arrays: list[np.ndarray] = []
        self._alias_free = False
        """Whether all inputs are known not to alias `_output_arrays`."""
        self._lock = threading.RLock()

    @abstractmethod
    def _bound_program(self, arrays: Sequence[np.ndarray]) -> tuple[BoundProgram, Sequence[Shape]]:
        """The bound program for inputs with these shapes, and the shapes of its outputs.

        Called with the lock held.

        Raises:
            RunError: an input has a wrong shape.
        """

    def __call__(self, *arrays: object) -> Any:
        """Run the model.

        Args:
            arrays: the inputs, in order.  They are also set for later runs.
        Returns:
            The output, or a tuple if there are several, as new numpy arrays; bfloat16 is that of ml_dtypes.
        Raises:
            RunError: the number of arrays, or the type or shape of an array, is wrong.
        """
        with self._lock:
            self._set(arrays)
            program, outputs = self._bind_inputs()
            program.run()
        made = [typed(o, spec.dtype) for o, spec in zip(outputs, self.outputs, strict=True)]
        return made[0] if len(made) == 1 else tuple(made)

    def set_input(self, which: str | int, array: object) -> None:
        """Use this array in later runs: by reference if it is contiguous, else a copy of its current elements.

        An array returned by `get_output` is copied by the next run, which overwrites it.

        Raises:
            RunError: there is no such input, or the array has another type or number of axes.
        """
        i = self._index(which, self.inputs, "input")
        with self._lock:
            self._given[i] = self._accepted(i, array)
            self._alias_free = False

    def run(self) -> None:
        """Run on the inputs that were set, with outputs in the executor's own arrays.

        Raises:
            RunError: an input has not been set, or has a wrong shape.
        """
        with self._lock:
            missing = [spec.name for spec, array in zip(self.inputs, self._given, strict=True) if array is None]
            if missing:
                raise RunError(f"the inputs {', '.join(missing)} have not been set: call set_input for each before run")
            self._copy_aliased_inputs()
            inputs = self._inputs()
            program, shapes = self._bound_program(inputs)
            if [a.shape for a in self._output_arrays] != list(shapes):
                self._output_arrays = self._fresh(shapes)
            program.bind(inputs, self._output_arrays)
            program.run()

    def get_output(self, which: str | int) -> np.ndarray:
        """An output of the last `run`: the executor's own array, which the next run overwrites.

        Raises:
            RunError: there is no such output, or nothing has run.
        """
        i = self._index(which, self.outputs, "output")
        if not self._output_arrays:
            raise RunError("nothing has run: call run() before get_output")
        return typed(self._output_arrays[i], self.outputs[i].dtype)

    def profile(self, *arrays: object, repeats: int = 10) -> Profile:
        """Time each call of the program in `repeats` runs, after one untimed run.

        Args:
            arrays: the inputs; if omitted, those that were set.
            repeats: number of timed runs.
        Raises:
            RunError: as in a call.
            UserError: `repeats` is not an integer of at least 1.
        """
        repeats = as_count("repeats", repeats)
        with self._lock:
            if arrays or not self.inputs:
                self._set(arrays)
            elif any(a is None for a in self._given):
                raise RunError("profile: pass the inputs, or set each with set_input before")
            program, _ = self._bind_inputs()
            program.run()
            taken = program.profile(repeats)
        rows = zip(program.functions, taken, strict=True)
        return Profile([ProfileRow(i, f, median(t) * 1e6 if t else 0.0, len(t)) for i, (f, t) in enumerate(rows)])

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the functions that the program may call, sorted."""
        return tuple(sorted(self._functions))

    def __getitem__(self, name: str) -> Any:
        """A function of the program.

        Raises:
            RunError: there is no such function.
        """
        if name not in self._functions:
            raise RunError(f"the program has no function {name!r}. It has: {', '.join(self.functions) or 'none'}")
        return self._functions[name]

    def __repr__(self) -> str:
        return f"<{self.kind} executor ({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})>"

    # ---- shared by calls and runs ------------------------------------------------------------------------------------------

    def _set(self, arrays: Sequence[object]) -> None:
        if len(arrays) != len(self.inputs):
            expected = ", ".join(map(str, self.inputs)) or "none"
            raise RunError(f"the program takes {len(self.inputs)} input(s), got {len(arrays)}. They are: {expected}")
        self._given = [self._accepted(i, a) for i, a in enumerate(arrays)]
        self._alias_free = False

    def _accepted(self, i: int, array: object) -> np.ndarray:
        """Storage of an input; the extents are not checked yet."""
        spec = self.inputs[i]
        if not spec.shape and isinstance(array, (bool, int, float)):
            array = _number(array, spec.dtype)
        try:
            found = storage(array, spec.dtype)
        except RunError as error:
            raise RunError(f"input {i} ({spec}): {error}") from error
        if found.ndim != len(spec.shape):
            raise self._wrong_shape(i, found)
        return found

    def _wrong_shape(self, i: int, array: np.ndarray, why: str = "") -> RunError:
        return RunError(f"input {i} ({self.inputs[i]}): got shape {list(array.shape)}{why}")

    def _bind_inputs(self) -> tuple[BoundProgram, list[np.ndarray]]:
        """The program bound to the inputs that were set and to new output arrays."""
        inputs = self._inputs()
        program, shapes = self._bound_program(inputs)
        outputs = self._fresh(shapes)
        program.bind(inputs, outputs)
        return program, outputs

    def _inputs(self) -> list[np.ndarray]:
        return [a for a in self._given if a is not None]

    def _copy_aliased_inputs(self) -> None:
        """Copy inputs that alias the output arrays, which the next run would overwrite."""
        if self._alias_free:
            return
        for i, array in enumerate(self._given):
            if array is not None and any(np.may_share_memory(array, own) for own in self._output_arrays):
                self._given[i] = array.copy()
        self._alias_free = True

    def _fresh(self, shapes: Sequence[Shape]) -> list[np.ndarray]:
        try:
            return [np.empty(shape, storage_dtype(spec.dtype)) for spec, shape in zip(self.outputs, shapes, strict=True)]
        except (MemoryError, ValueError) as error:
            raise RunError(f"there is no memory for outputs of shapes {', '.join(map(str, map(list, shapes)))}: {error}") from error

    def _index(self, which: str | int, specs: Sequence[TensorSpec], what: str) -> int:
        names = [spec.name for spec in specs]
        if isinstance(which, str) and which in names:
            return names.index(which)
        if isinstance(which, int) and 0 <= which < len(specs):
            return which
        raise RunError(f"there is no {what} {which!r}. There are, from 0: {', '.join(names) or 'none'}")


def _number(value: bool | int | float, dtype: str) -> object:
    """A Python number as an array of an input without axes; the number itself if the type does not hold it."""
    kinds: dict[str, Any] = {"b": bool, "i": int, "u": int, "f": (int, float)}
    if dtype == "bfloat16" or not isinstance(value, kinds[np.dtype(dtype).kind]) or (isinstance(value, bool) and dtype != "bool"):
        return value
    try:
        return np.array(value, dtype)
    except OverflowError:
        return value


def unique_names(names: Iterable[str], what: str) -> tuple[str, ...]:
    """Return the names.  RunError if two are equal."""
    found = tuple(names)
    if len(set(found)) != len(found):
        raise RunError(f"the program has two {what} of one name: {', '.join(found)}. Build it again")
    return found
