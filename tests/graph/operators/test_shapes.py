"""Test operators that move elements: values, types with dynamic sizes, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS, INJECTIVE
from tunesmith.ir.expr import Binary
from tunesmith.ir.poly import Op, Poly, Var, poly
from tunesmith.ir.visit import walk
from tunesmith.ops import tensor_expression as te
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    """An array of distinct, non-zero elements."""
    return (np.arange(1, 1 + int(np.prod(shape))).reshape(shape) * 0.5).astype(dtype)


X = numbers(3, 4, 5)


@pytest.mark.parametrize(
    ("name", "attrs"),
    [
        ("row", {"index": 0}),
        ("row", {"index": 2}),
        ("reshape", {"shape": (12, 5)}),
        ("reshape", {"shape": (3, 20)}),
        ("reshape", {"shape": (5, 4, 3)}),
        ("reshape", {"shape": (60,)}),
        ("reshape", {"shape": (1, 3, 2, 1, 10)}),
        ("reshape", {"shape": (6, 10)}),
        ("permute_dims", {}),
        ("permute_dims", {"axes": (1, -1, 0)}),
        ("expand_dims", {"axes": (0, -1)}),
        ("expand_dims", {"axes": 1}),
        ("broadcast_to", {"shape": (2, 3, 4, 5)}),
        ("split", {"sizes": (1, 3), "axis": 1}),
        ("split", {"sizes": (2, 1, 2), "axis": -1}),
        ("strided_slice", {"axes": (1,), "begin": (1,), "end": (4,)}),
        ("strided_slice", {"axes": (-1, 0), "begin": (4, 0), "end": (-1, 3), "strides": (-2, 2)}),
        ("pad", {"before": (1, 0, 2), "after": (0, 0, 3), "value": 7.0}),
        ("pad", {"before": (0, 0, 0), "after": (0, 0, 0)}),
        ("pad", {"before": (2, 1, 4), "after": (1, 0, 3), "mode": "reflect"}),
        ("pad", {"before": (2, 1, 4), "after": (1, 0, 7), "mode": "edge"}),
        ("pad", {"before": (2, 0, 4), "after": (4, 1, 6), "mode": "wrap"}),
        ("flip", {"axes": (0, -1)}),
        ("tile", {"repeats": (2, 1, 3)}),
        ("tile", {"repeats": (2,)}),
        ("tile", {"repeats": (2, 1, 1, 2)}),
    ],
)
def test_one_operand(name: str, attrs: dict[str, Any]) -> None:
    check_operator(name, [X], **attrs)
    check_operator(name, [X.astype(np.int64)], compiled=False, **attrs)


def test_repeated_and_small_shapes() -> None:
    check_operator("broadcast_to", [numbers(3, 1, 5)], shape=(3, 4, 5))
    check_operator("broadcast_to", [numbers(1)], shape=(2, 3))
    check_operator("broadcast_to", [numbers()], shape=(2,))
    check_operator("squeeze", [numbers(1, 3, 1)], axes=(0, -1))
    check_operator("squeeze", [numbers(1)], axes=0)
    check_operator("reshape", [numbers(1, 1)], shape=())
    check_operator("reshape", [numbers()], shape=(1, 1))
    check_operator("pad", [numbers(4)], before=(1,), after=(1,), value=float("-inf"))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(axis: int) -> None:
    parts = [np.moveaxis(numbers(n, 3, 4) + 100 * n, 0, axis) for n in (2, 5, 1)]
    check_operator("concat", parts, axis=axis)
    check_operator("concat", parts[:1], axis=axis)


def test_concat_of_many() -> None:
    """As for the steps of a recurrent network: many operands are selected by a tree of comparisons, not by a chain."""
    parts = [np.full((1 + n % 2, 3), float(n), np.float32) for n in range(150)]
    check_operator("concat", parts, axis=0)


@pytest.mark.parametrize("size", [1, 5, 16, 40])
def test_concat_along_vectors(size: int) -> None:
    """Rows longer and shorter than a vector register."""
    check_operator("concat", [numbers(3, size), numbers(3, 19) + 500], axis=1)


def test_kinds() -> None:
    names = "broadcast_to concat expand_dims flip pad permute_dims reshape split squeeze strided_slice tile".split()
    assert {GRAPH_OPERATORS.get(n).kind for n in names} == {INJECTIVE}
    assert [n for n in names if GRAPH_OPERATORS.get(n).view] == ["expand_dims", "reshape", "squeeze"]


def _divisions(shape: tuple[Any, ...], new: tuple[Any, ...]) -> int:
    """The number of divisions in the index of a reshape."""
    x = te.placeholder(shape)
    made = GRAPH_OPERATORS.get("reshape").apply([x], (("shape", new),))[0]
    assert made.value is not None
    polys = [n for n in walk(made.value) if isinstance(n, Poly)]
    return sum(isinstance(a, Op) for p in polys for m, _ in p.terms for a in m)


def test_reshape_divides_only_in_regrouped_dimensions() -> None:
    n = poly(Var("n"))
    assert _divisions((n, 768), (n, 12, 64)) == 0
    assert _divisions((n, 12, 64), (n, 768)) == 2
    assert _divisions((8, n, 4), (2, 4, n * 4)) == 2
    assert _divisions((1, n, 1), (n,)) == 0


def infer(name: str, types: list[TensorType], **attrs: Any) -> tuple[TensorType, ...]:
    operator = GRAPH_OPERATORS.get(name)
    return operator.infer(types, operator.bind(attrs))


def test_types_with_dynamic_sizes() -> None:
    n = poly(Var("n"))
    x = TensorType.of((n, 4, 6))
    assert infer("reshape", [x], shape=(n * 4, 6)) == (TensorType.of((n * 4, 6)),)
    assert infer("reshape", [x], shape=(n, 2, 12)) == (TensorType.of((n, 2, 12)),)
    assert infer("permute_dims", [x], axes=(2, 0, 1)) == (TensorType.of((6, n, 4)),)
    assert infer("concat", [x, TensorType.of((2, 4, 6)), x], axis=0) == (TensorType.of((n * 2 + 2, 4, 6)),)
    assert infer("strided_slice", [x], axes=(0,), begin=(n - 1,), end=(n,)) == (TensorType.of((1, 4, 6)),)
    assert infer("strided_slice", [x], axes=(0, 2), begin=(1, 5), end=(n, -1), strides=(1, -2)) == (TensorType.of((n - 1, 4, 3)),)
    assert infer("broadcast_to", [TensorType.of((1, 6))], shape=(n, 6)) == (TensorType.of((n, 6)),)
    assert infer("split", [x], sizes=(n - 1, 1), axis=0) == (TensorType.of((n - 1, 4, 6)), TensorType.of((1, 4, 6)))
    assert infer("pad", [x], before=(1, 0, 0), after=(1, 0, 0), mode="reflect") == (TensorType.of((n + 2, 4, 6)),)
    assert infer("tile", [x], repeats=(2, 1, 1)) == (TensorType.of((n * 2, 4, 6)),)


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "message"),
    [
        ("reshape", [(3, 4)], {"shape": (5, 2)}, r"the 12 elements of .* do not fill the shape \[5, 2\]"),
        ("reshape", [(3, 4)], {"shape": (0, 12)}, "do not fill the shape"),
        ("permute_dims", [(3, 4)], {"axes": (0, 2)}, "axis 2 is not an axis of 2 dimensions"),
        ("permute_dims", [(3, 4)], {"axes": (1, -1)}, "contain an axis twice"),
        ("permute_dims", [(3, 4)], {"axes": (1,)}, "must contain each of the 2 axes"),
        ("expand_dims", [(3, 4)], {"axes": (5,)}, "axis 5 is not an axis of 3 dimensions"),
        ("squeeze", [(3, 1)], {"axes": (0,)}, "has the extent 3; only axes of extent 1"),
        ("squeeze", [()], {"axes": (0,)}, "a scalar has no axis"),
        ("broadcast_to", [(3, 4)], {"shape": (3, 5)}, "cannot be broadcast"),
        ("broadcast_to", [(3, 4)], {"shape": (4,)}, "cannot be broadcast"),
        ("concat", [(3, 4), (3, 5)], {"axis": 0}, "differ in more than the extent of axis 0"),
        ("concat", [(3, 4), (3,)], {"axis": 0}, "differ in more than"),
        ("concat", [], {"axis": 0}, "concat needs at least one operand"),
        ("split", [(3, 4)], {"sizes": (1, 2), "axis": 1}, "do not add up to the extent 4"),
        ("strided_slice", [(3, 4)], {"axes": (0,), "begin": (0,), "end": (4,)}, "range 0:4:1 exceeds axis 0"),
        ("strided_slice", [(3, 4)], {"axes": (0,), "begin": (-1,), "end": (3,)}, "range -1:3:1 exceeds"),
        ("strided_slice", [(3, 4)], {"axes": (0,), "begin": (3,), "end": (-1,), "strides": (-1,)}, "range 3:-1:-1 exceeds"),
        ("strided_slice", [(3, 4)], {"axes": (0,), "begin": (2,), "end": (2,)}, "the extent 0 is not positive"),
        ("strided_slice", [(3, 4)], {"axes": (0,), "begin": (0, 1), "end": (2,)}, "must have equal lengths"),
        ("strided_slice", [(3, 4)], {"axes": (0,), "begin": (0,), "end": (2,), "strides": (0,)}, "strides must not be 0"),
        ("pad", [(3, 4)], {"before": (1,), "after": (1, 1)}, "a number >= 0 for each of the 2 axes"),
        ("pad", [(3, 4)], {"before": (-1, 0), "after": (1, 1)}, "a number >= 0"),
        ("pad", [(3, 4)], {"before": (3, 0), "after": (0, 0), "mode": "reflect"}, "cannot be reflected over 3 elements"),
        ("pad", [(3, 4)], {"before": (1, 0), "after": (0, 0), "mode": "mirror"}, "unknown mode 'mirror' of padding"),
        ("flip", [(3, 4)], {"axes": (2,)}, "axis 2 is not an axis"),
    ],
)
def test_errors(name: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        infer(name, [TensorType.of(s) for s in shapes], **attrs)


def test_concat_of_two_types_is_rejected() -> None:
    with pytest.raises(ScriptError, match="differ in more than the extent"):
        infer("concat", [TensorType.of((3,)), TensorType.of((3,), "int32")], axis=0)


def test_few_concat_operands_are_selected_in_order() -> None:
    x = te.placeholder((4,))
    made = GRAPH_OPERATORS.get("concat").apply([x, x], (("axis", 0),))[0]
    assert made.value is not None and not [n for n in walk(made.value) if isinstance(n, Binary)]


def test_rows_out_of_range_are_refused() -> None:
    operator = GRAPH_OPERATORS.get("row")
    for shape, index, message in (
        ((3, 2), 3, "row 3 is out of range"),
        ((3,), -1, "row -1 is out of range"),
        ((), 0, "a number has no rows"),
    ):
        with pytest.raises(ScriptError, match=message):
            operator.infer([TensorType.of(shape)], operator.bind({"index": index}))
