"""Virtual machine: shapes that depend on sizes of the inputs, and branches.

Its program:

    {"version": 1, "inputs": [[name, dtype, shape]], "outputs": [[name, dtype, shape]], "code": [instruction]}

Extents and sizes are index expressions (`runtime.executor.index_program`).  Tensors are in registers, each defined by one instruction:

    ["size", name, input, axis]          a size is an extent of an input          } first of all,
    ["check", input, axis, e]            another extent must be e                 } in this order
    ["require", condition]               the caller must keep to it               }
    ["input", r, i]                      input i
    ["output", r, i]                     memory of output i
    ["constant", r, i, dtype, shape]     constant i
    ["alloc", r, dtype, shape]           new memory
    ["view", r, source, shape]           the elements of another register in another shape
    ["free", r]                          the memory of an `alloc` is not needed any more
    ["call", function, operands, results, sizes]
    ["copy", target, source]
    ["if", r, t]                         go on where r holds, else with instruction t
    ["goto", t]
    ["ret"]

Jumps go forward, so that programs end.  No size depends on the elements of a tensor.  Hence all shapes, all places in memory and all
calls are known as soon as the shapes of the inputs are: they are worked out once and kept (`frame.Frame`), and a second call with
equal shapes interprets nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from tunesmith.runtime.arrays import empty, nbytes
from tunesmith.runtime.executor.bound_program import (
    ARENA,
    CONSTANT,
    COPY,
    INPUT,
    OUTPUT,
    Frame,
    Functions,
    Place,
    Segment,
    Step,
    checked_step,
)
from tunesmith.runtime.executor.executable import NamedArrays
from tunesmith.runtime.executor.executor import Executor, Shape, TensorSpec
from tunesmith.runtime.executor.index_program import evaluate, holds, shown, shown_condition
from tunesmith.runtime.executor.memory_pool import MemoryPool
from tunesmith.runtime.executor.vm_code import Code, Instruction, read_code
from tunesmith.support.errors import RunError

FRAMES = 64
"""For so many shapes of inputs the prepared calls are kept."""


class VirtualMachine(Executor):
    """Runs a program of kind "vm".

    Args:
        program: its form is told above.
        constants: names and storage, which must stay as they are.
        functions: what the program calls, by name: compiled functions, or any that take numpy arrays, and then sizes.
    Raises:
        RunError: the program is malformed, or calls what is not there.
    """

    kind = "vm"

    def __init__(self, program: dict[str, Any], constants: NamedArrays, functions: Functions) -> None:
        self._code: Code = read_code(program, len(constants), functions)
        super().__init__([_shown(s) for s in self._code.inputs], [_shown(s) for s in self._code.outputs], functions)
        self._constants = [a for _, a in constants]
        self._arena = empty(0)
        self._frames: OrderedDict[tuple[Shape, ...], tuple[Frame, Sequence[Shape]]] = OrderedDict()

    def _frame(self, arrays: Sequence[np.ndarray]) -> tuple[Frame, Sequence[Shape]]:
        key = tuple([a.shape for a in arrays])
        found = self._frames.get(key)
        if found is None:
            found = self._frames[key] = self._prepared(arrays)
            if len(self._frames) > FRAMES:
                self._frames.popitem(last=False)
        else:
            self._frames.move_to_end(key)
        return found

    def _prepared(self, arrays: Sequence[np.ndarray]) -> tuple[Frame, Sequence[Shape]]:
        """The frame for inputs of these shapes."""
        sizes = self._sizes(arrays)
        outputs = [_extents(s.shape, sizes, f"output {i}") for i, s in enumerate(self._code.outputs)]
        layout = _Layout(self._code, sizes, [a.shape for a in arrays], outputs)
        if layout.pool.nbytes > self._arena.nbytes:
            self._frames.clear()  # they work on the old arena
            self._arena = empty(layout.pool.nbytes)
        return Frame(layout.places, layout.steps, layout.segments, self._constants, self._arena, self._functions), outputs

    def _sizes(self, arrays: Sequence[np.ndarray]) -> dict[str, int]:
        """The sizes that the inputs have; RunError if they contradict each other or the requirements of the program."""
        sizes: dict[str, int] = {}
        for ins in self._code.entry:
            if ins[0] == "require":
                if not holds(ins[1], sizes):
                    raise RunError(f"the program requires {shown_condition(ins[1])}, and the inputs have {_assigned(sizes)}")
                continue
            i, axis = (ins[2], ins[3]) if ins[0] == "size" else (ins[1], ins[2])
            given = arrays[i].shape[axis]
            if ins[0] == "size":
                if given < 1:
                    raise self._wrong_shape(i, arrays[i], f", and {ins[1]} must be 1 or more")
                sizes[ins[1]] = given
            elif given != evaluate(ins[3], sizes):
                named = f" where {_assigned(sizes)}" if isinstance(ins[3], (str, list)) else ""
                raise self._wrong_shape(i, arrays[i], f", expected {evaluate(ins[3], sizes)} at axis {axis}{named}")
        return sizes


class _Layout:
    """Places of all registers and calls in segments, for one assignment of sizes."""

    def __init__(self, code: Code, sizes: dict[str, int], inputs: Sequence[Shape], outputs: Sequence[Shape]) -> None:
        self._code, self._sizes, self._inputs, self._outputs = code, sizes, inputs, outputs
        self.pool = MemoryPool()
        self.places: list[Place] = []
        self.steps: list[Step] = []
        self.segments: list[Segment] = []
        self._registers: dict[int, int] = {}
        for k, block in enumerate(code.blocks):
            first = len(self.steps)
            for at in range(block.first, block.last):
                self._instruction(at, code.body[at])
            condition = None if block.condition is None else self._registers[block.condition]
            if condition is not None and (self.places[condition].dtype != "bool" or nbytes("bool", self.places[condition].shape) != 1):
                raise RunError(f"the condition of block {k} of the program is not one bool")
            self.segments.append(Segment(tuple(range(first, len(self.steps))), condition, block.then, block.otherwise))

    def _instruction(self, at: int, ins: Instruction) -> None:
        what = f"instruction {at} ({ins[0]})"
        op = ins[0]
        if op == "call":
            step = Step(ins[1], self._numbers(ins[2]), self._numbers(ins[3]), tuple([evaluate(e, self._sizes) for e in ins[4]]))
            self.steps.append(checked_step(step, self.places, what))
        elif op == "copy":
            step = Step(COPY, self._numbers([ins[2]]), self._numbers([ins[1]]))
            self.steps.append(checked_step(step, self.places, what))
        elif op == "free":
            place = self.places[self._registers[ins[1]]]
            self.pool.give(place.number, nbytes(place.dtype, place.shape))
        elif op in ("input", "output", "constant", "alloc", "view"):
            self._registers[ins[1]] = len(self.places)
            self.places.append(self._place(ins, what))

    def _place(self, ins: Instruction, what: str) -> Place:
        op, _, *rest = ins
        if op == "input":
            return Place(INPUT, rest[0], self._code.inputs[rest[0]].dtype, self._inputs[rest[0]])
        if op == "output":
            return Place(OUTPUT, rest[0], self._code.outputs[rest[0]].dtype, self._outputs[rest[0]])
        shape = _extents(rest[-1], self._sizes, what)
        if op == "constant":
            return Place(CONSTANT, rest[0], rest[1], shape)
        if op == "alloc":
            return Place(ARENA, self.pool.take(nbytes(rest[0], shape)), rest[0], shape)
        source = self.places[self._registers[rest[0]]]
        if nbytes(source.dtype, shape) != nbytes(source.dtype, source.shape):
            raise RunError(f"{what} of the program: {list(shape)} is no view of {list(source.shape)}")
        return Place(source.home, source.number, source.dtype, shape)

    def _numbers(self, registers: Sequence[int]) -> tuple[int, ...]:
        return tuple([self._registers[r] for r in registers])


def _extents(shape: Sequence[Any], sizes: dict[str, int], what: str) -> Shape:
    extents = tuple([evaluate(e, sizes) for e in shape])
    if any(e < 0 for e in extents):
        raise RunError(f"{what} of the program has the negative extents {list(extents)} where the inputs have {_assigned(sizes)}")
    return extents


def _shown(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.name, spec.dtype, tuple([e if isinstance(e, int) else shown(e) for e in spec.shape]))


def _assigned(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sizes.items()) or "no sizes"
