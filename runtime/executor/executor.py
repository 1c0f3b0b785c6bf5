"""Define the common interface of executors, which run compiled models.

y = ex(x)                          new output arrays in each call
ex.set_input("x", x); ex.run(); ex.get_output(0)      reused output arrays, for loops

Inputs are numpy, torch or other DLPack arrays in CPU memory.  They are used without a copy, except that arrays that are not contiguous
are copied once.  A program that runs on a device also takes arrays on this device, a DeviceArray or a tensor of another library; its
outputs are then DeviceArrays, and the call returns before the device is done.

Executors are thread safe: calls of one executor are serialised, different executors run concurrently.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import numpy as np

from tunesmith.runtime.arrays import storage, typed
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.device import Device
from tunesmith.runtime.dlpack import CPU
from tunesmith.runtime.executor.bound_program import Functions
from tunesmith.runtime.executor.device_memory import HOST, Array, new_array
from tunesmith.runtime.profile import Profile, ProfileRow
from tunesmith.runtime.timing import CpuClock
from tunesmith.support.arguments import as_count
from tunesmith.support.errors import RunError
from tunesmith.support.nearest_name import did_you_mean

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


class Program(Protocol):
    """A program, prepared for inputs of certain shapes; `bound_program.BoundProgram` documents the methods."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Any]) -> None:
        """Bind the program to arrays; an output of unknown shape has None."""

    def run(self) -> None:
        """Run all calls."""

    def profile(self, repeats: int) -> list[list[float]]:
        """The seconds of each run of each step."""

    def trace(self) -> list[tuple[int, tuple[np.ndarray, ...]]]:
        """The results of each step that ran."""

    @property
    def outputs(self) -> Sequence[Array]:
        """The outputs of the last run."""

    @property
    def functions(self) -> list[str]:
        """Name of the function of each step."""


class Executor(ABC):
    """Runs a program.  Subclasses provide the bound program for given input shapes.

    Args:
        inputs: inputs of the model.
        outputs: outputs of the model.
        functions: functions that the program may call, by name.
    """

    kind: str
    devices: tuple[str, ...] = ()
    """The kinds of devices that the program uses, besides the host."""

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], functions: Functions) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._functions = functions
        self._given: list[Array | None] = [None] * len(self.inputs)
        self._output_arrays: Sequence[Array] = ()
        self._output_device: Device | None = None
        self._alias_free = False
        """Whether all inputs are known not to alias `_output_arrays`."""
        self._lock = threading.RLock()

    @abstractmethod
    def _bound_program(self, arrays: Sequence[Array]) -> tuple[Program, Sequence[Shape | None]]:
        """The program for inputs with these shapes, and the shapes of its outputs: None if the shape depends on data.

        Called with the lock held.

        Raises:
            RunError: an input has a wrong shape.
        """

    def ordered(self, arrays: Sequence[object], named: Mapping[str, object]) -> tuple[object, ...]:
        """The inputs in order, of which the first are given by position and the others by name.

        Raises:
            RunError: an input with a name is missing, given twice, or does not exist.
        """
        if not named:
            return tuple(arrays)
        names = [spec.name for spec in self.inputs]
        unknown = next((name for name in named if name not in names), None)
        if unknown is not None:
            raise RunError(f"there is no input {unknown!r}.{did_you_mean(unknown, names)} There are: {', '.join(names) or 'none'}")
        rest = names[len(arrays) :]
        twice = next((name for name in named if name not in rest), None)
        if twice is not None:
            raise RunError(f"the input {twice} is given twice: by its position and by its name")
        missing = [name for name in rest if name not in named]
        if missing:
            raise RunError(f"the inputs {', '.join(missing)} are missing" if len(missing) > 1 else f"the input {missing[0]} is missing")
        return (*arrays, *[named[name] for name in rest])

    def __call__(self, *arrays: object, **named: object) -> Any:
        """Run the model.

        Args:
            arrays: the inputs, in order.  They are also set for later runs.
            named: inputs by name, after those by position.
        Returns:
            The output, or a tuple if there are several, as new numpy arrays; bfloat16 is that of ml_dtypes.
        Raises:
            RunError: the number of arrays, or the type or shape of an array, is wrong.
        """
        arrays = self.ordered(arrays, named)
        with self._lock:
            self._set(arrays)
            program = self._bind_inputs()
            program.run()
            made = [_typed(o, spec.dtype) for o, spec in zip(program.outputs, self.outputs, strict=True)]
        return made[0] if len(made) == 1 else tuple(made)

    def run_into(self, inputs: Sequence[object], outputs: Callable[[Sequence[Shape]], Sequence[np.ndarray]]) -> None:
        """Run the model on arrays of the caller, which are not used after the call.

        Args:
            inputs: the inputs, in order; those that were set for `run` stay.
            outputs: called with the shapes of the outputs; returns the storage arrays to write.
        Raises:
            RunError: as in a call.
        """
        with self._lock:
            kept = self._given
            try:
                self._set(inputs)
                arrays = self._inputs()
                program, shapes = self._bound_program(arrays)
                known = [s for s in shapes if s is not None]
                if len(known) == len(shapes):
                    program.bind(arrays, outputs(known))
                    program.run()
                else:
                    program.bind(arrays, [None] * len(shapes))
                    program.run()
                    found = program.outputs
                    for target, made in zip(outputs([tuple(a.shape) for a in found]), found, strict=True):
                        np.copyto(target, made.numpy() if isinstance(made, DeviceArray) else made)
            finally:
                self._given, self._alias_free = kept, False

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
            device = self._device_of(inputs)
            if [a.shape for a in self._output_arrays] != list(shapes) or self._output_device != device:
                self._output_arrays, self._output_device = self._fresh(shapes, device), device
            program.bind(inputs, self._output_arrays)
            program.run()
            self._output_arrays = program.outputs

    def get_output(self, which: str | int) -> Any:
        """An output of the last `run`: the executor's own array, which the next run overwrites; on a device if an input is.

        Raises:
            RunError: there is no such output, or nothing has run.
        """
        i = self._index(which, self.outputs, "output")
        if not self._output_arrays:
            raise RunError("nothing has run: call run() before get_output")
        return _typed(self._output_arrays[i], self.outputs[i].dtype)

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
            program = self._bind_inputs()
            program.run()
            begin = CpuClock.readable()
            taken = program.profile(repeats)
            end = CpuClock.readable()
        rows = zip(program.functions, taken, strict=True)
        found = [ProfileRow(i, f, median(t) * 1e6 * len(t) / repeats if t else 0.0, len(t)) for i, (f, t) in enumerate(rows)]
        return Profile(found).during(begin, end)

    def trace(self, *arrays: object) -> list[tuple[int, str, tuple[np.ndarray, ...]]]:
        """Run once and keep all intermediate results: number, function and results of each call that ran, in order.

        A call of a function that calls itself is one call, with the number -1, -2, ... of those in the program.

        Args:
            arrays: the inputs, in order.
        Raises:
            RunError: as in a call.
        """
        with self._lock:
            self._set(arrays)
            program = self._bind_inputs()
            invoked: Sequence[str] = getattr(program, "invoked", ())  # only dynamic programs have them
            return [(n, program.functions[n] if n >= 0 else invoked[~n], results) for n, results in program.trace()]

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

    def _accepted(self, i: int, array: object) -> Array:
        """Storage of an input; the extents are not checked yet."""
        spec = self.inputs[i]
        if self.devices and is_on_device(array):
            return self._on_device(i, array)
        if not spec.shape and isinstance(array, (bool, int, float)):
            array = _number(array, spec.dtype)
        try:
            found = storage(array, spec.dtype)
        except RunError as error:
            raise RunError(f"input {i} ({spec}): {error}") from error
        if found.ndim != len(spec.shape):
            raise self._wrong_shape(i, found)
        return found

    def _on_device(self, i: int, array: object) -> DeviceArray:
        """An input in the memory of a device of the program."""
        spec = self.inputs[i]
        try:
            found = array if isinstance(array, DeviceArray) else DeviceArray.from_dlpack(array)
        except RunError as error:
            raise RunError(f"input {i} ({spec}): {error}") from error
        if found.device.kind not in self.devices or found.device.index:
            raise RunError(f"input {i} ({spec}): got memory of {found.device}: pass an array on {self.devices[0]}(0) or the host")
        if found.dtype != spec.dtype:
            raise RunError(f"input {i} ({spec}): got dtype {found.dtype}")
        if len(found.shape) != len(spec.shape):
            raise self._wrong_shape(i, found)
        return found

    def _device_of(self, inputs: Sequence[Array]) -> Device | None:
        """The device of the outputs: that of an input; None for the host."""
        return next((a.device for a in inputs if isinstance(a, DeviceArray)), None)

    def _wrong_shape(self, i: int, array: Array, why: str = "") -> RunError:
        return RunError(f"input {i} ({self.inputs[i]}): got shape {list(array.shape)}{why}")

    def _bind_inputs(self) -> Program:
        """The program bound to the inputs that were set and to new output arrays."""
        inputs = self._inputs()
        program, shapes = self._bound_program(inputs)
        program.bind(inputs, self._fresh(shapes, self._device_of(inputs)))
        return program

    def _inputs(self) -> list[Array]:
        return [a for a in self._given if a is not None]

    def _copy_aliased_inputs(self) -> None:
        """Copy inputs that alias the output arrays, which the next run would overwrite."""
        if self._alias_free:
            return
        for i, array in enumerate(self._given):
            if array is not None and any(_may_share_memory(array, own) for own in self._output_arrays):
                self._given[i] = array.copy()
        self._alias_free = True

    def _fresh(self, shapes: Sequence[Shape | None], device: Device | None = None) -> list[Any]:
        """New arrays of these shapes; None for an unknown shape."""
        kind = HOST if device is None else device.kind
        return [None if shape is None else new_array(shape, spec.dtype, kind) for spec, shape in zip(self.outputs, shapes, strict=True)]

    def _index(self, which: str | int, specs: Sequence[TensorSpec], what: str) -> int:
        names = [spec.name for spec in specs]
        if isinstance(which, str) and which in names:
            return names.index(which)
        if isinstance(which, int) and 0 <= which < len(specs):
            return which
        raise RunError(f"there is no {what} {which!r}. There are, from 0: {', '.join(names) or 'none'}")


def is_on_device(array: object) -> bool:
    """Whether an array is in other memory than the host's: a DeviceArray, or a tensor of a library that says so by DLPack."""
    if isinstance(array, DeviceArray):
        return array.device.kind != "cpu"
    if isinstance(array, np.ndarray):
        return False
    device = getattr(array, "__dlpack_device__", None)
    return callable(device) and int(device()[0]) != CPU


def _typed(array: Array, dtype: str) -> Any:
    return array if isinstance(array, DeviceArray) else typed(array, dtype)


def _may_share_memory(a: Array, b: Array) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(np.may_share_memory(a, b))
    return isinstance(a, DeviceArray) and isinstance(b, DeviceArray) and a.allocation == b.allocation


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
