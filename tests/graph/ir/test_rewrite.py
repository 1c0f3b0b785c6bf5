"""Test the rewriter: object identity of unchanged nodes, repeated type inference, and regions."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Call, CallFunction, Constant, If, Operand, Operation, TensorType, all_bindings
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.graph.ir.verify import verify
from tunesmith.support.errors import ScriptError


class Replace(Rewriter):
    """Replace calls of one operator by its operand, another operator, or a constant; record the visited operations."""

    def __init__(self, operator: str, by: str | Constant | None = None) -> None:
        super().__init__()
        self.operator, self.by, self.seen = operator, by, list[Operation]()

    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        self.seen.append(operation)
        if not isinstance(operation, Call) or operation.operator != self.operator:
            return None
        if isinstance(self.by, str):
            return [build.call(self.by, *operation.args, name="new")]
        return operation.args[:1] if self.by is None else [self.by]


def operators(f: GraphFunc) -> list[str]:
    return [b.operation.operator for b in all_bindings(f.body) if isinstance(b.operation, Call)]


def test_unchanged_functions_are_returned_as_they_are(graphs: SimpleNamespace) -> None:
    f = graphs.example()
    assert Rewriter()(f) is f
    assert Replace("no such operator")(f) is f


def test_operations_are_visited_once_in_order_with_replaced_operands(graphs: SimpleNamespace) -> None:
    f = graphs.example()
    r = Replace("probe_neg")
    g = r(f)
    verify(g)
    names = [op.operator if isinstance(op, Call) else type(op).__name__ for op in r.seen]
    assert names == ["probe_matmul", "probe_split", "CallFunction", "probe_relu", "probe_neg", "probe_scale", "If"]
    z = f.body.bindings[2].results[0]
    assert r.seen[5].args == (z,)
    assert operators(g) == ["probe_matmul", "probe_split", "probe_relu", "probe_scale"]


def test_unchanged_nodes_keep_their_identity(graphs: SimpleNamespace) -> None:
    f = graphs.example()
    g = Replace("probe_neg")(f)
    assert g is not f and g.params is f.params and g.assumptions is f.assumptions
    assert list(g.body.bindings[:3]) == list(f.body.bindings[:3])
    old, new = f.body.bindings[3], g.body.bindings[3]
    assert isinstance(old.operation, If) and isinstance(new.operation, If)
    assert new.operation.then is old.operation.then and new.operation.otherwise is not old.operation.otherwise
    assert new.results[0] is old.results[0], "values keep their identity if their type does not change"
    assert g.results == f.results


def test_new_bindings_precede_their_users() -> None:
    b = GraphBuilder("f")
    x = b.input("x", (2,))
    g = Replace("probe_relu", "probe_neg")(b.finish(b.probe_scale(b.probe_relu(x, name="r"), name="s")))
    verify(g)
    assert [v.name for binding in g.body.bindings for v in binding.results] == ["new", "s"]


def test_results_and_the_condition_are_replaced() -> None:
    b = GraphBuilder("f")
    x, c, d = b.input("x", (2,)), b.input("c", (), "bool"), b.input("d", (), "bool")
    other = b.call("probe.dotted name", b.probe_relu(x))
    f = b.finish(b.branch(c, lambda r: x, lambda r: other), other)
    g = Replace("probe.dotted name")(f)
    verify(g)
    operation = g.body.bindings[1].operation
    assert isinstance(operation, If) and operation.otherwise.results == (g.body.bindings[0].results[0],)
    assert g.results[1] is g.body.bindings[0].results[0]

    class Condition(Rewriter):
        def operand(self, o: Operand) -> Operand:
            return d if o is c else super().operand(o)

    changed = Condition()(f).body.bindings[-1].operation
    assert isinstance(changed, If) and changed.condition is d and changed.then is f.body.bindings[-1].operation.then


def test_types_are_inferred_again_if_operand_types_change() -> None:
    b = GraphBuilder("f")
    x, c = b.input("x", (2,)), b.input("c", (), "bool")
    y = b.probe_neg(x, name="y")
    (z,) = b.call_function("g", [y], [y.type], name="z")
    f = b.finish(b.branch(c, lambda r: r.probe_scale(y, name="inner"), lambda r: y, name="out"), z)
    longer = Constant("longer", np.ones(5, np.float32))
    g = Replace("probe_neg", longer)(f)
    verify(g)
    assert g.results[0].type == TensorType.of((5,)) and g.results[0].name == "out"
    assert g.results[1] is z, "result types of called functions are not inferred"
    call = g.body.bindings[0].operation
    assert isinstance(call, CallFunction) and call.args == (longer,)
    assert [v.name for binding in all_bindings(g.body) for v in binding.results] == ["z", "inner", "out"]


def sum_of_two() -> GraphFunc:
    b = GraphBuilder("f")
    x = b.input("x", (2,))
    return b.finish(b.probe_add(x, b.probe_relu(x)))


def test_errors() -> None:
    longer = Constant("longer", np.ones(5, np.float32))
    b = GraphBuilder("f")
    x, c = b.input("x", (2,)), b.input("c", (), "bool")
    y = b.probe_relu(x, name="y")
    branch = b.finish(b.branch(c, lambda r: x, lambda r: y, name="out"))
    with pytest.raises(ScriptError, match="the result types of the regions of the `if` for out differ"):
        Replace("probe_relu", longer)(branch)
    with pytest.raises(ScriptError, match="the shapes differ"):
        Replace("probe_relu", longer)(sum_of_two())

    class Wrong(Rewriter):
        def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand]:
            return []

    with pytest.raises(ScriptError, match=r"Wrong: cannot replace 1 results \(y\) by 0 operands"):
        Wrong()(branch)


def test_rewriters_are_reusable(graphs: SimpleNamespace) -> None:
    r = Replace("probe_neg")
    f = graphs.example()
    r(f)
    g = r(graphs.example())
    verify(g)
    assert operators(g) == ["probe_matmul", "probe_split", "probe_relu", "probe_scale"]
