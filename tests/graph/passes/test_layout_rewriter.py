"""Test layout propagation: conversion once per value, scope of converted values, and restored values for other users."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.node import Call, Operand, Operation, TensorType, all_bindings
from tunesmith.graph.ir.verify import verify
from tunesmith.graph.passes.layout_rewriter import LayoutRewriter
from tunesmith.ir.poly import ONE


class Column(LayoutRewriter):
    """Compute `exp` and `relu` of vectors on columns."""

    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        if not isinstance(operation, Call) or operation.operator not in ("exp", "relu"):
            return None
        (x,) = operation.args
        return self.restore(build.call(operation.operator, self.convert(x, build)), x.type, build)

    def forward(self, o: Operand, build: RegionBuilder) -> Operand:
        return build.reshape(o, shape=(*o.type.shape, ONE), name="forward")

    def inverse(self, converted: Operand, type: TensorType, build: RegionBuilder) -> Operand:
        return build.reshape(converted, shape=type.shape, name="inverse")


def names(rewritten: Sequence[Operation]) -> list[str]:
    return [o.operator if isinstance(o, Call) else type(o).__name__ for o in rewritten]


def test_values_are_converted_once() -> None:
    b = GraphBuilder("f")
    x = b.input("x", (4,))
    y = b.exp(x)
    f = Column()(b.finish(b.relu(y), b.relu(x), b.neg(y), y))
    verify(f)
    assert names([o.operation for o in f.body.bindings]) == ["reshape", "exp", "reshape", "relu", "reshape", "relu", "reshape", "neg"]
    forward, exp, inverse, relu, _, other, _, neg = f.body.bindings
    assert forward.results[0].name == "forward" and exp.operation.args == forward.results and other.operation.args == forward.results
    assert relu.operation.args == exp.results, "a value computed in the other form is not converted again"
    assert neg.operation.args == inverse.results and f.results[3] is inverse.results[0]


def test_values_converted_in_a_region_are_not_used_outside() -> None:
    b = GraphBuilder("f")
    x, y, c = b.input("x", (4,)), b.input("y", (4,)), b.input("c", (), "bool")
    z = b.exp(x)
    o = b.branch(c, lambda r: r.relu(r.exp(y)), lambda r: r.branch(c, lambda q: q.relu(y), lambda q: q.exp(q.relu(z))))
    f = Column()(b.finish(b.relu(y), b.relu(o), b.exp(x)))
    verify(f)
    made = [binding for binding in all_bindings(f.body) if binding.results[0].name == "forward"]
    assert [m.operation.args[0] for m in made] == [x, y, y, y, o]
    assert names([binding.operation for binding in f.body.bindings]).count("If") == 1


def test_unchanged_functions_are_returned_as_they_are() -> None:
    b = GraphBuilder("f")
    x = b.input("x", (4,))
    f = b.finish(b.neg(x), x)
    assert Column()(f) is f
