"""Run programs with dynamic shapes, branches and loops.

The program:

    {"version": 1, "inputs": [[name, dtype, shape]], "outputs": [[name, dtype, shape]], "code": [instruction],
     "functions": {name: {"inputs": ..., "outputs": ..., "code": ...}}}          absent if no function is invoked

Extents and sizes are index expressions (`runtime.executor.index_program`).  Tensors are in registers, each defined by one instruction:

    ["size", name, input, axis]          define a size as an extent of an input   } before all
    ["check", input, axis, e]            another extent must equal e              } other
    ["require", condition]               precondition on the sizes                } instructions
    ["place", r, device]                 register r, which follows, is in memory of a device
    ["input", r, i]                      input i
    ["output", r, i]                     memory of output i
    ["constant", r, i, dtype, shape]     constant i
    ["alloc", r, dtype, shape]           new memory
    ["view", r, source, shape]           the elements of another register in another shape
    ["free", r]                          end of the lifetime of an `alloc`
    ["call", function, operands, results, sizes]
    ["copy", target, source]
    ["if", r, t]                         continue if r holds, else jump to instruction t
    ["goto", t]                          jump forward
    ["again", t]                         jump back to the start of a loop
    ["invoke", function, operands, results]      call a function of the program, which may invoke itself
    ["read", name, r]                    define a size as the element of r, an int64[] in host memory; again in each iteration of a loop
    ["limit", name, e]                   the size must be at most e
    ["ret"]

If no size is read and no function invoked, the input shapes determine all shapes, storage assignments and calls: they are computed once
and cached (`bound_program.BoundProgram`), and a second call with equal shapes interprets nothing.  Otherwise the program is interpreted
(`dynamic_program.DynamicProgram`), and outputs whose shapes depend on a size that is read are allocated by each run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from tunesmith.runtime.arrays import empty, nbytes
from tunesmith.runtime.device.device import Device
from tunesmith.runtime.executor.bound_program import (
    ARENA,
    CONSTANT,
    COPY,
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
from tunesmith.runtime.executor.dynamic_program import DynamicProgram
from tunesmith.runtime.executor.entry_sizes import WrongExtent, entry_sizes, extents, known_extents
from tunesmith.runtime.executor.executable import NamedArrays
from tunesmith.runtime.executor.executor import Executor, Program, Shape, TensorSpec
from tunesmith.runtime.executor.index_program import evaluate, shown
from tunesmith.runtime.executor.memory_pool import BufferPool, MemoryPool
from tunesmith.runtime.executor.vm_code import Code, Instruction, read_code
from tunesmith.support.errors import RunError

MAX_BOUND_PROGRAMS = 64
"""Number of cached bound programs, one per combination of input shapes; least recently used are evicted."""


class VirtualMachine(Executor):
    """Runs a program of kind "vm".

    Args:
        program: in the format of the module docstring.
        constants: names and storage, which must not be modified.
        functions: functions that the program calls, by name: compiled functions, or any that take numpy arrays followed by sizes.
    Raises:
        RunError: the program is malformed, or calls an unknown function.
    """

    kind = "vm"

    def __init__(self, program: dict[str, Any], constants: NamedArrays, functions: Functions) -> None:
        self._code: Code = read_code(program, len(constants), functions)
        super().__init__([_shown(s) for s in self._code.inputs], [_shown(s) for s in self._code.outputs], functions)
        self._constants = [a for _, a in constants]
        self.devices = tuple(sorted(set(self._code.devices.values())))
        self._device_constants = {d: DeviceConstants(Device(d), self._constants) for d in self.devices}
        self._arena = empty(0)
        self._programs: OrderedDict[tuple[Shape, ...], tuple[BoundProgram, Sequence[Shape]]] = OrderedDict()
        self._dynamic: DynamicProgram | None = None
        if self._code.is_dynamic:
            self._dynamic = DynamicProgram(self._code, self._constants, functions, self._device_constants)

    def _bound_program(self, arrays: Sequence[Array]) -> tuple[Program, Sequence[Shape | None]]:
        if self._dynamic is not None:
            sizes = self._entry_sizes(arrays)
            return self._dynamic, [known_extents(s.shape, sizes, f"output {i}") for i, s in enumerate(self._code.outputs)]
        key = tuple([a.shape for a in arrays])
        found = self._programs.get(key)
        if found is None:
            found = self._programs[key] = self._prepared(arrays)
            if len(self._programs) > MAX_BOUND_PROGRAMS:
                self._programs.popitem(last=False)
        else:
            self._programs.move_to_end(key)
        return found

    def _prepared(self, arrays: Sequence[Array]) -> tuple[BoundProgram, Sequence[Shape]]:
        """The bound program for inputs of these shapes."""
        sizes = self._entry_sizes(arrays)
        outputs = [extents(s.shape, sizes, f"output {i}") for i, s in enumerate(self._code.outputs)]
        layout = _Layout(self._code, sizes, [a.shape for a in arrays], outputs)
        if layout.pool.nbytes > self._arena.nbytes:
            self._programs.clear()  # they are bound to the old arena
            self._arena = empty(layout.pool.nbytes)
        memory = {d: DeviceMemory(layout.buffers[d].sizes, constants) for d, constants in self._device_constants.items()}
        slots, steps, segments = layout.slots, layout.steps, layout.segments
        return BoundProgram(slots, steps, segments, self._constants, self._arena, self._functions, memory), outputs

    def _entry_sizes(self, arrays: Sequence[Array]) -> dict[str, int]:
        try:
            return entry_sizes(self._code, [a.shape for a in arrays])
        except WrongExtent as error:
            raise self._wrong_shape(error.input, arrays[error.input], str(error)) from None


class _Layout:
    """Storage assignment of all registers, and calls in segments, for given sizes."""

    def __init__(self, code: Code, sizes: dict[str, int], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> None:
        self._code, self._sizes, self._inputs, self._outputs = code, sizes, inputs, outputs
        self.pool = MemoryPool()
        self.buffers = {d: BufferPool() for d in code.devices.values()}
        self.slots: list[TensorSlot] = []
        self.steps: list[Step] = []
        self.segments: list[Segment] = []
        self._registers: dict[int, int] = {}
        for k, block in enumerate(code.blocks):
            first = len(self.steps)
            for at in range(block.first, block.last):
                self._instruction(at, code.body[at])
            condition = None if block.condition is None else self._registers[block.condition]
            if condition is not None:
                slot = self.slots[condition]
                if slot.dtype != "bool" or nbytes("bool", slot.shape) != 1 or slot.device != HOST:
                    raise RunError(f"the condition of block {k} of the program is not one bool in host memory")
            self.segments.append(Segment(tuple(range(first, len(self.steps))), condition, block.then, block.otherwise))

    def _instruction(self, at: int, ins: Instruction) -> None:
        what = f"instruction {at} ({ins[0]})"
        op = ins[0]
        if op == "call":
            step = Step(ins[1], self._numbers(ins[2]), self._numbers(ins[3]), tuple([evaluate(e, self._sizes) for e in ins[4]]))
            self.steps.append(checked_step(step, self.slots, what))
        elif op == "copy":
            step = Step(COPY, self._numbers([ins[2]]), self._numbers([ins[1]]))
            self.steps.append(checked_step(step, self.slots, what))
        elif op == "free":
            slot = self.slots[self._registers[ins[1]]]
            if slot.device == HOST:
                self.pool.give(slot.number, nbytes(slot.dtype, slot.shape))
            else:
                self.buffers[slot.device].give(slot.number)
        elif op in ("input", "output", "constant", "alloc", "view"):
            self._registers[ins[1]] = len(self.slots)
            self.slots.append(self._slot(ins, what))

    def _slot(self, ins: Instruction, what: str) -> TensorSlot:
        op, r, *rest = ins
        device = self._code.devices.get(r, HOST)
        if op == "input":
            return TensorSlot(INPUT, rest[0], self._code.inputs[rest[0]].dtype, self._inputs[rest[0]], device)
        if op == "output":
            return TensorSlot(OUTPUT, rest[0], self._code.outputs[rest[0]].dtype, self._outputs[rest[0]], device)
        shape = extents(rest[-1], self._sizes, what)
        if op == "constant":
            return TensorSlot(CONSTANT, rest[0], rest[1], shape, device)
        if op == "alloc":
            pool = self.pool if device == HOST else self.buffers[device]
            return TensorSlot(ARENA, pool.take(nbytes(rest[0], shape)), rest[0], shape, device)
        source = self.slots[self._registers[rest[0]]]
        if nbytes(source.dtype, shape) != nbytes(source.dtype, source.shape):
            raise RunError(f"{what} of the program: {list(shape)} is not a view of {list(source.shape)}")
        return TensorSlot(source.storage, source.number, source.dtype, shape, source.device)

    def _numbers(self, registers: Sequence[int]) -> tuple[int, ...]:
        return tuple([self._registers[r] for r in registers])


def _shown(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.name, spec.dtype, tuple([e if isinstance(e, int) else shown(e) for e in spec.shape]))
