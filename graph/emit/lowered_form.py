"""Convert lowered graph functions to steps with storage assignment, the input of both program emitters.

A function is in lowered form if its bindings call functions of the module, create views (an operator with `view=True`), transfer tensors
between devices, branch, or loop.
A loop becomes the steps of all its iterations, which call the same functions; a `while` loop becomes one step.  Calls of graph functions
are inlined, unless they call themselves, and each value is assigned its storage.  Views alias their operand.  A result of the function or
of a branch, and a value that a `while` loop carries, is computed directly in its storage if a call computes it, and copied otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tunesmith.graph.ir.calls import recursive_functions
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, CallFunction, If, Loop, Operand, ReadSize, Region, TensorType, Value, While
from tunesmith.graph.ir.node import Call as OperatorCall
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.graph.passes.place_functions import HOST, device_of
from tunesmith.graph.passes.store_rows import sizes_of_row
from tunesmith.ir.expr import Binary, Const, Expr, IsNegative, Not
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Poly, Var, poly, substitute
from tunesmith.support.errors import BuildError


@dataclass(frozen=True, eq=False, slots=True)
class CallStep:
    """A call of a TIR function or an external function; it reads `args`, writes `results`, and takes `sizes`."""

    function: str
    args: tuple[Operand, ...]
    results: tuple[Value, ...]
    sizes: tuple[Poly, ...]


@dataclass(frozen=True, eq=False, slots=True)
class InvokeStep:
    """A call of a graph function that calls itself; it reads `args` and writes `results`."""

    function: str
    args: tuple[Operand, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True, eq=False, slots=True)
class CopyStep:
    """A copy of the elements of `source` to the storage of `target`."""

    source: Operand
    target: Value


@dataclass(frozen=True, eq=False, slots=True)
class BranchStep:
    """A choice between two lists of steps; both write `results`."""

    condition: Operand
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True, eq=False, slots=True)
class WhileStep:
    """Steps that are repeated as long as a condition holds.

    Attributes:
        decide: steps that compute the condition, in each iteration.
        condition: a bool[] of the host; the loop ends if it does not hold.
        body: steps that write the next `results`.
        results: the storage of the carried values, which is written before the loop.
    """

    decide: tuple[Step, ...]
    condition: Operand
    body: tuple[Step, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True, eq=False, slots=True)
class SizeStep:
    """The reading of a size from an int64[] of the host."""

    value: Operand
    size: Var
    at_most: Poly | None = None
    results: tuple[Value, ...] = ()


Step = CallStep | InvokeStep | CopyStep | BranchStep | WhileStep | SizeStep


@dataclass(eq=False, slots=True)
class LoweredForm:
    """A function as a list of steps.

    Attributes:
        name: name of the function.
        params: parameters.
        outputs: storage of the results: values that no step reads.
        steps: the steps.
        aliases: value -> the operand that it shares storage with; all other values own their storage.
        devices: value -> the kind of device that holds it; all others are in host memory.  A value on a device that is an alias of a
            parameter or a constant in host memory is a copy of it, which the executor makes.
        assumptions: conditions on sizes; an index expression means that it is negative.
    """

    name: str
    params: tuple[Value, ...]
    outputs: tuple[Value, ...] = ()
    steps: tuple[Step, ...] = ()
    aliases: dict[Value, Operand] = field(default_factory=dict)
    devices: dict[Value, str] = field(default_factory=dict)
    assumptions: tuple[Expr, ...] = ()

    def storage_of(self, operand: Operand) -> Operand:
        """The owner of the storage of an operand: a parameter, an output, a constant, or a computed value."""
        while isinstance(operand, Value) and operand in self.aliases:
            operand = self.aliases[operand]
        return operand

    def device_of(self, operand: Operand) -> str:
        """The kind of device whose memory holds an operand, `HOST` for host memory."""
        return self.devices.get(operand, HOST) if isinstance(operand, Value) else HOST


def lowered_form(module: IRModule, name: str = "main") -> LoweredForm:
    """Convert a graph function of the module to steps.

    Raises:
        BuildError: the function is not in lowered form; the message shows the location.
    """
    func = module[name]
    if not isinstance(func, GraphFunc):
        raise BuildError(f"{name} is not a graph function but a {type(func).__name__}: programs are emitted from graph functions")
    form = LoweredForm(name, func.params, assumptions=func.assumptions)
    lowering = _Lowering(module, form)
    steps, results = lowering.region(func.body, {}, {}, (name,))
    form.outputs = tuple([Value(n, r.type) for n, r in zip(func.result_names, results, strict=True)])
    form.steps = lowering.assign_results(steps, results, form.outputs)
    return form


def used(step: Step) -> list[Operand]:
    """All operands that a step reads or writes, including those in branches."""
    if isinstance(step, (CallStep, InvokeStep)):
        return [*step.args, *step.results]
    if isinstance(step, CopyStep):
        return [step.source, step.target]
    if isinstance(step, SizeStep):
        return [step.value]
    return [step.condition, *step.results, *[o for s in inner_steps(step) for o in used(s)]]


def inner_steps(step: Step) -> tuple[Step, ...]:
    """The steps inside a branch or a loop."""
    if isinstance(step, BranchStep):
        return (*step.then, *step.otherwise)
    return (*step.decide, *step.body) if isinstance(step, WhileStep) else ()


Env = Mapping[Value, Operand]
Sizes = Mapping[Var, Poly]


class _Lowering:
    def __init__(self, module: IRModule, form: LoweredForm) -> None:
        self._module, self._form = module, form
        self._recursive = recursive_functions(module)

    def assign_results(self, steps: Sequence[Step], results: Sequence[Operand], targets: Sequence[Value]) -> tuple[Step, ...]:
        """Assign the storage of the targets to the results; returns the steps, followed by the necessary copies."""
        free = {v for s in steps if not isinstance(s, CopyStep) for v in s.results if v not in self._form.aliases}
        copies = []
        for result, target in zip(results, targets, strict=True):
            owner = self._form.storage_of(result)
            if isinstance(owner, Value) and owner in free:
                free.remove(owner)
                self._form.aliases[owner] = target
            else:
                copies.append(CopyStep(result, target))
            self._place(target, self._form.device_of(result))
        return (*steps, *copies)

    def region(self, region: Region, env: Env, sizes: Sizes, calls: tuple[str, ...]) -> tuple[list[Step], tuple[Operand, ...]]:
        """The steps and results of a region, with values replaced by `env` and sizes by `sizes`.

        `calls` are the enclosing functions, the innermost last.
        """
        known, sizes = dict(env), dict(sizes)
        steps: list[Step] = []
        for b in region.bindings:
            args = [_bound(a, known) for a in b.operation.args]
            # A body may be inlined several times, so each instance needs new values.
            results = b.results if not sizes and len(calls) == 1 else tuple([Value(v.name, _typed(v.type, sizes)) for v in b.results])
            known.update(zip(b.results, results, strict=True))
            if isinstance(b.operation, CallFunction):
                steps += self._call(b.operation, args, results, sizes, calls)
            elif isinstance(b.operation, If):
                steps.append(self._branch(b.operation, args[0], results, known, sizes, calls))
            elif isinstance(b.operation, Loop):
                steps += self._loop(b.operation, args, results, known, sizes, calls)
            elif isinstance(b.operation, While):
                steps += self._while(b.operation, args, results, known, sizes, calls)
            elif isinstance(b.operation, ReadSize):
                size, most = Var(b.operation.size.name), b.operation.at_most  # a new one, because a body may be inlined several times
                steps.append(SizeStep(args[0], size, None if most is None else substitute(most, sizes)))
                sizes[b.operation.size] = poly(size)
            elif b.operation.operator == "transfer":
                steps += self._transfer(args[0], results[0], b.operation.attr("device"))
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
                    f"{self._form.name}: {call.function} has {len(callee.params)} parameters, but is called with {len(args)} operands, "
                    f"{len(results)} results and {len(call.sizes)} sizes"
                )
            for r in results:
                self._place(r, device_of(callee))
            return [CallStep(call.function, tuple(args), results, tuple([_sized(s, sizes) for s in call.sizes]))]
        if not isinstance(callee, GraphFunc):
            raise BuildError(f"{self._form.name} calls {call.function}, which is not a function of the module")
        if callee.codegen is not None:
            return [CallStep(call.function, tuple(args), results, ())]
        if call.function in self._recursive:
            return [InvokeStep(call.function, tuple(args), results)]
        bound: dict[Var, Poly] = {}
        for a, p in zip(args, callee.params, strict=True):
            for given, extent in zip(a.type.shape, p.type.shape, strict=True):
                if (v := extent.as_var()) is not None:
                    bound.setdefault(v, given)
        self._form.assumptions += tuple([_assumed(c, bound) for c in callee.assumptions])
        steps, made = self.region(callee.body, dict(zip(callee.params, args, strict=True)), bound, (*calls, call.function))
        self._alias(results, made)
        return steps

    def _branch(
        self, branch: If, condition: Operand, results: tuple[Value, ...], known: Env, sizes: Sizes, calls: tuple[str, ...]
    ) -> BranchStep:
        branches = [self.region(region, known, sizes, calls) for region in (branch.then, branch.otherwise)]
        then, otherwise = [self.assign_results(steps, made, results) for steps, made in branches]
        return BranchStep(condition, then, otherwise, results)

    def _loop(
        self, loop: Loop, initial: Sequence[Operand], results: tuple[Value, ...], known: Env, sizes: Sizes, calls: tuple[str, ...]
    ) -> list[Step]:
        """The steps of all iterations; each stores its rows in the storage of the results."""
        count = len(loop.params)
        if len(loop.stores) != len(results) - count:
            raise BuildError(
                f"{self._form.name}: the loop for {results[0].name} has no functions that store its rows. "
                "Lower the graph first, for example with graph.passes.legalise"
            )
        steps: list[Step] = []
        carried = tuple(initial)
        for t in range(loop.trips):
            env = {**known, **dict(zip(loop.params, carried, strict=True))}
            more, made = self.region(loop.body, env, {**sizes, loop.index: poly(t)}, calls)
            rows = zip(loop.stores, made[count:], results[count:], loop.body.results[count:], strict=True)
            for store, row, target, declared in rows:
                own = [_sized(poly(v), sizes) for v in sizes_of_row(declared.type)]
                more.append(CallStep(store, (row,), (target,), (poly(t), *own)))
            steps += more
            carried = made[:count]
        self._alias(results[:count], carried)
        return steps

    def _while(
        self, loop: While, initial: Sequence[Operand], results: tuple[Value, ...], known: Env, sizes: Sizes, calls: tuple[str, ...]
    ) -> list[Step]:
        """Copies of the initial values to the storage of the carried ones, and the loop."""
        for v, o in zip(results, initial, strict=True):
            self._place(v, self._form.device_of(o))
        env = {**known, **dict(zip(loop.params, results, strict=True))}
        decide, (condition,) = self.region(loop.condition, env, sizes, calls)
        body, following = self.region(loop.body, env, sizes, calls)
        body = self._carry(body, following, results)
        return [*[CopyStep(o, v) for o, v in zip(initial, results, strict=True)], WhileStep(tuple(decide), condition, tuple(body), results)]

    def _first_writes(self, steps: Sequence[Step]) -> dict[Value, int]:
        """Of the owners of storage that calls, branches and loops write: the first step that writes it, which may copy an initial value."""
        first: dict[Operand, int] = {}
        computed: set[Value] = set()
        for k, s in enumerate(steps):
            for v in (s.target,) if isinstance(s, CopyStep) else s.results:
                first.setdefault(self._form.storage_of(v), k)
                if not isinstance(s, CopyStep) and v not in self._form.aliases:
                    computed.add(v)
        return {v: first[v] for v in computed}

    def _carry(self, steps: Sequence[Step], following: Sequence[Operand], carried: Sequence[Value]) -> list[Step]:
        """The steps of an iteration, which store the next carried values: a call does so itself if no later step reads the old ones."""
        owners = [self._form.storage_of(o) for o in following]
        last_use = {self._form.storage_of(o): k for k, s in enumerate(steps) for o in used(s)}
        made = self._first_writes(steps)
        before: list[Step] = []
        after: list[Step] = []
        for o, owner, target in zip(following, owners, carried, strict=True):
            if owner is target:
                continue
            at = made.pop(owner, None) if isinstance(owner, Value) else None
            if at is not None and target not in owners and last_use.get(target, -1) < at:
                self._form.aliases[owner] = target  # type: ignore[index]  # a made owner is a Value
            elif owner in carried:  # the copies after the steps may overwrite it
                kept = Value(target.name, target.type)
                self._place(kept, self._form.device_of(o))
                before.append(CopyStep(o, kept))
                after.append(CopyStep(kept, target))
            else:
                after.append(CopyStep(o, target))
        return [*steps, *before, *after]

    def _view(self, b: Binding, call: OperatorCall, args: Sequence[Operand], results: Sequence[Value]) -> None:
        if not GRAPH_OPERATORS.get(call.operator).view:
            raise BuildError(
                f"{self._form.name}: {b.results[0].name} is computed by the operator {call.operator}, not by a function of the module. "
                "Lower the graph first, for example with graph.passes.legalise"
            )
        for r in results:
            self._form.aliases[r] = args[0]
            self._place(r, self._form.device_of(args[0]))

    def _transfer(self, source: Operand, target: Value, device: str) -> list[Step]:
        """A copy to another device.  Parameters and constants are copied by the executor."""
        self._place(target, device)
        owner = self._form.storage_of(source)
        if isinstance(owner, Value) and owner not in self._form.params and self._form.device_of(source) != device:
            return [CopyStep(source, target)]
        self._form.aliases[target] = source
        return []

    def _alias(self, values: Sequence[Value], operands: Sequence[Operand]) -> None:
        """The values are the operands, in the memory of their devices."""
        self._form.aliases.update(zip(values, operands, strict=True))
        for v, o in zip(values, operands, strict=True):
            self._place(v, self._form.device_of(o))

    def _place(self, value: Value, device: str) -> None:
        if device != HOST:
            self._form.devices[value] = device


def _bound(operand: Operand, env: Env) -> Operand:
    return env[operand] if isinstance(operand, Value) and operand in env else operand


def _sized(p: Poly, sizes: Sizes) -> Poly:
    return substitute(p, sizes) if sizes else p


def _typed(t: TensorType, sizes: Sizes) -> TensorType:
    return TensorType(tuple([_sized(e, sizes) for e in t.shape]), t.dtype)


def _assumed(c: Expr, sizes: Sizes) -> Expr:
    """A condition with replaced sizes."""
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
    raise BuildError(f"an assumption on sizes may contain comparisons of index expressions, and, or and not; got {type(c).__name__}")
