"""Build graph functions in Python, one operator call at a time, with immediate type inference.

b = GraphBuilder("main")
x = b.input("x", (1, 64))
w = b.constant(weights, "w")
b.output(b.relu(b.matmul(x, w)))
func = b.finish()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import (
    Binding,
    Call,
    CallFunction,
    Constant,
    If,
    Loop,
    Operand,
    Operation,
    ReadSize,
    Region,
    TensorType,
    Value,
    While,
)
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Index, Poly, Var, poly
from tunesmith.support.errors import ScriptError

Results = Value | tuple[Value, ...]
"""One result, or a tuple of results."""


class RegionBuilder:
    """Append bindings to a region.  Every operator is a method: `b.add(x, y)` is `b.call("add", x, y)`."""

    def __init__(self) -> None:
        self.bindings: list[Binding] = []

    def __getattr__(self, operator: str) -> Callable[..., Any]:
        if operator.startswith("_") or operator not in GRAPH_OPERATORS:
            raise AttributeError(f"{type(self).__name__} has no method or operator named {operator!r}")
        return lambda *args, name=None, **attrs: self.call(operator, *args, name=name, **attrs)

    def constant(self, data: Any, name: str = "c") -> Constant:
        """A constant from an array or a number; Python floats become float32."""
        array = np.asarray(data)
        if isinstance(data, float):
            array = array.astype(np.float32)
        return Constant(name, array)

    def call(self, operator: str, *args: Operand, name: str | None = None, **attrs: Any) -> Any:
        """Apply an operator; the result, or a tuple if the operator has several.

        Args:
            operator: name of the operator.
            args: operands.
            name: name of the results; by default the name of the operator.
            attrs: attributes.
        Raises:
            UserError: the operator does not exist.
            ScriptError: an operand or an attribute is invalid.
        """
        known = GRAPH_OPERATORS.get(operator)
        for i, a in enumerate(args):
            if not isinstance(a, (Value, Constant)):
                raise ScriptError(
                    f"{operator}: operand {i} is a {type(a).__name__}; operands are values and constants (b.constant converts"
                    " numbers and arrays), attributes are passed by name"
                )
        bound = known.bind(attrs)
        types = known.infer([a.type for a in args], bound)
        return self._results(self.bind(Call(operator, args, bound), types, name or operator))

    def call_function(
        self, function: str, args: Sequence[Operand], types: Sequence[TensorType], sizes: Sequence[Index] = (), name: str | None = None
    ) -> tuple[Value, ...]:
        """Call a function of the module; `types` are its result types."""
        return self.bind(CallFunction(function, tuple(args), tuple([poly(s) for s in sizes])), types, name or function)

    def branch(
        self, condition: Operand, then: Callable[[RegionBuilder], Any], otherwise: Callable[[RegionBuilder], Any], name: str = "branch"
    ) -> Any:
        """Append an `if`; each function receives a builder and returns the result of its region, or a tuple of results.

        Raises:
            ScriptError: the condition is not bool[], or the result types of the regions differ.
        """
        branches = [_region(f) for f in (then, otherwise)]
        types = [tuple([r.type for r in region.results]) for region in branches]
        if condition.type != TensorType((), "bool"):
            raise ScriptError(f"if: the condition must be bool[], got {condition.type}")
        if types[0] != types[1]:
            raise ScriptError(f"if: the result types of the regions differ: {types[0]} and {types[1]}")
        return self._results(self.bind(If(condition, branches[0], branches[1]), types[0], name))

    def loop(
        self,
        trips: int,
        initial: Sequence[Operand],
        body: Callable[..., tuple[Sequence[Operand], Sequence[Operand]]],
        name: str = "loop",
        index: str = "t",
    ) -> tuple[Value, ...]:
        """Append a loop; the results are the carried values after it, and the rows of all iterations.

        Args:
            trips: number of iterations.
            initial: carried values before the first iteration.
            body: receives a builder, the number of the iteration as a size, and the carried values; returns the next carried values and
                the rows.
            name: name of the results.
            index: name of the size.
        Raises:
            ScriptError: there is no iteration, or the carried values change their number or types.
        """
        if isinstance(trips, bool) or not isinstance(trips, int) or trips < 1:
            raise ScriptError(f"loop: there must be at least one iteration, got {trips!r}")
        counter, builder = Var(index), RegionBuilder()
        params = tuple([Value(getattr(o, "name", name), o.type) for o in initial])
        following, rows = body(builder, counter, *params)
        types, made = [p.type for p in params], [o.type for o in following]
        if types != made:
            raise ScriptError(f"loop: the carried values are {types}, but the region computes {made} for the next iteration")
        op = Loop(counter, trips, tuple(initial), params, Region(tuple(builder.bindings), (*following, *rows)))
        return self.bind(op, op.types, name)

    def while_loop(
        self, initial: Sequence[Operand], condition: Callable[..., Operand], body: Callable[..., Sequence[Operand]], name: str = "loop"
    ) -> tuple[Value, ...]:
        """Append a loop that runs as long as a condition holds; the results are the carried values for which it does not.

        Args:
            initial: carried values before the first iteration.
            condition: receives a builder and the carried values; returns a bool[].
            body: receives a builder and the carried values; returns the next carried values.
            name: name of the results.
        Raises:
            ScriptError: nothing is carried, the condition is not bool[], or the carried values change their number or types.
        """
        if not initial:
            raise ScriptError("while_loop: there must be a carried value, or the condition never changes")
        params = tuple([Value(getattr(o, "name", name), o.type) for o in initial])
        decided, following = _region(lambda b: condition(b, *params)), _region(lambda b: body(b, *params))
        if [r.type for r in decided.results] != [TensorType((), "bool")]:
            raise ScriptError(f"while_loop: the condition must be bool[], got {', '.join([repr(r.type) for r in decided.results])}")
        types, made = [p.type for p in params], [r.type for r in following.results]
        if types != made:
            raise ScriptError(f"while_loop: the carried values are {types}, but the region computes {made} for the next iteration")
        op = While(tuple(initial), params, decided, following)
        return self.bind(op, op.types, name)

    def read_size(self, value: Operand, name: str = "n", at_most: Index | None = None) -> Var:
        """Read a size from a tensor: extents and attributes of what follows in the region may use it.

        Args:
            value: int64[], at least 0 when the program runs.
            name: name of the size.
            at_most: the largest admissible size, beyond which a run fails.  Give the extent where the size is a bound of a slice, which
                would read other memory beyond it.
        Raises:
            ScriptError: the value has another type.
        """
        if value.type != TensorType((), "int64"):
            raise ScriptError(f"read_size: a size is read from int64[], got {value.type}")
        size = Var(name)
        self.bind(ReadSize(value, size, None if at_most is None else poly(at_most)), (), name)
        return size

    def bind(self, operation: Operation, types: Iterable[TensorType], name: str = "v") -> tuple[Value, ...]:
        """Append an operation with these result types, without checks; for passes."""
        results = tuple([Value(name, t) for t in types])
        self.bindings.append(Binding(results, operation))
        return results

    def _results(self, results: tuple[Value, ...]) -> Results:
        return results[0] if len(results) == 1 else results


class GraphBuilder(RegionBuilder):
    """Build one function.

    Args:
        name: name of the function.
    """

    def __init__(self, name: str = "main") -> None:
        super().__init__()
        self.name = name
        self.params: list[Value] = []
        self.assumptions: list[Expr] = []
        self._outputs: tuple[Operand, ...] = ()

    def input(self, name: str, shape: Sequence[Index], dtype: str = "float32") -> Value:
        """Add a parameter; a dynamic extent is a variable (`ir.poly.Var`) in its shape."""
        self.params.append(Value(name, TensorType.of(shape, dtype)))
        return self.params[-1]

    def output(self, *results: Operand) -> None:
        """Set the results of the function."""
        self._outputs = results

    def assume(self, *conditions: Expr | Poly) -> None:
        """Add conditions on sizes that hold in every call."""
        self.assumptions += conditions

    def finish(self, *results: Operand) -> GraphFunc:
        """The function; `results` replace a call of `output`.

        Raises:
            ScriptError: the function has no results.
        """
        outputs = results or self._outputs
        if not outputs:
            raise ScriptError(f"the graph function {self.name} returns nothing; set its results with output()")
        return GraphFunc(self.name, tuple(self.params), Region(tuple(self.bindings), tuple(outputs)), (), tuple(self.assumptions))


def _region(fill: Callable[[RegionBuilder], Any]) -> Region:
    builder = RegionBuilder()
    results = fill(builder)
    return Region(tuple(builder.bindings), tuple(results) if isinstance(results, (tuple, list)) else (results,))
