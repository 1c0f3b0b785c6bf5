"""Test type inference from the parameters, also in branches; values with correct types keep their identity."""

from __future__ import annotations

import pytest

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import TensorType, all_bindings
from tunesmith.graph.ir.script_parser import parse
from tunesmith.graph.ir.verify import verify
from tunesmith.graph.passes.infer_types import infer_types
from tunesmith.ir.function import IRModule
from tunesmith.support.errors import ScriptError

MODEL = """
@G.function
def main(x: G.Tensor((4, 6), "float32"), c: G.Tensor((), "bool")):
    y = G.relu(x)
    if c:
        t = G.sum(y, axes=(1,))
        r = t
    else:
        u = G.max(y, axes=(1,))
        r = u
    return r, y
"""


def stale(func: GraphFunc) -> GraphFunc:
    """The function with types inferred for another parameter type."""
    first = func.params[0]
    object.__setattr__(first, "type", TensorType.of((9, 2)))
    return func


def test_types_are_inferred_in_all_regions() -> None:
    func = stale(parse(MODEL))
    with pytest.raises(ScriptError):
        verify(func)
    done = infer_types(IRModule({"main": func}))["main"]
    verify(done)
    assert [r.type for r in done.results] == [TensorType.of((9,)), TensorType.of((9, 2))]
    assert {v.type.shape[0] for b in all_bindings(done.body) for v in b.results} == {TensorType.of((9,)).shape[0]}


def test_correct_types_are_unchanged() -> None:
    mod = IRModule({"main": parse(MODEL)})
    assert infer_types(mod)["main"] is mod["main"]


def test_invalid_operand_types_are_rejected() -> None:
    func = parse(MODEL.replace("G.relu(x)", "G.matmul(x, x)").replace("(4, 6)", "(6, 6)"))
    with pytest.raises(ScriptError, match="matmul"):
        infer_types(IRModule({"main": stale(func)}))
