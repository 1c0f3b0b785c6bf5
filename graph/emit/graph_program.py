"""Emit programs of the graph executor, and of models compiled ahead of time, from lowered graph functions with static shapes.

The calls are one list.  For models compiled ahead of time it also has rows for branches and `while` loops (`codegen.cpu.model`), which the
graph executor does not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.codegen.cpu.model import AGAIN, ELSE, END, IF, LEAVE, LOOP
from tunesmith.graph.emit.lowered_form import (
    BranchStep,
    CallStep,
    CopyStep,
    InvokeStep,
    LoweredForm,
    SizeStep,
    Step,
    WhileStep,
    inner_steps,
    lowered_form,
    used,
)
from tunesmith.graph.emit.memory_plan import Lifetime, plan_buffers, plan_memory
from tunesmith.graph.emit.program_constants import ConstantTable
from tunesmith.graph.ir.node import Constant, Operand, Value
from tunesmith.graph.passes.place_functions import HOST
from tunesmith.ir.function import IRModule
from tunesmith.runtime.executor.bound_program import ARENA, CONSTANT, COPY, INPUT, OUTPUT
from tunesmith.runtime.executor.executable import VERSION, NamedArrays
from tunesmith.support.errors import BuildError
from tunesmith.support.unique_names import unique_names


def emit_aot_program(module: IRModule, name: str = "main") -> tuple[dict[str, Any], NamedArrays]:
    """The program of a graph function as `emit_graph_program` returns it, with rows for branches and `while` loops.

    Raises:
        BuildError: the function is not in lowered form, has dynamic shapes, or calls itself.
    """
    form = lowered_form(module, name)
    _check_static(form)
    return _Emitter(form).program()


def emit_graph_program(module: IRModule, name: str = "main") -> tuple[dict[str, Any], NamedArrays]:
    """The program of a graph function, in the format of `runtime.executor.graph_executor`.

    Args:
        module: the function in lowered form (`graph.emit.lowered_form`), with all functions that it calls.
        name: name of the function.
    Returns:
        The program and its constants, for a `runtime.executor.executable.Executable("graph", ...)` with the object code of the functions.
    Raises:
        BuildError: the function is not in lowered form, has branches, or has dynamic shapes.
    """
    form = lowered_form(module, name)
    _check_static(form)
    if any(isinstance(s, (BranchStep, WhileStep)) for s in form.steps):
        raise BuildError(
            f"{form.name} has branches or `while` loops, but the graph executor supports only sequences of calls. {_ADVICE}, or ahead of "
            'time: executor="aot"'
        )
    return _Emitter(form).program()


_ADVICE = 'Compile it for the virtual machine: executor="vm"'


def _check_static(form: LoweredForm) -> None:
    operands = [*form.params, *form.outputs, *[o for s in form.steps for o in used(s)]]
    symbolic = next((o for o in operands if not o.type.is_static), None)
    if symbolic is not None:
        raise BuildError(f"{form.name}: {symbolic!r} has a dynamic shape, but this executor supports only static shapes. {_ADVICE}")
    inner = [*form.steps]
    for s in inner:
        inner += inner_steps(s)
    if any(isinstance(s, InvokeStep) for s in inner):
        raise BuildError(f"{form.name} calls functions that call themselves, but this executor supports only lists of calls. {_ADVICE}")
    if any(isinstance(s, SizeStep) for s in inner):
        raise BuildError(f"{form.name} has shapes that depend on data, but this executor supports only static shapes. {_ADVICE}")


class _Emitter:
    def __init__(self, form: LoweredForm) -> None:
        self._form = form
        self._constants = ConstantTable()
        self._tensors: list[list[Any]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._inputs = {v: i for i, v in enumerate(form.params)}
        self._outputs = {v: i for i, v in enumerate(form.outputs)}
        self._places: dict[Value, int] = {}
        """Of the values that own storage: offset in the arena of the host, or buffer of a device."""
        self._arena, self._buffers = self._plan()

    def program(self) -> tuple[dict[str, Any], NamedArrays]:
        form = self._form
        calls = [row for s in form.steps for row in self._rows(s)]
        names = unique_names([v.name for v in form.params]), unique_names([v.name for v in form.outputs])
        inputs, outputs = [
            [[n, v.type.dtype, list(v.type.extents)] for n, v in zip(ns, values, strict=True)]
            for ns, values in zip(names, (form.params, form.outputs), strict=True)
        ]
        program = {"version": VERSION, "inputs": inputs, "outputs": outputs, "arena": self._arena, "tensors": self._tensors, "calls": calls}
        devices = {d: self._buffers.get(d, []) for d in sorted({*form.devices.values(), *self._buffers})}
        return program | ({"devices": devices} if devices else {}), self._constants.arrays()

    def _rows(self, step: Step) -> list[list[Any]]:
        if isinstance(step, CallStep):
            return [[step.function, self._all(step.args), self._all(step.results), [e.as_int() for e in step.sizes]]]
        if isinstance(step, CopyStep):
            return [[COPY, self._all([step.source]), self._all([step.target]), []]]
        if isinstance(step, BranchStep):
            start = [IF, self._all([step.condition]), [], []]
            then, otherwise = [[row for s in steps for row in self._rows(s)] for steps in (step.then, step.otherwise)]
            return [start, *then, [ELSE, [], [], []], *otherwise, [END, [], [], []]]
        assert isinstance(step, WhileStep)
        decide, body = [[row for s in steps for row in self._rows(s)] for steps in (step.decide, step.body)]
        return [[LOOP, [], [], []], *decide, [LEAVE, self._all([step.condition]), [], []], *body, [AGAIN, [], [], []]]

    def _plan(self) -> tuple[int, dict[str, list[int]]]:
        """Place the values that own storage; returns the size of the arena, and the sizes of the buffers of each device."""
        found = _Lifetimes(self._form)
        lifetimes = {v: life for v, life in found.all().items() if v not in self._inputs and v not in self._outputs}
        on: dict[str, list[Value]] = {}
        for v in lifetimes:
            on.setdefault(self._form.device_of(v), []).append(v)
        arena, buffers = 0, {}
        for device, values in on.items():
            lives = [Lifetime(v.type.nbytes, *lifetimes[v]) for v in values]
            if device == HOST:
                offsets, arena = plan_memory(lives)
            else:
                offsets, buffers[device] = plan_buffers(lives)
            self._places.update(zip(values, offsets, strict=True))
        return arena, buffers

    def _all(self, operands: tuple[Operand, ...] | list[Operand] | tuple[Value, ...] | list[Value]) -> list[int]:
        """The indices of the tensors in the tensor table; tensors are added at their first use."""
        return [self._number(o) for o in operands]

    def _number(self, operand: Operand) -> int:
        device = self._form.device_of(operand)
        key = (*self._location(self._form.storage_of(operand)), operand.type.dtype, operand.type.extents, device)
        if key not in self._numbers:
            self._numbers[key] = len(self._tensors)
            self._tensors.append([*key[:3], list(operand.type.extents), *([] if device == HOST else [device])])
        return self._numbers[key]

    def _location(self, owner: Operand) -> tuple[str, int]:
        if isinstance(owner, Constant):
            return CONSTANT, self._constants.number(owner)
        if owner in self._inputs:
            return INPUT, self._inputs[owner]
        if owner in self._outputs:
            return OUTPUT, self._outputs[owner]
        return ARENA, self._places[owner]


class _Lifetimes:
    """The first and the last use of each owner of storage, as numbers of steps, inner ones included.

    A value that a `while` loop uses, and that is also used outside of it, lives as long as the loop.
    """

    def __init__(self, form: LoweredForm) -> None:
        self._form = form
        self._count = 0
        self._uses: dict[Value, list[int]] = {}
        self._loops: list[tuple[int, int]] = []
        for s in form.steps:
            self._step(s)

    def all(self) -> dict[Value, tuple[int, int]]:
        return {v: self._life(uses) for v, uses in self._uses.items()}

    def _life(self, uses: list[int]) -> tuple[int, int]:
        first, last = uses[0], uses[-1]
        for start, end in self._loops:  # inner loops first
            if any(start <= k <= end for k in uses) and not start <= first <= last <= end:
                first, last = min(first, start), max(last, end)
        return first, last

    def _step(self, s: Step) -> None:
        start = self._count
        if isinstance(s, BranchStep):
            self._use([s.condition, *s.results])
            for inner in inner_steps(s):
                self._step(inner)
            self._use(s.results)
        elif isinstance(s, WhileStep):
            self._use(s.results)
            first = self._count
            for inner in s.decide:
                self._step(inner)
            self._use([s.condition])
            for inner in s.body:
                self._step(inner)
            self._loops.append((first, self._count))
            self._count += 1
            self._use(s.results)
        else:
            self._use(used(s))
        assert self._count > start

    def _use(self, operands: Sequence[Operand]) -> None:
        for owner in map(self._form.storage_of, operands):
            if isinstance(owner, Value):
                self._uses.setdefault(owner, []).append(self._count)
        self._count += 1
