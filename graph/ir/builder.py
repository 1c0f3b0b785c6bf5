"""GraphBuilder: graph functions written in Python, a call at a time, with types inferred at once.

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
from tunesmith.graph.ir.node import Binding, Call, CallFunction, Constant, If, Operand, Operation, Region, TensorType, Value
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Index, Poly, poly
from tunesmith.support.errors import ScriptError

Results = Value | tuple[Value, ...]
"""One result, or several."""


class RegionBuilder:
    """Appends bindings to a region.  Every operator is a method: `b.add(x, y)` is `b.call("add", x, y)`."""

    def __init__(self) -> None:
        self.bindings: list[Binding] = []

    def __getattr__(self, operator: str) -> Callable[..., Any]:
        if operator.startswith("_") or operator not in GRAPH_OPERATORS:
            raise AttributeError(f"{type(self).__name__} has no method and there is no operator {operator!r}")
        return lambda *args, name=None, **attrs: self.call(operator, *args, name=name, **attrs)

    def constant(self, data: Any, name: str = "c") -> Constant:
        """A tensor with known elements, from an array or a number; Python floats become float32."""
        array = np.asarray(data)
        if isinstance(data, float):
            array = array.astype(np.float32)
        return Constant(name, array)

    def call(self, operator: str, *args: Operand, name: str | None = None, **attrs: Any) -> Any:
        """Apply an operator; its result, or a tuple of them if it has several.

        Args:
            operator: its name.
            args: operands.
            name: of the results; by default the operator's.
            attrs: attributes.
        Raises:
            UserError: there is no such operator.
            ScriptError: an operand or an attribute does not fit.
        """
        known = GRAPH_OPERATORS.get(operator)
        for i, a in enumerate(args):
            if not isinstance(a, (Value, Constant)):
                raise ScriptError(
                    f"{operator}: operand {i} is a {type(a).__name__}; operands are values and constants, which b.constant makes"
                    " of numbers and arrays, and attributes are given by name"
                )
        bound = known.bind(attrs)
        types = known.infer([a.type for a in args], bound)
        return self._results(self.bind(Call(operator, args, bound), types, name or operator))

    def call_function(
        self, function: str, args: Sequence[Operand], types: Sequence[TensorType], sizes: Sequence[Index] = (), name: str | None = None
    ) -> tuple[Value, ...]:
        """Apply a function of the module; `types` are those of its results."""
        return self.bind(CallFunction(function, tuple(args), tuple([poly(s) for s in sizes])), types, name or function)

    def branch(
        self, condition: Operand, then: Callable[[RegionBuilder], Any], otherwise: Callable[[RegionBuilder], Any], name: str = "branch"
    ) -> Any:
        """An `if`: both functions get a builder and return the result of their region, or a tuple of them.

        Raises:
            ScriptError: the condition is no bool[], or the results of the regions have different types.
        """
        made = [_region(f) for f in (then, otherwise)]
        types = [tuple([r.type for r in region.results]) for region in made]
        if condition.type != TensorType((), "bool"):
            raise ScriptError(f"if: the condition must be bool[], got {condition.type}")
        if types[0] != types[1]:
            raise ScriptError(f"if: the regions have results of different types: {types[0]} and {types[1]}")
        return self._results(self.bind(If(condition, made[0], made[1]), types[0], name))

    def bind(self, operation: Operation, types: Iterable[TensorType], name: str = "v") -> tuple[Value, ...]:
        """Append an operation whose results have these types, unchecked: what passes use."""
        results = tuple([Value(name, t) for t in types])
        self.bindings.append(Binding(results, operation))
        return results

    def _results(self, results: tuple[Value, ...]) -> Results:
        return results[0] if len(results) == 1 else results


class GraphBuilder(RegionBuilder):
    """Builds one function.

    Args:
        name: of the function.
    """

    def __init__(self, name: str = "main") -> None:
        super().__init__()
        self.name = name
        self.params: list[Value] = []
        self.assumptions: list[Expr] = []
        self._outputs: tuple[Operand, ...] = ()

    def input(self, name: str, shape: Sequence[Index], dtype: str = "float32") -> Value:
        """A parameter; a size that is known at the call only is a variable (`ir.poly.Var`) in its shape."""
        self.params.append(Value(name, TensorType.of(shape, dtype)))
        return self.params[-1]

    def output(self, *results: Operand) -> None:
        """What the function returns."""
        self._outputs = results

    def assume(self, *conditions: Expr | Poly) -> None:
        """Conditions on sizes that hold in every call."""
        self.assumptions += conditions

    def finish(self, *results: Operand) -> GraphFunc:
        """The function; `results` instead of a call of `output`.

        Raises:
            ScriptError: it returns nothing.
        """
        outputs = results or self._outputs
        if not outputs:
            raise ScriptError(f"the graph function {self.name} returns nothing; name its results with output()")
        return GraphFunc(self.name, tuple(self.params), Region(tuple(self.bindings), tuple(outputs)), (), tuple(self.assumptions))


def _region(fill: Callable[[RegionBuilder], Any]) -> Region:
    builder = RegionBuilder()
    made = fill(builder)
    return Region(tuple(builder.bindings), tuple(made) if isinstance(made, (tuple, list)) else (made,))
