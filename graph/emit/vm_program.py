"""Emit programs of the virtual machine, with constants, from lowered graph functions.

Memory is allocated immediately before the step that writes it and freed after the last step that uses it; the result of a branch is
allocated before the branch.  Index expressions have the format of `runtime.executor.index_program`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
from tunesmith.graph.emit.program_constants import ConstantTable
from tunesmith.graph.ir.node import Constant, Operand, TensorType, Value
from tunesmith.graph.passes.place_functions import HOST
from tunesmith.ir.expr import Binary, Const, Expr, IsNegative, Not
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Atom, Op, Poly, Var, poly
from tunesmith.runtime.executor.executable import VERSION, NamedArrays
from tunesmith.support.errors import BuildError
from tunesmith.support.unique_names import unique_names


def emit_vm_program(module: IRModule, name: str = "main") -> tuple[dict[str, Any], NamedArrays]:
    """The program of a graph function, in the format of `runtime.executor.virtual_machine`.

    Args:
        module: the function in lowered form (`graph.emit.lowered_form`), with all functions that it calls.
        name: name of the function.
    Returns:
        The program and its constants, for a `runtime.executor.executable.Executable("vm", ...)` with the object code of the functions.
    Raises:
        BuildError: the function is not in lowered form, or a size is not an extent of a parameter by itself.
    """
    constants = ConstantTable()
    program = {"version": VERSION, **_emitted(module, name, constants)}
    functions: dict[str, Any] = {}
    while missing := sorted({f for p in (program, *functions.values()) for f in _invoked(p)} - set(functions)):
        functions.update({f: _emitted(module, f, constants) for f in missing})
    return program | ({"functions": functions} if functions else {}), constants.arrays()


def _emitted(module: IRModule, name: str, constants: ConstantTable) -> dict[str, Any]:
    form = lowered_form(module, name)
    return _Emitter(form, _size_names(form), constants).program()


def _invoked(program: Mapping[str, Any]) -> set[str]:
    return {ins[1] for ins in program["code"] if ins[0] == "invoke"}


def index_data(p: Poly, names: Mapping[Var, str]) -> Any:
    """Serialise an index expression.  BuildError if a variable has no name."""
    terms = [_term([*([c] if c != 1 or not m else []), *[_atom(a, names) for a in m]]) for m, c in p.terms]
    terms = [t for t in terms if not isinstance(t, int)] + [t for t in terms if isinstance(t, int)]
    return terms[0] if len(terms) == 1 else ["add", *terms] if terms else 0


def condition_data(c: Expr, names: Mapping[Var, str]) -> Any:
    """Serialise a condition on sizes; an index expression means that it is negative.  BuildError for other expressions."""
    if isinstance(c, (Poly, IsNegative)):
        return ["negative", index_data(c if isinstance(c, Poly) else c.index, names)]
    if isinstance(c, Binary) and c.op in ("and", "or"):
        return [c.op, condition_data(c.a, names), condition_data(c.b, names)]
    if isinstance(c, Not):
        return ["not", condition_data(c.a, names)]
    if isinstance(c, Const):
        return bool(c.value)
    raise BuildError(f"an assumption on sizes may contain comparisons of index expressions, and, or and not; got {type(c).__name__}")


def _term(factors: list[Any]) -> Any:
    return factors[0] if len(factors) == 1 else ["mul", *factors]


def _atom(a: Atom, names: Mapping[Var, str]) -> Any:
    if isinstance(a, Op):
        return [a.op, *[index_data(x, names) for x in a.args]]
    if not isinstance(a, Var) or a not in names:
        raise BuildError(f"the size {a!r} is unknown at run time: it is not an extent of a parameter. Add a parameter with this extent")
    return names[a]


def _size_names(form: LoweredForm) -> dict[Var, str]:
    """The names of the sizes, in the order in which they are extents of parameters, and then in which they are read."""
    found = dict.fromkeys([*_entry_sizes(form), *_read_sizes(form.steps)])
    return dict(zip(found, unique_names([v.name for v in found]), strict=True))


def _entry_sizes(form: LoweredForm) -> list[Var]:
    return [v for p in form.params for e in p.type.shape if (v := e.as_var()) is not None]


def _read_sizes(steps: Sequence[Step]) -> list[Var]:
    return [v for s in steps for v in ([s.size] if isinstance(s, SizeStep) else _read_sizes(inner_steps(s)))]


class _Emitter:
    def __init__(self, form: LoweredForm, names: Mapping[Var, str], constants: ConstantTable) -> None:
        self._form, self._names = form, names
        self._code: list[list[Any]] = []
        self._constants = constants
        self._registers: dict[object, int] = {}
        """Register of each owner of storage, of each (owner, shape) of a view, and of each constant."""
        self._count = 0

    def program(self) -> dict[str, Any]:
        form = self._form
        self._entry()
        for i, v in enumerate(form.params):
            self._code.append(["input", self._new(v), i])
        known = set(_entry_sizes(form))
        for v in form.outputs:
            if all(e.vars <= known for e in v.type.shape):
                self._output(v)
        self._steps(form.steps)
        self._code.append(["ret"])
        data: dict[str, Any] = {"code": self._code}
        for key, values in (("inputs", form.params), ("outputs", form.outputs)):
            names = unique_names([v.name for v in values])
            data[key] = [[n, v.type.dtype, self._shape(v.type)] for n, v in zip(names, values, strict=True)]
        return data

    def _entry(self) -> None:
        """Emit the sizes of the inputs, checks of the other extents, and checks of the assumptions."""
        bound: set[Var] = set()
        checks: list[list[Any]] = []
        for i, p in enumerate(self._form.params):
            for axis, e in enumerate(p.type.shape):
                v = e.as_var()
                if v is not None and v not in bound:
                    bound.add(v)
                    self._code.append(["size", self._names[v], i, axis])
                else:
                    checks.append(["check", i, axis, self._index(e)])
        self._code += checks
        for c in self._form.assumptions:
            data = condition_data(c, self._names)
            if data is not True:
                self._code.append(["require", data])

    def _output(self, v: Value) -> None:
        self._code.append(["output", self._placed(v, self._form.device_of(v)), self._form.outputs.index(v)])

    def _steps(self, steps: Sequence[Step], kept: Operand | None = None) -> None:
        """Emit steps, with allocation and release of the memory that they write, other than that of `kept`."""
        last: dict[Operand, int] = {}
        for k, s in enumerate(steps):
            for o in used(s):
                last[self._form.storage_of(o)] = k
        live: list[Value] = []
        for k, s in enumerate(steps):
            results = (s.target,) if isinstance(s, CopyStep) else s.results
            live += [v for v in map(self._form.storage_of, results) if self._allocate(v) and isinstance(v, Value) and v is not kept]
            self._step(s)
            self._code += [["free", self._registers[v]] for v in live if last[v] == k]
            live = [v for v in live if last[v] > k]

    def _allocate(self, owner: Operand) -> bool:
        """Allocate memory for an owner of storage, unless it is allocated already; returns whether it was allocated now."""
        if owner in self._registers or isinstance(owner, Constant):
            return False
        if owner in self._form.outputs and isinstance(owner, Value):
            self._output(owner)
            return False
        shape = self._shape(owner.type)
        self._code.append(["alloc", self._placed(owner, self._form.device_of(owner)), owner.type.dtype, shape])
        return True

    def _step(self, s: Step) -> None:
        if isinstance(s, CallStep):
            operands, results = [[self._register(o) for o in group] for group in (s.args, s.results)]
            self._code.append(["call", s.function, operands, results, [self._index(e) for e in s.sizes]])
        elif isinstance(s, InvokeStep):
            self._code.append(["invoke", s.function, *[[self._register(o) for o in group] for group in (s.args, s.results)]])
        elif isinstance(s, BranchStep):
            self._branch(s)
        elif isinstance(s, WhileStep):
            self._while(s)
        elif isinstance(s, SizeStep):
            self._code.append(["read", self._names[s.size], self._register(s.value)])
            if s.at_most is not None:
                self._code.append(["limit", self._names[s.size], self._index(s.at_most)])
        else:
            self._code.append(["copy", self._register(s.target), self._register(s.source)])

    def _branch(self, s: BranchStep) -> None:
        jump: list[Any] = ["if", self._register(s.condition), 0]
        self._code.append(jump)
        self._inside(s.then)
        if s.otherwise:
            end: list[Any] = ["goto", 0]
            self._code.append(end)
            jump[2] = len(self._code)
            self._inside(s.otherwise)
            end[1] = len(self._code)
        else:
            jump[2] = len(self._code)

    def _while(self, s: WhileStep) -> None:
        start, outside = len(self._code), dict(self._registers)
        self._steps(s.decide, kept=self._form.storage_of(s.condition))
        jump: list[Any] = ["if", self._register(s.condition), 0]
        self._code.append(jump)
        self._inside(s.body)
        self._code.append(["again", start])
        jump[2] = len(self._code)
        self._registers = outside

    def _inside(self, steps: Sequence[Step]) -> None:
        """Emit steps that may not run: registers that they define are not used after them."""
        outside = dict(self._registers)
        self._steps(steps)
        self._registers = outside

    def _register(self, operand: Operand) -> int:
        """The register of an operand; those of constants, views, and parameters on a device are created at their first use."""
        form, owner = self._form, self._form.storage_of(operand)
        device = form.device_of(operand)
        root: object = owner
        if isinstance(owner, Constant):
            root = "constant", self._constants.number(owner), operand.type, device
            if root not in self._registers:
                r = self._placed(root, device)
                self._code.append(["constant", r, self._constants.number(owner), operand.type.dtype, self._shape(operand.type)])
            return self._registers[root]
        if device != form.device_of(owner):  # the executor copies a parameter to the device
            root = owner, device
            if root not in self._registers:
                self._code.append(["input", self._placed(root, device), form.params.index(owner)])
        key = root if owner.type.shape == operand.type.shape else (root, operand.type.shape)
        if key not in self._registers:
            source = self._registers[root]
            self._code.append(["view", self._new(key), source, self._shape(operand.type)])
        return self._registers[key]

    def _placed(self, key: object, device: str) -> int:
        """A new register on a device."""
        r = self._new(key)
        if device != HOST:
            self._code.append(["place", r, device])
        return r

    def _new(self, key: object) -> int:
        self._registers[key] = self._count
        self._count += 1
        return self._registers[key]

    def _index(self, e: Poly) -> Any:
        return index_data(poly(e), self._names)

    def _shape(self, t: TensorType) -> list[Any]:
        return [self._index(e) for e in t.shape]
