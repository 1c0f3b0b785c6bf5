"""Provide graph functions of a few test operators for the tests of the graph IR, passes and emitters."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.operator import ELEMENTWISE, FUSABLE, GRAPH_OPERATORS, INJECTIVE, GraphOperator
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Var, poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError


def _relu(x: Tensor) -> Tensor:
    return te.compute(x.shape, lambda *i: te.maximum(x[i], 0.0), "relu")


def _neg(x: Tensor) -> Tensor:
    return te.compute(x.shape, lambda *i: -x[i], "neg")


def _add(a: Tensor, b: Tensor) -> Tensor:
    if a.shape != b.shape:
        raise ScriptError(f"the shapes differ: {a.shape} and {b.shape}")
    return te.compute(a.shape, lambda *i: a[i] + b[i], "add")


def _scale(x: Tensor, *, factor: float = 2.0, mode: str = "plain", extra: Any = None) -> Tensor:
    return te.compute(x.shape, lambda *i: x[i] * float(factor), "scale")


def _split(x: Tensor, *, sizes: Sequence[Any], axis: int = 0) -> list[Tensor]:
    out, start = [], poly(0)
    for n in map(poly, sizes):
        shape = [n if d == axis else e for d, e in enumerate(x.shape)]
        at = start
        out.append(te.compute(shape, lambda *i, at=at: x[tuple([v + at if d == axis else v for d, v in enumerate(i)])], "part"))
        start = start + n
    if start != x.shape[axis]:
        raise ScriptError(f"the sizes add up to {start}, the extent is {x.shape[axis]}")
    return out


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    r = te.reduce_axis(a.shape[1], "r")
    return te.compute((a.shape[0], b.shape[1]), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "matmul")


def _fill(*, shape: Sequence[Any], value: float = 1.5, dtype: str = "float32") -> Tensor:
    return te.compute([poly(e) for e in shape], lambda *i: float(value), "fill", dtype=dtype)


def _strange(x: Tensor, *, key: Any = None) -> Tensor:
    return te.compute(x.shape, lambda *i: x[i], name=key["no text can be indexed so"])


def _parts(x: np.ndarray, *, sizes: Sequence[int], axis: int = 0) -> list[np.ndarray]:
    return np.split(x, np.cumsum(sizes)[:-1], axis)


_OPERATORS = [
    GraphOperator("probe_relu", ELEMENTWISE, _relu, lambda x: np.maximum(x, 0)),
    GraphOperator("probe_neg", ELEMENTWISE, _neg, np.negative),
    GraphOperator("probe_add", ELEMENTWISE, _add, np.add),
    GraphOperator("probe_scale", ELEMENTWISE, _scale, lambda x, *, factor, mode, extra: x * x.dtype.type(factor)),
    GraphOperator("probe_split", INJECTIVE, _split, _parts),
    GraphOperator("probe_matmul", FUSABLE, _matmul, np.matmul),
    GraphOperator("probe_fill", INJECTIVE, _fill, lambda *, shape, value, dtype: np.full(shape, value, dtype)),
    GraphOperator("probe_strange", INJECTIVE, _strange, lambda x, *, key: x),
    GraphOperator("probe_wrong", ELEMENTWISE, _relu, lambda x: np.zeros((3,), np.float64)),
    GraphOperator("probe.dotted name", ELEMENTWISE, _relu, lambda x: np.maximum(x, 0)),
]
for _o in _OPERATORS:
    if _o.name not in GRAPH_OPERATORS:
        GRAPH_OPERATORS.register(_o.name, _o)

N = Var("n")
"""The size of `example`."""
WEIGHT = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) % 7 - 3


def example() -> GraphFunc:
    """A function with a size, an assumption, constants, several results, an `if`, and a call of `fused_add`."""
    b = GraphBuilder("main")
    x, c = b.input("x", (N, 64)), b.input("c", (), "bool")
    b.assume(poly(N) <= 512)
    y = b.probe_matmul(x, b.constant(WEIGHT, "weight"), name="y")
    left, right = b.probe_split(y, sizes=(32, 32), axis=1)
    (z,) = b.call_function("fused_add", [left, right], [left.type], [poly(N)], name="z")
    two = b.constant(np.full((), 2, np.float32), "two")

    def otherwise(r: Any) -> Any:
        return r.probe_scale(r.probe_neg(z), factor=0.5)

    r = b.branch(c, lambda r: r.probe_relu(z), otherwise, name="r")
    return b.finish(r, z, two)


def fused_add() -> PrimFunc:
    """The function that `example` calls: parameters are two tensors (n, 32), their sum, and n."""
    n = te.var("n")
    a, b = te.placeholder((n, 32), name="a"), te.placeholder((n, 32), name="b")
    return te.create_prim_func([a, b, te.compute((n, 32), lambda i, j: a[i, j] + b[i, j], "sum")], "fused_add")


@pytest.fixture(scope="session")
def graphs() -> SimpleNamespace:
    """Graph functions made of `probe_...` operators."""
    return SimpleNamespace(
        N=N, WEIGHT=WEIGHT, example=example, fused_add=fused_add, module=lambda: IRModule({"main": example(), "fused_add": fused_add()})
    )
