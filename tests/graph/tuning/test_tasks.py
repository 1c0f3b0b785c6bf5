"""Test task extraction: distinct programs, weights, functions that are not tasks, and errors."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.passes.legalise import legalise
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.graph.tuning.tasks import extract_tasks
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.target.target import Target
from tunesmith.support.errors import ScriptError, UserError

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_tasks_are_distinct_weighted_and_in_the_order_of_calls() -> None:
    b = GraphBuilder("main")
    x, c = b.input("x", (4, 4)), b.input("c", (), "bool")
    y = b.relu(b.matmul(x, b.constant(ones(4, 4) * 2)))
    y = b.relu(b.matmul(y, b.constant(ones(4, 4))))
    z = b.branch(c, lambda r: r.softmax(r.relu(r.matmul(y, b.constant(ones(4, 4))))), lambda r: r.softmax(y))
    mod = GRAPH(IRModule({"main": b.finish(z, b.matmul(x, b.constant(ones(4, 2))))}), TARGET)
    tasks = extract_tasks(mod)
    assert [(t.name, t.weight) for t in tasks] == [("fused_matmul_relu", 3), ("op_softmax", 2), ("op_matmul", 1)]
    assert all(t.func is mod[t.name] and t.digest == structural.digest(t.func) for t in tasks)


def test_equal_programs_with_different_names_are_one_task() -> None:
    """The positions of constant operands are part of a program; its name is not."""
    b = GraphBuilder("main")
    x = b.input("x", (4,))
    mod = legalise(IRModule({"main": b.finish(b.relu(x))}))
    twice = mod.update({"again": mod["op_relu"].with_(name="again")})
    b = GraphBuilder("main")
    x = b.input("x", (4,))
    (y,) = b.call_function("op_relu", [x], [x.type])
    (z,) = b.call_function("again", [y], [y.type])
    (task,) = extract_tasks(twice.update({"main": b.finish(z)}))
    assert (task.name, task.weight) == ("op_relu", 2)


def part() -> GraphFunc:
    b = GraphBuilder("part")
    return b.finish(b.tanh(b.input("x", (4, 4))))


def test_called_functions_views_and_dynamic_shapes() -> None:
    n = Var("n")
    b = GraphBuilder("main")
    x, y = b.input("x", (4, 4)), b.input("y", (n,))
    (u,) = b.call_function("part", [x], [x.type])
    (v,) = b.call_function("part", [u], [x.type])
    mod = GRAPH(IRModule({"main": b.finish(b.reshape(v, shape=(16,)), b.exp(y)), "part": part()}), TARGET)
    assert [(t.name, t.weight) for t in extract_tasks(mod)] == [("op_tanh", 2), ("op_exp", 1)]
    assert [t.sizes for t in extract_tasks(mod)] == [(), ((poly(n),),)]
    assert [(t.name, t.weight) for t in extract_tasks(mod, "part")] == [("op_tanh", 1)]


def test_errors() -> None:
    mod = GRAPH(IRModule({"part": part()}), TARGET)
    with pytest.raises(UserError, match="tasks are extracted from a graph function, but 'op_tanh' is a PrimFunc"):
        extract_tasks(mod, "op_tanh")
    with pytest.raises(ScriptError, match="no function 'main'"):
        extract_tasks(mod)
