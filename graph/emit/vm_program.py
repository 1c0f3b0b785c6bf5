"""emit_vm_program: a lowered graph function becomes a program of the virtual machine and its constants.

Memory is allocated just before the step that writes it and freed behind the last that uses it; a value that branches compute is
allocated before them.  Index expressions are written in the form of `runtime.executor.index_program`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunesmith.graph.emit.lowered_form import BranchStep, CallForm, CallStep, Step, lowered_form, used
from tunesmith.graph.emit.program_constants import ConstantTable, unique_names
from tunesmith.graph.ir.node import Constant, Operand, TensorType, Value
from tunesmith.ir.expr import Binary, Const, Expr, IsNegative, Not
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Atom, Op, Poly, Var, poly
from tunesmith.runtime.executor.executable import VERSION, NamedArrays
from tunesmith.support.errors import BuildError


def emit_vm_program(module: IRModule, name: str = "main") -> tuple[dict[str, Any], NamedArrays]:
    """The program of a graph function; its form is told in `runtime.executor.virtual_machine`.

    Args:
        module: the function in call form (`graph.emit.lowered_form`), with all functions that it calls.
        name: of the function.
    Returns:
        The program and its constants: with object code of the functions they make a `runtime.executor.executable.Executable("vm", ...)`.
    Raises:
        BuildError: the function is not in call form, or a size is the extent of no parameter.
    """
    form = lowered_form(module, name)
    names = _size_names(form)
    return _Emitter(form, names).program()


def index_data(p: Poly, names: Mapping[Var, str]) -> Any:
    """An index expression as data.  BuildError if a variable has no name."""
    terms = [_term([*([c] if c != 1 or not m else []), *[_atom(a, names) for a in m]]) for m, c in p.terms]
    terms = [t for t in terms if not isinstance(t, int)] + [t for t in terms if isinstance(t, int)]
    return terms[0] if len(terms) == 1 else ["add", *terms] if terms else 0


def condition_data(c: Expr, names: Mapping[Var, str]) -> Any:
    """A condition on sizes as data; an index expression means that it is negative.  BuildError if it is of another kind."""
    if isinstance(c, (Poly, IsNegative)):
        return ["negative", index_data(c if isinstance(c, Poly) else c.index, names)]
    if isinstance(c, Binary) and c.op in ("and", "or"):
        return [c.op, condition_data(c.a, names), condition_data(c.b, names)]
    if isinstance(c, Not):
        return ["not", condition_data(c.a, names)]
    if isinstance(c, Const):
        return bool(c.value)
    raise BuildError(f"an assumption on sizes is made of comparisons of index expressions, and, or and not; got {type(c).__name__}")


def _term(factors: list[Any]) -> Any:
    return factors[0] if len(factors) == 1 else ["mul", *factors]


def _atom(a: Atom, names: Mapping[Var, str]) -> Any:
    if isinstance(a, Op):
        return [a.op, *[index_data(x, names) for x in a.args]]
    if not isinstance(a, Var) or a not in names:
        raise BuildError(f"the size {a!r} cannot be known at a call: it is the extent of no parameter. Give a parameter this extent")
    return names[a]


def _size_names(form: CallForm) -> dict[Var, str]:
    """Names of the sizes, in the order of the parameters that have them as extents."""
    found = dict.fromkeys([v for p in form.params for e in p.type.shape if (v := e.as_var()) is not None])
    return dict(zip(found, unique_names([v.name for v in found]), strict=True))


class _Emitter:
    def __init__(self, form: CallForm, names: Mapping[Var, str]) -> None:
        self._form, self._names = form, names
        self._code: list[list[Any]] = []
        self._constants = ConstantTable()
        self._registers: dict[object, int] = {}
        """Homes of their own, and (home, shape) for views."""

    def program(self) -> tuple[dict[str, Any], NamedArrays]:
        form = self._form
        self._entry()
        for op, values in (("input", form.params), ("output", form.outputs)):
            for i, v in enumerate(values):
                self._code.append([op, self._new(v), i])
        self._steps(form.steps)
        self._code.append(["ret"])
        data: dict[str, Any] = {"version": VERSION, "code": self._code}
        for key, values in (("inputs", form.params), ("outputs", form.outputs)):
            names = unique_names([v.name for v in values])
            data[key] = [[n, v.type.dtype, self._shape(v.type)] for n, v in zip(names, values, strict=True)]
        return data, self._constants.arrays()

    def _entry(self) -> None:
        """Sizes from the inputs, checks of their other extents, and what callers must keep to."""
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

    def _steps(self, steps: Sequence[Step]) -> None:
        """Code of steps, and of the life of what is computed by them."""
        last: dict[Operand, int] = {}
        for k, s in enumerate(steps):
            for o in used(s):
                last[self._form.home(o)] = k
        mine: list[Value] = []
        for k, s in enumerate(steps):
            if isinstance(s, (CallStep, BranchStep)):
                mine += [v for v in map(self._form.home, s.results) if self._allocated(v) and isinstance(v, Value)]
            self._step(s)
            self._code += [["free", self._registers[v]] for v in mine if last[v] == k]
            mine = [v for v in mine if last[v] > k]

    def _allocated(self, home: Operand) -> bool:
        """Allocate memory for a home that has none yet."""
        if home in self._registers or isinstance(home, Constant):
            return False
        shape = self._shape(home.type)
        self._code.append(["alloc", self._new(home), home.type.dtype, shape])
        return True

    def _step(self, s: Step) -> None:
        if isinstance(s, CallStep):
            operands, results = [[self._register(o) for o in many] for many in (s.args, s.results)]
            self._code.append(["call", s.function, operands, results, [self._index(e) for e in s.sizes]])
        elif isinstance(s, BranchStep):
            self._branch(s)
        else:
            self._code.append(["copy", self._register(s.target), self._register(s.source)])

    def _branch(self, s: BranchStep) -> None:
        jump: list[Any] = ["if", self._register(s.condition), 0]
        self._code.append(jump)
        self._steps(s.then)
        if s.otherwise:
            end: list[Any] = ["goto", 0]
            self._code.append(end)
            jump[2] = len(self._code)
            self._steps(s.otherwise)
            end[1] = len(self._code)
        else:
            jump[2] = len(self._code)

    def _register(self, operand: Operand) -> int:
        """The register of an operand; of constants and views it is made when they are first used."""
        home = self._form.home(operand)
        if isinstance(home, Constant):
            key: object = ("constant", self._constants.number(home), operand.type)
        else:
            key = home if home.type.shape == operand.type.shape else (home, operand.type.shape)
        found = self._registers.get(key)
        if found is not None:
            return found
        if isinstance(home, Constant):
            self._code.append(["constant", self._new(key), self._constants.number(home), operand.type.dtype, self._shape(operand.type)])
        else:
            source = self._registers[home]
            self._code.append(["view", self._new(key), source, self._shape(operand.type)])
        return self._registers[key]

    def _new(self, key: object) -> int:
        self._registers[key] = len(self._registers)
        return self._registers[key]

    def _index(self, e: Poly) -> Any:
        return index_data(poly(e), self._names)

    def _shape(self, t: TensorType) -> list[Any]:
        return [self._index(e) for e in t.shape]
