"""emit_graph_program: a lowered graph function with static shapes becomes a program of the graph executor and its constants."""

from __future__ import annotations

from typing import Any

from tunesmith.graph.emit.lowered_form import BranchStep, CallForm, CallStep, CopyStep, lowered_form, used
from tunesmith.graph.emit.memory_plan import Lifetime, plan_memory
from tunesmith.graph.emit.program_constants import ConstantTable, unique_names
from tunesmith.graph.ir.node import Constant, Operand, Value
from tunesmith.ir.function import IRModule
from tunesmith.runtime.executor.bound_program import ARENA, CONSTANT, COPY, INPUT, OUTPUT
from tunesmith.runtime.executor.executable import VERSION, NamedArrays
from tunesmith.support.errors import BuildError


def emit_graph_program(module: IRModule, name: str = "main") -> tuple[dict[str, Any], NamedArrays]:
    """The program of a graph function; its form is told in `runtime.executor.graph_executor`.

    Args:
        module: the function in call form (`graph.emit.lowered_form`), with all functions that it calls.
        name: of the function.
    Returns:
        The program and its constants: with object code of the functions they make a `runtime.executor.executable.Executable("graph", ...)`.
    Raises:
        BuildError: the function is not in call form, branches, or has a shape that is no number.
    """
    form = lowered_form(module, name)
    _check_static(form)
    return _Emitter(form).program()


def _check_static(form: CallForm) -> None:
    operands = [*form.params, *form.outputs, *[o for s in form.steps for o in used(s)]]
    symbolic = next((o for o in operands if not o.type.is_static), None)
    advice = 'Compile it for the virtual machine: executor="vm"'
    if symbolic is not None:
        raise BuildError(f"{form.name}: {symbolic!r} has sizes that are no numbers, and the graph executor takes static shapes. {advice}")
    if any(isinstance(s, BranchStep) for s in form.steps):
        raise BuildError(f"{form.name} branches, and the graph executor runs straight lists of calls. {advice}")


class _Emitter:
    def __init__(self, form: CallForm) -> None:
        self._form = form
        self._constants = ConstantTable()
        self._tensors: list[list[Any]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._inputs = {v: i for i, v in enumerate(form.params)}
        self._outputs = {v: i for i, v in enumerate(form.outputs)}
        self._offsets, self._arena = self._planned()

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
        return program, self._constants.arrays()

    def _planned(self) -> tuple[dict[Value, int], int]:
        """Offsets of the values that have memory of their own, and the size of the arena."""
        lives: dict[Value, tuple[int, int]] = {}
        for k, s in enumerate(self._form.steps):
            for home in map(self._form.home, used(s)):
                if isinstance(home, Value) and home not in self._inputs and home not in self._outputs:
                    lives[home] = lives.get(home, (k, k))[0], k
        plan = plan_memory([Lifetime(v.type.nbytes, first, last) for v, (first, last) in lives.items()])
        return dict(zip(lives, plan.offsets, strict=True)), plan.nbytes

    def _all(self, operands: tuple[Operand, ...] | list[Operand] | tuple[Value, ...] | list[Value]) -> list[int]:
        """Numbers of the tensors, which are listed when they are first used."""
        return [self._number(o) for o in operands]

    def _number(self, operand: Operand) -> int:
        place = (*self._place(self._form.home(operand)), operand.type.dtype, operand.type.extents)
        if place not in self._numbers:
            self._numbers[place] = len(self._tensors)
            self._tensors.append([*place[:3], list(operand.type.extents)])
        return self._numbers[place]

    def _place(self, home: Operand) -> tuple[str, int]:
        if isinstance(home, Constant):
            return CONSTANT, self._constants.number(home)
        if home in self._inputs:
            return INPUT, self._inputs[home]
        if home in self._outputs:
            return OUTPUT, self._outputs[home]
        return ARENA, self._offsets[home]
