"""Emit programs of the graph executor, with constants, from lowered graph functions with static shapes."""

from __future__ import annotations

from typing import Any

from tunesmith.graph.emit.lowered_form import (
    BranchStep,
    CallStep,
    CopyStep,
    InvokeStep,
    LoweredForm,
    SizeStep,
    WhileStep,
    lowered_form,
    used,
)
from tunesmith.graph.emit.memory_plan import Lifetime, plan_buffers, plan_memory
from tunesmith.graph.emit.program_constants import ConstantTable, unique_names
from tunesmith.graph.ir.node import Constant, Operand, Value
from tunesmith.graph.passes.place_functions import HOST
from tunesmith.ir.function import IRModule
from tunesmith.runtime.executor.bound_program import ARENA, CONSTANT, COPY, INPUT, OUTPUT
from tunesmith.runtime.executor.executable import VERSION, NamedArrays
from tunesmith.support.errors import BuildError


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
    return _Emitter(form).program()


def _check_static(form: LoweredForm) -> None:
    operands = [*form.params, *form.outputs, *[o for s in form.steps for o in used(s)]]
    symbolic = next((o for o in operands if not o.type.is_static), None)
    advice = 'Compile it for the virtual machine: executor="vm"'
    if symbolic is not None:
        raise BuildError(f"{form.name}: {symbolic!r} has a dynamic shape, but the graph executor supports only static shapes. {advice}")
    if any(isinstance(s, (BranchStep, WhileStep)) for s in form.steps):
        raise BuildError(f"{form.name} has branches or `while` loops, but the graph executor supports only sequences of calls. {advice}")
    if any(isinstance(s, InvokeStep) for s in form.steps):
        raise BuildError(f"{form.name} calls functions that call themselves, but the graph executor supports only lists of calls. {advice}")
    if any(isinstance(s, SizeStep) for s in form.steps):
        raise BuildError(f"{form.name} has shapes that depend on data, but the graph executor supports only static shapes. {advice}")


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
        calls = []
        for s in form.steps:
            if isinstance(s, CallStep):
                calls.append([s.function, self._all(s.args), self._all(s.results), [e.as_int() for e in s.sizes]])
            elif isinstance(s, CopyStep):
                calls.append([COPY, self._all([s.source]), self._all([s.target]), []])
        names = unique_names([v.name for v in form.params]), unique_names([v.name for v in form.outputs])
        inputs, outputs = [
            [[n, v.type.dtype, list(v.type.extents)] for n, v in zip(ns, values, strict=True)]
            for ns, values in zip(names, (form.params, form.outputs), strict=True)
        ]
        program = {"version": VERSION, "inputs": inputs, "outputs": outputs, "arena": self._arena, "tensors": self._tensors, "calls": calls}
        devices = {d: self._buffers.get(d, []) for d in sorted({*form.devices.values(), *self._buffers})}
        return program | ({"devices": devices} if devices else {}), self._constants.arrays()

    def _plan(self) -> tuple[int, dict[str, list[int]]]:
        """Place the values that own storage; returns the size of the arena, and the sizes of the buffers of each device."""
        lifetimes: dict[Value, tuple[int, int]] = {}
        for k, s in enumerate(self._form.steps):
            for owner in map(self._form.storage_of, used(s)):
                if isinstance(owner, Value) and owner not in self._inputs and owner not in self._outputs:
                    lifetimes[owner] = lifetimes.get(owner, (k, k))[0], k
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
