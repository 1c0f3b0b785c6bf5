"""Convert ONNX control flow: If to a branch with two regions, Scan with a constant number of steps by unrolling.

Loop is not supported.  Sub-graphs capture tensors of the enclosing scope, so they are converted in a copy of this scope.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tunesmith.graph.importers.onnx.sequences import described, parts, with_parts
from tunesmith.graph.importers.onnx.values import MISSING, Datum, FoldingBuilder, UnsupportedNode
from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.node import Constant, Operand, Value
from tunesmith.support.errors import ScriptError


@dataclass(frozen=True)
class Scope:
    """Names and versions visible to a node.

    Attributes:
        tensors: tensors by name.
        opsets: operator-set version by domain.
        attributes: attributes of the inlined function, as protobuf messages.
        place: names of the enclosing functions and graphs, outermost first.
    """

    tensors: dict[str, Any]
    opsets: Mapping[str, int]
    attributes: Mapping[str, Any]
    place: tuple[str, ...] = ()

    def inner(self, name: str) -> Scope:
        """A scope for a sub-graph of a node."""
        return Scope(dict(self.tensors), self.opsets, self.attributes, (*self.place, name))


class GraphImporter(Protocol):
    """Interface of the importer for converting sub-graphs."""

    unsupported: list[Any]

    def graph(self, graph: Any, scope: Scope, b: FoldingBuilder) -> None:
        """Convert initializers and nodes; results are added to `scope`."""

    def results(self, graph: Any, scope: Scope, b: FoldingBuilder) -> list[Operand]:
        """The outputs of a converted graph as operands, without missing ones; a sequence is one operand per tensor."""

    def lookup(self, name: str, scope: Scope, consumer: str) -> Any:
        """A tensor by name, or `MISSING`."""


def branch(
    importer: GraphImporter, attributes: Mapping[str, Any], inputs: Sequence[Datum | None], scope: Scope, b: FoldingBuilder, place: str
) -> Sequence[Any]:
    condition = inputs[0]
    if condition is None or not {"then_branch", "else_branch"} <= set(attributes):
        raise UnsupportedNode("the condition or a branch is missing")
    then, other = attributes["then_branch"].g, attributes["else_branch"].g
    if isinstance(condition, Constant):
        taken = then if condition.data.all() else other
        inner = scope.inner(taken.name)
        importer.graph(taken, inner, b)
        return [importer.lookup(o.name, inner, f"node {place}") for o in taken.output]
    before = len(importer.unsupported)
    branches: list[list[Any]] = []

    def filled(graph: Any) -> Callable[[RegionBuilder], list[Operand]]:
        def fill(region: RegionBuilder) -> list[Operand]:
            inner, builder = scope.inner(graph.name), FoldingBuilder(region, b)
            importer.graph(graph, inner, builder)
            branches.append([importer.lookup(o.name, inner, f"node {place}") for o in graph.output])
            return importer.results(graph, inner, builder) or [scalar]  # a region has at least one result

        return fill

    scalar = b.operand(condition if not condition.type.shape else b.reshape(condition, shape=()))
    made: Any = ()
    failure = ""
    try:
        made = b.region.branch(scalar, filled(then), filled(other), name=b.hint or "branch")
    except ScriptError as error:
        failure = str(error)
    if len(importer.unsupported) > before or any(datum is MISSING for data in branches for datum in data):
        return [MISSING] * len(then.output)
    failure = _difference(then, branches) or failure
    if failure:
        raise UnsupportedNode(failure, b.wanted(condition))
    results: tuple[Value, ...] = made if isinstance(made, tuple) else (made,)
    captured = [t for datum in scope.tensors.values() for t in parts(datum)]
    b.remember(results, [condition, *[t for t in captured if isinstance(t, Value)]])
    tensors = iter(results)
    return [with_parts(datum, tensors) for datum in branches[0]]


def _difference(then: Any, branches: Sequence[Sequence[Any]]) -> str:
    """The first output that has different forms in the two branches; "" if there is none."""
    for output, *data in zip(then.output, *branches, strict=False):
        forms = [described(datum) for datum in data]
        if len(set(forms)) > 1:
            return f"output {output.name} is {' in one branch and '.join(forms)} in the other; the condition must be known at import"
    return ""
