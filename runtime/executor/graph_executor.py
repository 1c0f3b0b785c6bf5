"""Run programs with static shapes: storage assigned at compile time, calls in a straight-line list.

The program:

    {"version": 1,
     "inputs": [[name, dtype, shape]], "outputs": [[name, dtype, shape]],
     "arena": bytes for intermediate tensors,
     "tensors": [[storage, number, dtype, shape]],      storage and number as in `bound_program.TensorSlot`; a fifth field is its device
     "calls": [[function, operands, results, sizes]],     operands and results are numbers of tensors; as in `bound_program.Step`
     "devices": {kind: [bytes]}}                          sizes of the buffers on each device; absent if the program uses none

A view is a further tensor with the same storage.  Devices are used, and their memory is allocated, by the first run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tunesmith.runtime.arrays import ALIGNMENT, empty, nbytes
from tunesmith.runtime.device.device import DEVICES, Device
from tunesmith.runtime.executor.bound_program import (
    ARENA,
    CONSTANT,
    INPUT,
    OUTPUT,
    BoundProgram,
    Functions,
    Segment,
    Step,
    TensorSlot,
    checked_step,
)
from tunesmith.runtime.executor.device_memory import HOST, Array, DeviceConstants, DeviceMemory
from tunesmith.runtime.executor.executable import NamedArrays
from tunesmith.runtime.executor.executor import Executor, Shape, TensorSpec, unique_names
from tunesmith.runtime.executor.program_data import dtype_of, field, int_of, list_of, numbers_of, shape_of, text_of
from tunesmith.support.errors import RunError


class GraphExecutor(Executor):
    """Runs a program of kind "graph".

    Args:
        program: in the format of the module docstring.
        constants: names and storage, which must not be modified.
        functions: functions that the program calls, by name: compiled functions, or any that take numpy arrays.
    Raises:
        RunError: the program is malformed, or calls an unknown function.
    """

    kind = "graph"

    def __init__(self, program: dict[str, Any], constants: NamedArrays, functions: Functions) -> None:
        inputs = static_specs(field(program, "inputs", "the program"), "inputs")
        outputs = static_specs(field(program, "outputs", "the program"), "outputs")
        super().__init__(inputs, outputs, functions)
        self._input_shapes, self._output_shapes = [static_shape(s) for s in inputs], [static_shape(s) for s in outputs]
        arena = int_of(field(program, "arena", "the program"), "arena", 0)
        self._buffers = _buffers(program.get("devices", {}))
        self.devices = tuple(self._buffers)
        slots = self._slots(list_of(field(program, "tensors", "the program"), "tensors"), len(constants), arena)
        steps = [_step(i, row, slots) for i, row in enumerate(list_of(field(program, "calls", "the program"), "calls"))]
        arrays = [a for _, a in constants]
        self._make = partial(BoundProgram, slots, steps, [Segment(tuple(range(len(steps))))], arrays, empty(arena), functions)
        self._constants = arrays
        self._program = None if self.devices else self._make()

    def _bound_program(self, arrays: Sequence[Array]) -> tuple[BoundProgram, Sequence[Shape]]:
        for i, array in enumerate(arrays):
            if array.shape != self._input_shapes[i]:
                raise self._wrong_shape(i, array)
        if self._program is None:
            self._program = self._make(
                {k: DeviceMemory(sizes, DeviceConstants(Device(k), self._constants)) for k, sizes in self._buffers.items()}
            )
        return self._program, self._output_shapes

    def _slots(self, rows: list[Any], constants: int, arena: int) -> list[TensorSlot]:
        known = {INPUT: self._input_shapes, OUTPUT: self._output_shapes}
        specs = {INPUT: self.inputs, OUTPUT: self.outputs}
        slots = []
        for i, row in enumerate(rows):
            what = f"tensor {i}"
            storage, number, dtype, shape, *rest = list_of(row, what, 4, 5)
            device = rest[0] if rest else HOST
            if rest and (not isinstance(device, str) or device not in self._buffers):
                raise RunError(f"{what} of the program is on the device {device!r}, which the program does not list. Build it again")
            if storage not in (INPUT, OUTPUT, CONSTANT, ARENA):
                raise RunError(
                    f"{what} of the program: {storage!r} is not a kind of storage; known are {INPUT}, {OUTPUT}, {CONSTANT}, {ARENA}"
                )
            slot = TensorSlot(storage, int_of(number, what, 0), dtype_of(dtype, what), shape_of(shape, what), device)
            end = arena + 1 if storage == ARENA else constants if storage == CONSTANT else len(specs[storage])
            if storage == ARENA and rest:
                end = len(self._buffers[device])
            if slot.number >= end or (storage == ARENA and not rest and slot.number % ALIGNMENT):
                raise RunError(f"{what} of the program: there is no {storage} {slot.number}")
            if storage in specs:
                whole = specs[storage][slot.number].dtype, nbytes(slot.dtype, known[storage][slot.number])
                if (slot.dtype, nbytes(slot.dtype, slot.shape)) != whole:
                    raise RunError(f"{what} of the program, {slot.dtype}{list(slot.shape)}, is not a view of {specs[storage][slot.number]}")
            slots.append(slot)
        return slots


def _buffers(found: object) -> dict[str, list[int]]:
    """The sizes of the buffers of each device.  RunError if they are malformed."""
    if not isinstance(found, dict) or HOST in found:
        raise RunError(f"the devices of the program are malformed: {found!r:.100}. Build it again")
    for kind in found:
        if kind not in DEVICES:
            raise RunError(f"the program needs a device of kind {kind!r:.100}; known are {', '.join(DEVICES)}")
    return {k: [int_of(n, f"buffer of {k}", 0) for n in list_of(sizes, f"buffers of {k}")] for k, sizes in found.items()}


def static_specs(rows: object, what: str) -> list[TensorSpec]:
    """Inputs or outputs of a program, as [name, dtype, shape].  RunError if they are malformed."""
    found = []
    for i, row in enumerate(list_of(rows, what)):
        name, dtype, shape = list_of(row, f"{what} {i}", 3, 3)
        found.append(TensorSpec(text_of(name, f"{what} {i}"), dtype_of(dtype, f"{what} {i}"), shape_of(shape, f"{what} {i}")))
    unique_names([s.name for s in found], what)
    return found


def static_shape(spec: TensorSpec) -> Shape:
    """The extents of a static shape."""
    return tuple([e for e in spec.shape if isinstance(e, int)])


def _step(i: int, row: object, slots: Sequence[TensorSlot]) -> Step:
    what = f"call {i}"
    function, operands, results, sizes = list_of(row, what, 4, 4)
    reads, writes = [numbers_of(n, f"{what}: tensors", len(slots)) for n in (operands, results)]
    extra = tuple([int_of(s, what) for s in list_of(sizes, what)])
    return checked_step(Step(text_of(function, what), reads, writes, extra), slots, what)
