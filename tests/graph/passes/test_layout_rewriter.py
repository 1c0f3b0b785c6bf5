"""LayoutRewriter: a twin is made once, known where its value is, and brought back for those that do not know it."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.node import Call, Operand, Operation, TensorType, all_bindings
from tunesmith.graph.ir.verify import verify
from tunesmith.graph.passes.layout_rewriter import LayoutRewriter
from tunesmith.ir.poly import ONE


class Column(LayoutRewriter):
    """Vectors are columns where `exp` and `relu` work on them."""

    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        if not isinstance(operation, Call) or operation.operator not in ("exp", "relu"):
            return None
        (x,) = operation.args
        return self.back(build.call(operation.operator, self.twin(x, build)), x.type, build)

    def forward(self, o: Operand, build: RegionBuilder) -> Operand:
        return build.reshape(o, shape=(*o.type.shape, ONE), name="forth")

    def inverse(self, twin: Operand, type: TensorType, build: RegionBuilder) -> Operand:
        return build.reshape(twin, shape=type.shape, name="back")


def names(rewritten: Sequence[Operation]) -> list[str]:
    return [o.operator if isinstance(o, Call) else type(o).__name__ for o in rewritten]


def test_a_twin_is_made_once_and_taken_from_then_on() -> None:
    b = GraphBuilder("f")
    x = b.input("x", (4,))
    y = b.exp(x)
    f = Column()(b.finish(b.relu(y), b.relu(x), b.neg(y), y))
    verify(f)
    assert names([o.operation for o in f.body.bindings]) == ["reshape", "exp", "reshape", "relu", "reshape", "relu", "reshape", "neg"]
    forward, exp, back, relu, _, other, _, neg = f.body.bindings
    assert forward.results[0].name == "forth" and exp.operation.args == forward.results and other.operation.args == forward.results
    assert relu.operation.args == exp.results, "the twin of what was computed is what was computed"
    assert neg.operation.args == back.results and f.results[3] is back.results[0]


def test_twins_of_a_region_are_known_in_it_alone() -> None:
    b = GraphBuilder("f")
    x, y, c = b.input("x", (4,)), b.input("y", (4,)), b.input("c", (), "bool")
    z = b.exp(x)
    o = b.branch(c, lambda r: r.relu(r.exp(y)), lambda r: r.branch(c, lambda q: q.relu(y), lambda q: q.exp(q.relu(z))))
    f = Column()(b.finish(b.relu(y), b.relu(o), b.exp(x)))
    verify(f)
    made = [binding for binding in all_bindings(f.body) if binding.results[0].name == "forth"]
    assert [m.operation.args[0] for m in made] == [x, y, y, y, o]
    assert names([binding.operation for binding in f.body.bindings]).count("If") == 1


def test_nothing_to_do() -> None:
    b = GraphBuilder("f")
    x = b.input("x", (4,))
    f = b.finish(b.neg(x), x)
    assert Column()(f) is f
