"""Test operators with index tensors: values, duplicates, negative indices, types, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.visit import blocks_under
from tunesmith.ops import tensor_expression as te
from tunesmith.support.errors import RunError, ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

RNG = np.random.default_rng(3)
X = RNG.normal(size=(4, 5, 3)).astype(np.float32)


def ints(*values: Any, dtype: str = "int64") -> np.ndarray:
    return np.array(values, dtype)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [ints(0, 2, 2, 1), ints([1, -1], [-3, 0]), np.array(2), ints(1, -2, dtype="int32")])
def test_take(axis: int, indices: np.ndarray) -> None:
    check_operator("take", [X, indices], axis=axis)


def test_take_of_other_types() -> None:
    check_operator("take", [X.astype(np.int32), ints(1, 0, dtype="uint8")], axis=0)
    check_operator("take", [X > 0, ints(1, -1)], axis=1)
    special = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    check_operator("take", [special, ints(2, 0, 3, 1)], axis=0)


def test_gather_elements() -> None:
    check_operator("gather_elements", [X, RNG.integers(-4, 4, (4, 5, 3))], axis=0)
    check_operator("gather_elements", [X, RNG.integers(-3, 3, (2, 5, 7))], axis=-1)
    check_operator("gather_elements", [X, RNG.integers(0, 5, (4, 2, 1))], axis=1)


def test_gather_nd() -> None:
    check_operator("gather_nd", [X, ints([0, 4, 2], [-1, -5, 0])])
    check_operator("gather_nd", [X, ints([[0, 1]], [[3, -1]])])
    check_operator("gather_nd", [X, ints(2)])
    check_operator("gather_nd", [X, RNG.integers(0, 3, (4, 2, 2))], batch_dims=1)
    check_operator("gather_nd", [X, RNG.integers(0, 3, (4, 5, 1))], batch_dims=2)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_elements(reduction: str) -> None:
    """Some indices are repeated."""
    indices = ints([0, 1, -1], [0, 2, 1])
    for x in (X[:, :, 0], np.arange(20, dtype=np.int32).reshape(4, 5)):
        updates = RNG.integers(2, 90, (2, 3)).astype(x.dtype)
        check_operator("scatter_elements", [x, indices, updates], axis=0, reduction=reduction)
        check_operator("scatter_elements", [x, indices, updates], axis=1, reduction=reduction)


def test_scatter_of_bool() -> None:
    check_operator("scatter_elements", [X[0] > 0, ints([1, 2, 2]), np.array([[True, False, True]])], axis=0)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_nd(reduction: str) -> None:
    check_operator("scatter_nd", [X, ints([1, 2], [0, 0], [1, -3]), RNG.normal(size=(3, 3)).astype(np.float32)], reduction=reduction)
    check_operator("scatter_nd", [X, ints([[1], [0]], [[1], [1]]), RNG.normal(size=(2, 2, 5, 3)).astype(np.float32)], reduction=reduction)
    check_operator("scatter_nd", [X[0, 0], ints(1), np.array(9, np.float32)], reduction=reduction)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_index_put_rows(axis: int, count: int) -> None:
    """For few and many indices; the last of equal indices is used."""
    indices = RNG.integers(-X.shape[axis], X.shape[axis], count)
    shape = [count if d == axis else e for d, e in enumerate(X.shape)]
    check_operator("index_put_rows", [X, indices, RNG.normal(size=shape).astype(np.float32)], axis=axis)


def test_a_cache_update_is_one_pass() -> None:
    cache, value = te.placeholder((1, 8, 256, 64)), te.placeholder((1, 8, 1, 64))
    position = te.placeholder((1,), "int64")
    made = GRAPH_OPERATORS.get("index_put_rows").apply([cache, position, value], (("axis", 2),))
    (block,) = blocks_under(te.create_prim_func([cache, position, value, *made]).body)
    assert [i.kind for i in block.iters] == ["S"] * 4


def test_one_hot() -> None:
    on, off = np.array(3.5, np.float32), np.array(-1, np.float32)
    check_operator("one_hot", [ints([0, 2], [-1, 9]), on, off], depth=4)
    check_operator("one_hot", [ints([0, 2], [-4, 1]), on, off], depth=4, axis=0)
    check_operator("one_hot", [ints(1, dtype="uint8"), np.array(2), np.array(0)], depth=3, axis=1)


@pytest.mark.parametrize("k", [-2, 0, 1])
def test_trilu(k: int) -> None:
    for upper in (True, False):
        check_operator("trilu", [X], upper=upper, k=k)
    check_operator("trilu", [X[0].astype(np.int64)], upper=True, k=k)


def infer(name: str, types: list[TensorType], **attrs: Any) -> tuple[TensorType, ...]:
    operator = GRAPH_OPERATORS.get(name)
    return operator.infer(types, operator.bind(attrs))


def test_types_with_dynamic_sizes() -> None:
    n = poly(Var("n"))
    rows, at = TensorType.of((n, 8)), TensorType.of((2, n), "int64")
    assert infer("take", [TensorType.of((100, 8)), at], axis=0) == (TensorType.of((2, n, 8)),)
    assert infer("take", [rows, TensorType.of((3,), "int64")], axis=0) == (TensorType.of((3, 8)),)
    assert infer("index_put_rows", [rows, TensorType.of((1,), "int64"), TensorType.of((1, 8))], axis=0) == (rows,)
    assert infer("trilu", [TensorType.of((n, n))], upper=False, k=n - 1) == (TensorType.of((n, n)),)
    scalar = TensorType.of(())
    assert infer("one_hot", [at, scalar, scalar], depth=n) == (TensorType.of((2, n, n)),)


@pytest.mark.parametrize(
    ("name", "types", "attrs", "message"),
    [
        ("take", [((3,), "float32"), ((2,), "float32")], {"axis": 0}, "indices must be integers"),
        ("take", [((3,), "float32"), ((2,), "int64")], {"axis": 1}, "axis 1 is not an axis of 1 dimensions"),
        ("gather_elements", [((3, 4), "float32"), ((2, 5), "int64")], {"axis": 0}, "no larger extents except in axis 0"),
        ("gather_elements", [((3, 4), "float32"), ((2,), "int64")], {"axis": 0}, "must have the rank"),
        ("gather_nd", [((3, 4), "float32"), ((2, 3), "int64")], {}, "must have 1 to 2 indices"),
        ("gather_nd", [((3, 4), "float32"), ((2, 1), "int64")], {"batch_dims": 1}, "differ in their first 1 extents"),
        ("scatter_elements", [((3,), "float32"), ((2,), "int64"), ((1,), "float32")], {"axis": 0}, "must have the same shape"),
        ("scatter_elements", [((3,), "float32"), ((2,), "int64"), ((2,), "int32")], {"axis": 0}, "different element types"),
        ("scatter_elements", [((3,), "bool"), ((2,), "int64"), ((2,), "bool")], {"axis": 0, "reduction": "add"}, "bool elements"),
        ("scatter_elements", [((3,), "float32"), ((2,), "int64"), ((2,), "float32")], {"axis": 0, "reduction": "sum"}, "unknown reduction"),
        ("scatter_nd", [((3, 4), "float32"), ((2, 1), "int64"), ((2, 3), "float32")], {}, "an element or a slice"),
        ("scatter_nd", [((3, 4), "float32"), ((2, 3), "int64"), ((2,), "float32")], {}, "must have 1 to 2 indices"),
        ("index_put_rows", [((3, 4), "float32"), ((2,), "int64"), ((2, 3), "float32")], {"axis": 0}, "must have a slice of axis 0"),
        ("one_hot", [((3,), "int64"), ((1,), "float32"), ((), "float32")], {"depth": 3}, "scalars of one type"),
        ("trilu", [((3,), "float32")], {"upper": True}, "must have at least 2 dimensions"),
    ],
)
def test_errors(name: str, types: list[tuple[tuple[int, ...], str]], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        infer(name, [TensorType.of(*t) for t in types], **attrs)


TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
ONES = np.ones((2, 3), np.float32)
INDEXED: dict[str, tuple[str, tuple[int, ...], list[np.ndarray], dict[str, Any]]] = {
    "take": ("take", (2,), [], {"axis": 0}),
    "gather_elements": ("gather_elements", (2, 3), [], {"axis": 0}),
    "gather_nd": ("gather_nd", (2, 1), [], {}),
    "scatter_elements": ("scatter_elements", (2, 3), [ONES], {"axis": 0}),
    "scatter_elements add": ("scatter_elements", (2, 3), [ONES], {"axis": 0, "reduction": "add"}),
    "scatter_nd": ("scatter_nd", (2, 1), [ONES], {}),
    "scatter_nd max": ("scatter_nd", (2, 1), [ONES], {"reduction": "max"}),
    "index_put_rows few": ("index_put_rows", (2,), [ONES], {"axis": 0}),
    "index_put_rows many": ("index_put_rows", (9,), [np.ones((9, 3), np.float32)], {"axis": 0}),
}


@pytest.mark.parametrize("case", INDEXED)
def test_indices_out_of_range_are_reported_by_checked_models_only(case: str) -> None:
    name, shape, more, attrs = INDEXED[case]
    build = GraphBuilder("main")
    x, at = build.input("x", TABLE.shape), build.input("at", shape, "int64")
    module = IRModule({"main": build.finish(build.call(name, x, at, *[build.constant(m) for m in more], **attrs))})
    checked, plain = tunesmith.compile(module, bounds_check=True), tunesmith.compile(module)
    good = np.resize(np.array([0, -4, 3, -1]), shape)
    (wanted,) = GRAPH_OPERATORS.get(name).evaluate([TABLE, good, *more], tuple(attrs.items()))
    for made in (checked, plain):
        np.testing.assert_array_equal(made(TABLE, good), wanted)
    for bad, seen in ((4, 4), (-5, -1), (2**40, 2**40)):
        wrong = good.copy()
        wrong.flat[1] = bad
        with pytest.raises(RunError, match=f"op_{name}: the value of the indirect index index in block .* is {seen}, and the extent is 4"):
            checked(TABLE, wrong)
        got = plain(TABLE, wrong)
        if "scatter" not in name and "put" not in name:
            wrong.flat[1] = 3 if bad > 0 else 0
            np.testing.assert_array_equal(got, GRAPH_OPERATORS.get(name).evaluate([TABLE, wrong, *more], tuple(attrs.items()))[0])


def test_one_hot_indices_out_of_range_are_errors_if_strict() -> None:
    """torch raises an error; in ONNX the whole row is `off`."""
    for strict in (False, True):
        build = GraphBuilder("main")
        at = build.input("at", (3,), "int64")
        on, off = build.constant(np.array(1, np.int64)), build.constant(np.array(0, np.int64))
        made = tunesmith.compile(
            IRModule({"main": build.finish(build.call("one_hot", at, on, off, depth=4, strict=strict))}), bounds_check=True
        )
        np.testing.assert_array_equal(made(np.array([0, 3, 1])), np.eye(4, dtype=np.int64)[[0, 3, 1]])
        if strict:
            with pytest.raises(
                RunError, match="op_one_hot: the value of the indirect index index in block one_hot is 4, and the extent is 4"
            ):
                made(np.array([0, 4, 1]))
        else:
            assert np.asarray(made(np.array([0, 4, 1]))).sum() == 2


def test_constant_indices_out_of_range_are_rejected() -> None:
    build = GraphBuilder("main")
    x = build.input("x", (2,))
    picked = build.take(build.constant(np.ones(4, np.float32)), build.constant(np.array([1, 9])), axis=0)
    with pytest.raises(ScriptError, match="take of constants: index 9 is out of bounds"):
        tunesmith.compile(IRModule({"main": build.finish(build.add(picked, x))}))
