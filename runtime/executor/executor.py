"""Executor: one way to run a compiled model, whatever executes it.

y = ex(x)                          fresh arrays in each call
ex.set_input("x", x); ex.run(); ex.get_output(0)      the executor's own arrays, for loops

Inputs are numpy, torch or other DLPack arrays in CPU memory.  They are used where they lie, and copied once only if they are not
contiguous.  Threads may call one executor, one after the other, and several at once.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from tunesmith.runtime.arrays import storage, storage_dtype
from tunesmith.runtime.executor.bound_program import Frame, Functions
from tunesmith.support.errors import RunError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output.

    Attributes:
        name: as the model calls it.
        dtype: element type.
        shape: extents; a text such as "n" or "2*n+1" where it depends on the sizes of the inputs.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        """`x: float32[n, 64]`."""
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A call of the program.

    Attributes:
        call: its number, in the order of the program.
        function: what is called.
        microseconds: of one run, the median.
        calls: how many runs there were; 0 if it stands in a branch that was never taken.
    """

    call: int
    function: str
    microseconds: float
    calls: int


class Profile(tuple[ProfileRow, ...]):
    """Rows in the order of the program; as text a table, the slowest first."""

    __slots__ = ()

    @property
    def microseconds(self) -> float:
        """Of all calls together."""
        return sum(row.microseconds for row in self)

    def __str__(self) -> str:
        whole = self.microseconds or 1.0
        lines = [f"{'call':>5} {'us':>10} {'share':>6} {'calls':>6}  function"]
        for row in sorted(self, key=lambda r: (-r.microseconds, r.call)):
            lines.append(f"{row.call:>5} {row.microseconds:>10.2f} {row.microseconds / whole:>6.1%} {row.calls:>6}  {row.function}")
        return "\n".join([*lines, f"{'':>5} {self.microseconds:>10.2f} {'':>6} {'':>6}  all"])


class Executor(ABC):
    """Runs a program.  A kind of executor says which frame is for which inputs.

    Args:
        inputs: what it takes.
        outputs: what it gives.
        functions: what the program may call, by name.
    Raises:
        RunError: an output has a type that numpy arrays cannot have.
    """

    kind: str

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], functions: Functions) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._functions = functions
        self._given: list[np.ndarray | None] = [None] * len(self.inputs)
        self._own: list[np.ndarray] = []
        self._apart = False
        """Whether no input is known to lie in an array of `_own`."""
        self._lock = threading.RLock()
        for spec in self.outputs:
            if spec.dtype == "bfloat16":
                raise RunError(f"output {spec} cannot be a numpy array, which has no bfloat16. Cast it to float32 in the model")

    @abstractmethod
    def _frame(self, arrays: Sequence[np.ndarray]) -> tuple[Frame, Sequence[Shape]]:
        """The frame for inputs with these shapes, and the shapes of its outputs.

        Called with the lock held.

        Raises:
            RunError: an input has a wrong shape.
        """

    def __call__(self, *arrays: object) -> Any:
        """Run the model.

        Args:
            arrays: the inputs, in order.  They count as set.
        Returns:
            The output, or a tuple of them if there are several: fresh numpy arrays.
        Raises:
            RunError: the number of arrays, or the type or shape of one, is wrong.
        """
        with self._lock:
            self._set(arrays)
            frame, outputs = self._bound()
            frame.run()
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def set_input(self, which: str | int, array: object) -> None:
        """Use this array in the runs that follow: as it is then, if it is contiguous; else as it is now.

        Of an array that `get_output` gave, the next run takes a copy, as it overwrites it.

        Raises:
            RunError: there is no such input, or it has another type or number of axes.
        """
        i = self._index(which, self.inputs, "input")
        with self._lock:
            self._given[i] = self._accepted(i, array)
            self._apart = False

    def run(self) -> None:
        """Run on the inputs that were set, into the executor's own arrays.

        Raises:
            RunError: an input has not been set, or has a wrong shape.
        """
        with self._lock:
            missing = [spec.name for spec, array in zip(self.inputs, self._given, strict=True) if array is None]
            if missing:
                raise RunError(f"the inputs {', '.join(missing)} have not been set: call set_input for each before run")
            self._keep_apart()
            inputs = self._inputs()
            frame, shapes = self._frame(inputs)
            if [a.shape for a in self._own] != list(shapes):
                self._own = self._fresh(shapes)
            frame.bind(inputs, self._own)
            frame.run()

    def get_output(self, which: str | int) -> np.ndarray:
        """An output of the last `run`: the executor's own array, which the next run overwrites.

        Raises:
            RunError: there is no such output, or nothing has run.
        """
        i = self._index(which, self.outputs, "output")
        if not self._own:
            raise RunError("nothing has run: call run() before get_output")
        return self._own[i]

    def profile(self, *arrays: object, repeats: int = 10) -> Profile:
        """Time each call of the program, in `repeats` runs after one that is not counted.

        Args:
            arrays: the inputs; none to use those that were set.
            repeats: how many runs.
        Raises:
            RunError: as in a call; or `repeats` is below 1.
        """
        if repeats < 1:
            raise RunError(f"profile: repeats must be 1 or more, got {repeats}")
        with self._lock:
            if arrays or not self.inputs:
                self._set(arrays)
            elif any(a is None for a in self._given):
                raise RunError("profile: pass the inputs, or set each with set_input before")
            frame, _ = self._bound()
            frame.run()
            taken = frame.profile(repeats)
        rows = zip(frame.functions, taken, strict=True)
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

    # ---- what calls and runs share -----------------------------------------------------------------------------------------

    def _set(self, arrays: Sequence[object]) -> None:
        if len(arrays) != len(self.inputs):
            wanted = ", ".join(map(str, self.inputs)) or "none"
            raise RunError(f"the program takes {len(self.inputs)} input(s), got {len(arrays)}. They are: {wanted}")
        self._given = [self._accepted(i, a) for i, a in enumerate(arrays)]
        self._apart = False

    def _accepted(self, i: int, array: object) -> np.ndarray:
        """Storage of an input, with its shape not compared yet."""
        spec = self.inputs[i]
        try:
            found = storage(array, spec.dtype)
        except RunError as error:
            raise RunError(f"input {i} ({spec}): {error}") from error
        if found.ndim != len(spec.shape):
            raise self._wrong_shape(i, found)
        return found

    def _wrong_shape(self, i: int, array: np.ndarray, why: str = "") -> RunError:
        return RunError(f"input {i} ({self.inputs[i]}): got shape {list(array.shape)}{why}")

    def _bound(self) -> tuple[Frame, list[np.ndarray]]:
        """The frame for the inputs that were set, bound to them and to fresh outputs."""
        inputs = self._inputs()
        frame, shapes = self._frame(inputs)
        outputs = self._fresh(shapes)
        frame.bind(inputs, outputs)
        return frame, outputs

    def _inputs(self) -> list[np.ndarray]:
        return [a for a in self._given if a is not None]

    def _keep_apart(self) -> None:
        """Copy the inputs that the next run would overwrite."""
        if self._apart:
            return
        for i, array in enumerate(self._given):
            if array is not None and any(np.may_share_memory(array, own) for own in self._own):
                self._given[i] = array.copy()
        self._apart = True

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


def unique_names(names: Iterable[str], what: str) -> tuple[str, ...]:
    """The names, if no two are equal; else RunError."""
    found = tuple(names)
    if len(set(found)) != len(found):
        raise RunError(f"the program has two {what} of one name: {', '.join(found)}. Build it again")
    return found
