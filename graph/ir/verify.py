"""Verify that a graph function is well formed; report the first violation with its location.

Every value is bound once, before its uses and in an enclosing region.  Stored types equal the inferred types.  Every size is an extent
of some parameter by itself, so that a call binds it, or is read from a tensor before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import (
    RESULT_NAMES,
    Attributes,
    Binding,
    Call,
    CallFunction,
    Constant,
    If,
    Loop,
    Operand,
    ReadSize,
    Region,
    TensorType,
    Value,
    While,
)
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Param, Poly, Var, divisors, substitute
from tunesmith.ir.stmt import Evaluate
from tunesmith.ir.verify import verify as verify_tir
from tunesmith.support.errors import ScriptError, UserError

BOOL = TensorType((), "bool")
"""The type of a condition."""

SIZE = TensorType((), "int64")
"""The type of a tensor from which a size is read."""


def verify(func: GraphFunc, mod: Mapping[str, Any] | None = None) -> None:
    """Raise ScriptError with the location of the first violation if `func` is not well formed.

    Args:
        func: the function.
        mod: the module of the function; without it, only the form of function calls is checked.
    """
    if not isinstance(func, GraphFunc):
        raise ScriptError(f"graph.ir.verify takes a GraphFunc, got {type(func).__name__}")
    _Verifier(func, mod).function()


def sizes_of_call(func: GraphFunc, types: Iterable[TensorType], given: Sequence[Poly]) -> dict[Var, Poly]:
    """The sizes of `func` in a call with operands of these types and the sizes `given`; the numbers of both must match."""
    if func.is_primitive:
        return dict(zip(func.sizes, given, strict=True))
    sizes: dict[Var, Poly] = {}
    for p, t in zip(func.params, types, strict=True):
        for expected, extent in zip(p.type.shape, t.shape, strict=False):
            v = expected.as_var()
            if v is not None:
                sizes.setdefault(v, extent)
    return sizes


def infer(operator: str, types: Sequence[TensorType], attrs: Attributes) -> tuple[TensorType, ...]:
    """The result types of an operator, for unchecked operands and attributes.

    Raises:
        ScriptError: the operator does not exist, or the operands or attributes are invalid.
    """
    try:
        return GRAPH_OPERATORS.get(operator).infer(types, attrs)
    except ScriptError:
        raise
    except Exception as e:  # the expression of an operator may fail in any way for attributes of a wrong kind
        text = str(e) if isinstance(e, UserError) else f"{operator} cannot be applied: {type(e).__name__}: {e}"
        raise ScriptError(text) from e


def same_attribute(a: object, b: object) -> bool:
    """Whether two attribute values are the same; 1, 1.0 and True are distinct, all NaNs are equal."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(same_attribute(x, y) for x, y in zip(a, b, strict=True))
    return a == b or (a != a and b != b)


class _Verifier:
    """Verify one function; tracks the values in scope and the path to the current binding, for messages."""

    def __init__(self, func: GraphFunc, mod: Mapping[str, Any] | None) -> None:
        self.func = func
        self.mod = mod
        self.path: list[str] = []
        self.sizes: frozenset[Var] = frozenset()
        self.scope: set[Value] = set()
        self.bound: set[Value] = set()

    def fail(self, message: str) -> ScriptError:
        return ScriptError(f"{message}\nin the graph function {self.func.name}{''.join([', ' + p for p in self.path])}")

    def function(self) -> None:
        f = self.func
        if not isinstance(f.name, str) or not f.name:
            raise self.fail(f"the name of a function must be a non-empty string, got {f.name!r}")
        keys = [a[0] for a in f.attrs]
        if any(len(a) != 2 or not isinstance(a[0], str) or not isinstance(a[1], str) for a in f.attrs):
            raise self.fail(f"attributes of a function must be pairs of strings, got {f.attrs!r}")
        if any(a >= b for a, b in pairwise(keys)):
            raise self.fail(f"attributes must be sorted by key without duplicates, got {', '.join(keys)}")
        self.result_names()
        for p in f.params:
            self.form(p, "parameter")
        self.sizes = frozenset(f.bound_sizes)
        if any(isinstance(v, Param) for v in self.sizes):
            raise self.fail("a size of a graph function must be a Var, not a Param")
        for p in f.params:
            self.bind(p)
        for condition in f.assumptions:
            self.assumption(condition)
        self.region(f.body)

    def result_names(self) -> None:
        text = self.func.attr(RESULT_NAMES)
        if text is None:
            return
        try:
            names = json.loads(text)
        except (ValueError, RecursionError):
            names = None
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise self.fail(f"the attribute {RESULT_NAMES} must be a JSON list of names, got {text!r:.100}")

    # ---- small checks

    def index(self, p: object, what: str) -> None:
        if type(p) is not Poly:
            raise self.fail(f"{what} must be an index expression (Poly), got {type(p).__name__}")
        for v in sorted(p.vars - self.sizes, key=lambda v: v.key):
            raise self.fail(
                f"{what}, {p}, uses the size {v}, which no parameter has as an extent by itself, so no call binds it, and "
                "which is not read from a tensor before in the same or an enclosing region"
            )

    def attribute(self, value: object, what: str) -> None:
        if isinstance(value, tuple):
            for v in value:
                self.attribute(v, what)
        elif isinstance(value, Poly):
            self.index(value, what)

    def form(self, v: object, what: str) -> None:
        if type(v) is not Value or not isinstance(v.name, str):
            raise self.fail(f"a {what} must be a Value with a name, got {v!r}")
        t = v.type
        if type(t) is not TensorType or type(t.shape) is not tuple or any(type(e) is not Poly for e in t.shape):
            raise self.fail(f"the type of {v.name} must be a TensorType with a tuple of index expressions (Poly) as its shape, got {t!r}")
        try:
            TensorType.of(t.shape, t.dtype)
        except ScriptError as e:
            raise self.fail(f"the type of {v.name}: {e}") from None

    def bind(self, v: Value) -> None:
        if v in self.bound:
            raise self.fail(f"the value {v.name} is bound twice; a copied binding needs new values")
        for e in v.type.shape:
            self.index(e, f"an extent of {v.name}")
        self.bound.add(v)
        self.scope.add(v)

    def operand(self, o: object, what: str) -> None:
        if type(o) is Constant:
            return
        if type(o) is not Value:
            raise self.fail(f"{what} must be a Value or a Constant, got {type(o).__name__}")
        if o not in self.scope:
            why = "which is used outside the region that binds it" if o in self.bound else "which is not bound before"
            raise self.fail(f"{what} is {o.name}, {why}")

    def assumption(self, condition: object) -> None:
        if not isinstance(condition, Expr) or condition.dtype != "bool":
            got = condition.dtype if isinstance(condition, Expr) else repr(condition)
            raise self.fail(f"an assumption must be a condition of type bool, got {got}")
        sizes = tuple(sorted(self.sizes, key=lambda v: v.key))
        try:
            verify_tir(PrimFunc("assumption", sizes, (), Evaluate(condition)))
        except ScriptError as e:
            raise self.fail(f"an assumption is not well formed: {str(e).partition(chr(10))[0]}") from None

    # ---- bindings

    def region(self, region: Region) -> None:
        outside = self.sizes
        for i, b in enumerate(region.bindings):
            self.path.append(f"binding {i} ({', '.join([str(getattr(v, 'name', v)) for v in b.results])})")
            self.binding(b)
            self.path.pop()
        if not region.results:
            raise self.fail("a function or a region must have at least one result")
        for i, o in enumerate(region.results):
            self.operand(o, f"result {i}")
        for b in region.bindings:
            self.scope.difference_update(b.results)
        self.sizes = outside

    def binding(self, b: Binding) -> None:
        op = b.operation
        if not isinstance(op, (Call, CallFunction, If, Loop, While, ReadSize)):
            kinds = "a Call, a CallFunction, an If, a Loop, a While or a ReadSize"
            raise self.fail(f"an operation must be {kinds}, got {type(op).__name__}")
        for v in b.results:
            self.form(v, "result")
        for i, o in enumerate(op.args):
            self.operand(o, "the condition" if isinstance(op, If) else f"operand {i}")
        if isinstance(op, Call):
            self.results(b.results, self.call(op), op.operator)
        elif isinstance(op, If):
            self.results(b.results, self.branches(op), "the `if`")
        elif isinstance(op, Loop):
            self.results(b.results, self.loop(op), "the loop")
        elif isinstance(op, While):
            self.results(b.results, self.while_loop(op), "the loop")
        elif isinstance(op, ReadSize):
            self.read_size(op)
            self.results(b.results, (), "the reading of a size")
        elif not b.results:
            raise self.fail(f"the call of {op.function} has no results")
        for v in b.results:
            self.bind(v)
        if isinstance(op, CallFunction):
            self.call_function(op, b.results)

    def results(self, values: tuple[Value, ...], types: Sequence[TensorType], what: str) -> None:
        if len(values) != len(types):
            raise self.fail(f"{what} has {len(types)} results, but {len(values)} values are bound to them")
        for i, (v, t) in enumerate(zip(values, types, strict=True)):
            if v.type != t:
                raise self.fail(f"result {i} of {what} is {t}, but the value {v.name} bound to it is {v.type}")

    def call(self, op: Call) -> tuple[TensorType, ...]:
        for key, value in op.attrs:
            self.attribute(value, f"the attribute {key}")
        try:
            bound = GRAPH_OPERATORS.get(op.operator).bind(dict(op.attrs))
            types = infer(op.operator, [a.type for a in op.args], op.attrs)
        except UserError as e:
            raise self.fail(str(e)) from None
        if not same_attribute(bound, op.attrs):
            raise self.fail(
                f"{op.operator} must have all attributes in the order of its signature, {bound!r}, got {op.attrs!r}; use GraphOperator.bind"
            )
        return types

    def branches(self, op: If) -> tuple[TensorType, ...]:
        if op.condition.type != BOOL:
            raise self.fail(f"the condition of an `if` must be {BOOL}, got {op.condition.type}")
        types = []
        for word, region in (("then", op.then), ("else", op.otherwise)):
            self.path.append(f"the {word} region")
            self.region(region)
            self.path.pop()
            types.append(tuple([r.type for r in region.results]))
        if types[0] != types[1]:
            raise self.fail(f"the regions of an `if` must have equal result types, got {_types(types[0])} and {_types(types[1])}")
        return types[0]

    def loop(self, op: Loop) -> tuple[TensorType, ...]:
        if type(op.trips) is not int or op.trips < 1:
            raise self.fail(f"a loop has at least one iteration, got {op.trips!r}")
        if type(op.index) is not Var or op.index in self.sizes:
            raise self.fail(f"the number of the iteration must be a new Var, got {op.index!r}")
        self.initial(op)
        if len(op.body.results) < len(op.params):
            raise self.fail(f"the region of a loop with {len(op.params)} carried values has only {len(op.body.results)} results")
        outside = self.sizes
        self.sizes = outside | {op.index}
        for p in op.params:
            self.bind(p)
        self.path.append("the region of the loop")
        self.region(op.body)
        self.path.pop()
        self.scope.difference_update(op.params)
        self.sizes = outside
        self.carried(op)
        for i, r in enumerate(op.body.results):
            if any(op.index in e.vars for e in r.type.shape):
                raise self.fail(f"result {i} of the region is {r.type}: its shape must not depend on the iteration")
        return op.types

    def while_loop(self, op: While) -> tuple[TensorType, ...]:
        self.initial(op)
        for p in op.params:
            self.bind(p)
        for word, region in (("condition", op.condition), ("region", op.body)):
            self.path.append(f"the {word} of the loop")
            self.region(region)
            self.path.pop()
        self.scope.difference_update(op.params)
        decided = [r.type for r in op.condition.results]
        if decided != [BOOL]:
            raise self.fail(f"the condition of a loop must be one {BOOL}, got {_types(decided)}")
        if not op.params or len(op.body.results) != len(op.params):
            raise self.fail(f"the region of a loop with {len(op.params)} carried values has {len(op.body.results)} results")
        self.carried(op)
        return op.types

    def initial(self, op: Loop | While) -> None:
        if len(op.params) != len(op.initial):
            raise self.fail(f"a loop with {len(op.initial)} initial values must have as many parameters, got {len(op.params)}")
        for i, (p, o) in enumerate(zip(op.params, op.initial, strict=True)):
            self.form(p, "carried value")
            if p.type != o.type:
                raise self.fail(f"carried value {i} is {p.type}, but its initial value is {o.type}")

    def carried(self, op: Loop | While) -> None:
        for i, (p, r) in enumerate(zip(op.params, op.body.results, strict=False)):
            if p.type != r.type:
                raise self.fail(f"carried value {i} is {p.type}, but the region computes {r.type} for the next iteration")

    def read_size(self, op: ReadSize) -> None:
        if op.value.type != SIZE:
            raise self.fail(f"a size is read from {SIZE}, got {op.value.type}")
        if type(op.size) is not Var or op.size in self.sizes:
            raise self.fail(f"a size that is read must be a new Var, got {op.size!r}")
        if op.at_most is not None:
            self.index(op.at_most, f"the limit of the size {op.size}")
        self.sizes |= {op.size}

    def call_function(self, op: CallFunction, results: tuple[Value, ...]) -> None:
        for s in op.sizes:
            self.index(s, f"a size given to {op.function}")
        if self.mod is None:
            return
        if op.function not in self.mod:
            raise self.fail(f"the module has no function {op.function!r}; it has {', '.join(self.mod) or 'none'}")
        f = self.mod[op.function]
        if isinstance(f, PrimFunc):
            self.call_tir(op, results, f)
        elif isinstance(f, GraphFunc):
            self.call_graph(op, results, f)
        else:
            raise self.fail(f"{op.function} is a {type(f).__name__}; a graph function calls a PrimFunc or a GraphFunc")

    def call_tir(self, op: CallFunction, results: tuple[Value, ...], f: PrimFunc) -> None:
        buffers = [p for p in f.params if isinstance(p, Buffer)]
        scalars = [p for p in f.params if isinstance(p, Var)]
        if list(f.params) != [*buffers, *scalars]:
            raise self.fail(f"{op.function} must have its scalar parameters after its buffers to be called from a graph function")
        if len(buffers) != len(op.args) + len(results):
            names = ", ".join([b.name for b in buffers])
            raise self.fail(f"{op.function} takes {len(buffers)} buffers ({names}), got {len(op.args)} operands and {len(results)} results")
        if len(scalars) != len(op.sizes):
            raise self.fail(f"{op.function} takes {len(scalars)} sizes ({', '.join(map(repr, scalars))}), got {len(op.sizes)}")
        sizes = dict(zip(scalars, op.sizes, strict=True))
        for b, given in zip(buffers, (*op.args, *results), strict=True):
            self.same_type(f"the buffer {b.name} of {op.function}", TensorType(b.shape, b.dtype), sizes, given)

    def call_graph(self, op: CallFunction, results: tuple[Value, ...], f: GraphFunc) -> None:
        expected = len(f.sizes) if f.is_primitive else 0
        if len(op.sizes) != expected:
            raise self.fail(
                f"{op.function} takes {expected} sizes (the parameters of a graph function bind its sizes), got {len(op.sizes)}"
            )
        if len(op.args) != len(f.params) or len(results) != len(f.results):
            raise self.fail(
                f"{op.function} takes {len(f.params)} operands and has {len(f.results)} results, got {len(op.args)} and {len(results)}"
            )
        sizes = sizes_of_call(f, [a.type for a in op.args], op.sizes)
        for p, given in zip(f.params, op.args, strict=True):
            self.same_type(f"the parameter {p.name} of {op.function}", p.type, sizes, given)
        for i, (r, value) in enumerate(zip(f.results, results, strict=True)):
            self.same_type(f"result {i} of {op.function}", r.type, sizes, value)

    def same_type(self, what: str, declared: TensorType, sizes: Mapping[Var, Poly], given: Operand) -> None:
        for d in [substitute(d, sizes) for e in declared.shape for d in divisors(e)]:
            if d.const is not None and d.const < 1:
                raise self.fail(f"{what}: division by {d.const} in its shape {declared}; divisors of extents must be >= 1")
        expected = TensorType(tuple([substitute(e, sizes) for e in declared.shape]), declared.dtype)
        if given.type != expected:
            raise self.fail(f"{what} is {expected} in this call, but {given.name} is {given.type}")


def _types(types: Iterable[TensorType]) -> str:
    return ", ".join(map(repr, types)) or "none"
