"""Call form: a lowered graph function as steps over memory, which is what both emitters of programs start from.

A function is in call form when its bindings call functions of the module, view tensors (an operator with `view=True`), or branch.
Here calls of graph functions are replaced by what those do, and it is settled in whose memory each value lies: a view lies in that of
its operand; a result of the function, or of a branch, is computed where it is wanted if some call computes it, and copied otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, CallFunction, If, Operand, Region, TensorType, Value
from tunesmith.graph.ir.node import Call as OperatorCall
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.expr import Binary, Const, Expr, IsNegative, Not
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Poly, Var, substitute
from tunesmith.support.errors import BuildError


@dataclass(frozen=True, eq=False, slots=True)
class CallStep:
    """A call of a TIR function, or of one of an external code generator: it reads `args`, writes `results`, and takes `sizes`."""

    function: str
    args: tuple[Operand, ...]
    results: tuple[Value, ...]
    sizes: tuple[Poly, ...]


@dataclass(frozen=True, eq=False, slots=True)
class CopyStep:
    """The elements of `source` are copied to the memory of `target`."""

    source: Operand
    target: Value


@dataclass(frozen=True, eq=False, slots=True)
class BranchStep:
    """One of two lists of steps; both write `results`."""

    condition: Operand
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]
    results: tuple[Value, ...]


Step = CallStep | CopyStep | BranchStep


@dataclass(eq=False, slots=True)
class CallForm:
    """A function in steps.

    Attributes:
        name: of the function.
        params: its parameters.
        outputs: memory of its results: values that are nobody's operands.
        steps: what it does.
        homes: value -> the operand in whose memory it lies; values that are no keys have their own.
        assumptions: conditions on sizes; an index expression means that it is negative.
    """

    name: str
    params: tuple[Value, ...]
    outputs: tuple[Value, ...] = ()
    steps: tuple[Step, ...] = ()
    reuse_levels: dict[Value, Operand] = field(default_factory=dict)
    assumptions: tuple[Expr, ...] = ()

    def home(self, operand: Operand) -> Operand:
        """In whose memory it lies: a parameter, an output, a constant, or a value with memory of its own."""
        while isinstance(operand, Value) and operand in self.reuse_levels:
            operand = self.reuse_levels[operand]
        return operand


def lowered_form(module: IRModule, name: str = "main") -> CallForm:
    """A graph function of the module in steps.

    Raises:
        BuildError: it is not in call form; the message says where.
    """
    func = module[name]
    if not isinstance(func, GraphFunc):
        raise BuildError(f"{name} is not a graph function but a {type(func).__name__}: executors run graph functions")
    form = CallForm(name, func.params, assumptions=func.assumptions)
    maker = _Maker(module, form)
    steps, results = maker.region(func.body, {}, {}, (name,))
    form.outputs = tuple([Value(r.name, r.type) for r in results])
    form.steps = maker.settled(steps, results, form.outputs)
    return form


def used(step: Step) -> list[Operand]:
    """All operands that a step reads or writes, in branches too."""
    if isinstance(step, CallStep):
        return [*step.args, *step.results]
    if isinstance(step, CopyStep):
        return [step.source, step.target]
    return [step.condition, *step.results, *[o for s in (*step.then, *step.otherwise) for o in used(s)]]


Env = Mapping[Value, Operand]
Sizes = Mapping[Var, Poly]


class _Maker:
    def __init__(self, module: IRModule, form: CallForm) -> None:
        self._module, self._form = module, form

    def settled(self, steps: Sequence[Step], results: Sequence[Operand], targets: Sequence[Value]) -> tuple[Step, ...]:
        """The steps with their results in the memory of the targets."""
        free = {v for s in steps if not isinstance(s, CopyStep) for v in s.results if v not in self._form.reuse_levels}
        copies = []
        for result, target in zip(results, targets, strict=True):
            home = self._form.home(result)
            if isinstance(home, Value) and home in free:
                free.remove(home)
                self._form.reuse_levels[home] = target
            else:
                copies.append(CopyStep(result, target))
        return (*steps, *copies)

    def region(self, region: Region, env: Env, sizes: Sizes, calls: tuple[str, ...]) -> tuple[list[Step], tuple[Operand, ...]]:
        """Steps and results of a region, its values replaced by those of `env`, and sizes by others; `calls` are the functions that it
        stands in, the innermost last."""
        known = dict(env)
        steps: list[Step] = []
        for b in region.bindings:
            args = [_bound(a, known) for a in b.operation.args]
            # An inlined body may come several times, and each time its values are others.
            results = b.results if not sizes and len(calls) == 1 else tuple([Value(v.name, _typed(v.type, sizes)) for v in b.results])
            known.update(zip(b.results, results, strict=True))
            if isinstance(b.operation, CallFunction):
                steps += self._call(b.operation, args, results, sizes, calls)
            elif isinstance(b.operation, If):
                steps.append(self._branch(b.operation, args[0], results, known, sizes, calls))
            else:
                self._view(b, b.operation, args, results)
        return steps, tuple([_bound(r, known) for r in region.results])

    def _call(
        self, call: CallFunction, args: Sequence[Operand], results: tuple[Value, ...], sizes: Sizes, calls: tuple[str, ...]
    ) -> list[Step]:
        callee = self._module.functions.get(call.function)
        if isinstance(callee, PrimFunc):
            if len(callee.params) != len(args) + len(results) + len(call.sizes):
                raise BuildError(
                    f"{self._form.name}: {call.function} has {len(callee.params)} parameters, and is called with {len(args)} operands, "
                    f"{len(results)} results and {len(call.sizes)} sizes"
                )
            return [CallStep(call.function, tuple(args), results, tuple([_sized(s, sizes) for s in call.sizes]))]
        if not isinstance(callee, GraphFunc):
            raise BuildError(f"{self._form.name} calls {call.function}, which is no function of the module")
        if callee.codegen is not None:
            return [CallStep(call.function, tuple(args), results, ())]
        if call.function in calls:
            raise BuildError(f"{self._form.name}: {' calls '.join((*calls, call.function))}: graph functions cannot call themselves")
        bound: dict[Var, Poly] = {}
        for a, p in zip(args, callee.params, strict=True):
            for given, extent in zip(a.type.shape, p.type.shape, strict=True):
                if (v := extent.as_var()) is not None:
                    bound.setdefault(v, given)
        self._form.assumptions += tuple([_assumed(c, bound) for c in callee.assumptions])
        steps, made = self.region(callee.body, dict(zip(callee.params, args, strict=True)), bound, (*calls, call.function))
        self._form.reuse_levels.update(zip(results, made, strict=True))
        return steps

    def _branch(
        self, branch: If, condition: Operand, results: tuple[Value, ...], known: Env, sizes: Sizes, calls: tuple[str, ...]
    ) -> BranchStep:
        sides = [self.region(region, known, sizes, calls) for region in (branch.then, branch.otherwise)]
        then, otherwise = [self.settled(steps, made, results) for steps, made in sides]
        return BranchStep(condition, then, otherwise, results)

    def _view(self, b: Binding, call: OperatorCall, args: Sequence[Operand], results: Sequence[Value]) -> None:
        if not GRAPH_OPERATORS.get(call.operator).view:
            raise BuildError(
                f"{self._form.name}: {b.results[0].name} is computed by the operator {call.operator}, not by a function of the module. "
                "Lower the graph first: operators must have become functions"
            )
        for r in results:
            self._form.reuse_levels[r] = args[0]


def _bound(operand: Operand, env: Env) -> Operand:
    return env[operand] if isinstance(operand, Value) and operand in env else operand


def _sized(p: Poly, sizes: Sizes) -> Poly:
    return substitute(p, sizes) if sizes else p


def _typed(t: TensorType, sizes: Sizes) -> TensorType:
    return TensorType(tuple([_sized(e, sizes) for e in t.shape]), t.dtype)


def _assumed(c: Expr, sizes: Sizes) -> Expr:
    """A condition with its sizes replaced."""
    if isinstance(c, Poly):
        return _sized(c, sizes)
    if isinstance(c, IsNegative):
        return IsNegative(_sized(c.index, sizes))
    if isinstance(c, Binary):
        return Binary(c.op, _assumed(c.a, sizes), _assumed(c.b, sizes))
    if isinstance(c, Not):
        return Not(_assumed(c.a, sizes))
    if isinstance(c, Const):
        return c
    raise BuildError(f"an assumption on sizes is made of comparisons of index expressions, and, or and not; got {type(c).__name__}")
