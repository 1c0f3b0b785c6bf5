"""Test operators of several tensors against numpy, interpreted and compiled, on all pairs of edge cases; shapes; errors."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.driver.compile import build
from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import BROADCAST, GRAPH_OPERATORS
from tunesmith.graph.operators.broadcast import broadcast_shapes
from tunesmith.ir import structural
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import Var, poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.binary import binary
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

ARITHMETIC = ("add", "subtract", "multiply", "divide", "floor_divide", "mod", "fmod", "maximum", "minimum", "prelu")
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
LOGIC = ("logical_and", "logical_or", "logical_xor")
FLOATS = ("float16", "float32", "float64")
INTS = ("int32", "int64", "uint8")
EDGES = np.array([0.0, 1, -1, 0.5, -0.5, 2.5, -7, 3, 1e-3, 30, np.nan, np.inf, 2, 64, -3, 100])
"""Without -inf: numpy's power of -inf and 0.5 is +inf in arrays and NaN in float32 scalars."""


def _ints(dtype: str) -> np.ndarray:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.array([0, 1, 2, 3, 5, 7, 63, 100, low, high] + [-1, -2, -3, -7, -100, low + 1] * (low < 0)).astype(dtype)


def _pairs(values: np.ndarray) -> list[np.ndarray]:
    return [values[:, None], values]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", (*ARITHMETIC, "power", *COMPARISONS))
def test_floats(name: str, dtype: str) -> None:
    check_operator(name, _pairs(EDGES.astype(dtype)))


@pytest.mark.parametrize("name", ("maximum", "minimum", "mod", "fmod", "floor_divide", "divide", *COMPARISONS))
def test_minus_infinity(name: str) -> None:
    check_operator(name, _pairs(np.float32([-np.inf, np.inf, np.nan, 0, -1, 2.5])))


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("name", (*ARITHMETIC, *COMPARISONS))
def test_integers(name: str, dtype: str) -> None:
    check_operator(name, _pairs(_ints(dtype)))


def test_integer_quotients() -> None:
    a, b = np.array([7, -7, 7, -7, 6, -6]), np.array([2, 2, -2, -2, 3, -3])
    wanted = {
        "divide": [3, -3, -3, 3, 2, 2],
        "floor_divide": [3, -4, -4, 3, 2, 2],
        "mod": [1, 1, -1, -1, 0, 0],
        "fmod": [1, -1, 1, -1, 0, 0],
    }
    for name, result in wanted.items():
        assert GRAPH_OPERATORS.get(name).evaluate([a, b])[0].tolist() == result, name
        check_operator(name, [a, b])


@pytest.mark.parametrize("name", ("floor_divide", "mod", "fmod"))
@pytest.mark.parametrize("dtype", ("float32", "float64"))
def test_remainders_of_floats_are_exact(name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    tenths = (rng.integers(-1000, 1000, 100) * 0.1).astype(dtype)
    wide = (rng.standard_normal(300) * 10 ** rng.uniform(-3, 6, 300)).astype(dtype)
    check_operator(name, [tenths, np.array([0.1], dtype)], atol=0)
    check_operator(name, [wide, rng.standard_normal(300).astype(dtype)], atol=0)


def test_power_of_integers() -> None:
    for dtype in ("int32", "int64"):
        base = np.array([0, 1, -1, 2, -2, 3, -7, 100], dtype)
        check_operator("power", [base[:, None], np.array([0, 1, 2, 3, 4, 9, 31, -1, -2, -3], dtype)])
        check_operator("power", [base[:3, None], np.array([63, 64, 65, 1000, 1001], dtype)])
    check_operator("power", [np.array([0, 1, 2, 3, 255], np.uint8)[:, None], np.array([0, 1, 2, 5, 7], np.uint8)])
    assert GRAPH_OPERATORS.get("power").evaluate([np.array([3]), np.array([39])])[0][0] == 3**39
    check_operator("power", [np.array([3, -3]), np.array([39, 39])])


def test_power_of_float64() -> None:
    rng = np.random.default_rng(0)
    bases = np.exp2(rng.uniform(-300, 300, 300))
    check_operator("power", [bases, rng.uniform(-3, 3, 300)], rtol=4e-13, atol=0)
    check_operator("power", [1 + rng.uniform(-1e-6, 1e-6, 300), rng.uniform(-1e8, 1e8, 300)], rtol=4e-13, atol=0)
    whole = [rng.integers(-20, 20, 300).astype(float), rng.integers(0, 12, 300).astype(float)]
    check_operator("power", whole, rtol=0, atol=0)
    check_operator("power", _pairs(np.array([-np.inf, -1.0, 1.0, np.inf, np.nan, 0.0, -65.0, 65.0, 66.0, -2.0, 0.5])))


def test_bool() -> None:
    for name in (*LOGIC, "equal", "not_equal"):
        check_operator(name, _pairs(np.array([True, False])))


@pytest.mark.parametrize("dtype", ("float16", "float32", "float64", "int32", "int64", "bool"))
def test_where(dtype: str) -> None:
    condition = np.array([[True, False, True], [False, True, True]])
    check_operator("where", [condition, np.arange(3).astype(dtype), np.array(1, dtype)])
    check_operator("where", [condition[0], np.zeros((4, 1, 1), dtype), np.ones((2, 1), dtype)])
    check_operator("where", [np.array(False), np.zeros(3, dtype), np.ones((2, 1), dtype)])


@pytest.mark.parametrize("dtype", ("float16", "float32", "float64"))
def test_fma(dtype: str) -> None:
    """a * a - 1 for a = 1 + eps is 2 eps + eps**2, which is lost if the product is rounded, except in 16 bits, where both are."""
    eps = np.finfo(dtype).eps
    a = np.array([1 + eps, 3.0, np.inf, np.nan, -0.0], dtype)
    check_operator("fma", [a, a, np.array(-1, dtype)], rtol=0, atol=0)
    check_operator("fma", [a.reshape(5, 1), a, np.array([[2.0], [np.nan]] * 2 + [[1.0]], dtype)], rtol=0, atol=0)
    made = GRAPH_OPERATORS.get("fma").evaluate([a, a, np.array(-1, dtype)], ())[0]
    exact = 2 * np.float64(eps) + np.float64(eps) ** 2
    assert made[0] == np.array(exact).astype(dtype)


@pytest.mark.parametrize(
    ("a", "b"), [((3, 5), (3, 5)), ((3, 5), (5,)), ((3, 1), (1, 5)), ((), (2, 3)), ((1,), ()), ((4, 1, 3), (2, 1)), ((1, 1), (1,))]
)
def test_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    check_operator("subtract", [rng.standard_normal(a).astype(np.float32), rng.standard_normal(b).astype(np.float32)])


def test_result_types() -> None:
    kinds = [TensorType.of((3, 1), "float32"), TensorType.of((4,), "float32")]
    for name in ARITHMETIC:
        assert GRAPH_OPERATORS.get(name).infer(kinds) == (TensorType.of((3, 4), "float32"),)
    for name in COMPARISONS:
        assert GRAPH_OPERATORS.get(name).infer(kinds) == (TensorType.of((3, 4), "bool"),)
    assert all(GRAPH_OPERATORS.get(n).kind == BROADCAST for n in (*ARITHMETIC, *COMPARISONS, *LOGIC, "where", "power"))


def test_symbolic_sizes() -> None:
    n, m = Var("n"), Var("m")
    add, where = GRAPH_OPERATORS.get("add"), GRAPH_OPERATORS.get("where")
    a, b = TensorType.of((n, 1, poly(m) * 2)), TensorType.of((3, poly(m) + m))
    assert add.infer([a, b]) == (TensorType.of((n, 3, poly(m) * 2)),)
    assert where.infer([TensorType.of((n,), "bool"), TensorType.of(()), TensorType.of((1,))]) == (TensorType.of((n,)),)
    with pytest.raises(ScriptError, match="axis -1 is n in one and m in another"):
        add.infer([TensorType.of((n,)), TensorType.of((m,))])


def test_a_symbolic_program_runs() -> None:
    n = Var("n")
    x, y = te.placeholder((n, 3), "float32", "A"), te.placeholder((n, 1), "float32", "B")
    func = te.create_prim_func([x, y, *GRAPH_OPERATORS.get("multiply").apply([x, y])])
    a, b = np.float32([[1, 2, 3], [4, 5, 6]]), np.float32([[2], [3]])
    sizes = [p for p in func.params if isinstance(p, Var)]
    assert np.array_equal(run(func, [a, b], {sizes[0]: 2})[-1], a * b)


@pytest.mark.parametrize(
    ("name", "workload_name"), [("add", "add"), ("subtract", "sub"), ("multiply", "mul"), ("divide", "div"), ("maximum", "maximum")]
)
def test_programs_equal_those_of_ops(name: str, workload_name: str) -> None:
    a, b = te.placeholder((3, 4), "float32", "A"), te.placeholder((1, 4), "float32", "B")
    made = te.create_prim_func([a, b, *GRAPH_OPERATORS.get(name).apply([a, b])])
    assert structural.equal(made, te.create_prim_func([a, b, binary(workload_name, a, b)]))


def test_broadcast_shapes() -> None:
    assert broadcast_shapes((poly(2), poly(1)), (poly(3),), ()) == (2, 3)
    assert broadcast_shapes(()) == ()
    with pytest.raises(ScriptError, match=r"the shapes \[2, 3\] and \[4\] cannot be broadcast: axis -1 is 3 in one and 4 in another"):
        broadcast_shapes((poly(2), poly(3)), (poly(4),))


@pytest.mark.parametrize(
    ("name", "types", "message"),
    [
        ("add", ["float32", "int32"], r"add\(float32\[2\], int32\[2\]\): the operands are float32 and int32, but types are never promoted"),
        ("add", ["bool", "bool"], "it takes floats and integers, not bool"),
        ("less", ["bool", "bool"], "it takes floats and integers, not bool"),
        ("logical_and", ["int32", "int32"], "it takes bool, not int32"),
        ("power", ["float32", "float64"], "the operands are float32 and float64"),
        ("where", ["float32", "float32", "float32"], "the condition must be bool, got float32"),
        ("where", ["bool", "float32", "int64"], "the operands are float32 and int64"),
        ("fma", ["int32", "int32", "int32"], "it takes floats, not int32"),
        ("fma", ["float32", "float32", "float64"], "the operands are float32 and float64"),
        ("prelu", ["float32"], "prelu takes 2 operands, got 1"),
    ],
)
def test_errors(name: str, types: list[str], message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        GRAPH_OPERATORS.get(name).infer([TensorType.of((2,), t) for t in types])


def test_incompatible_shapes() -> None:
    with pytest.raises(ScriptError, match="axis -2 is 2 in one and 3 in another"):
        GRAPH_OPERATORS.get("maximum").infer([TensorType.of((2, 4)), TensorType.of((3, 1))])


@pytest.mark.parametrize("dtype", FLOATS)
def test_remainders_of_zero_have_the_sign_of_the_dividend(dtype: str) -> None:
    a, b = np.array([0.0, -0.0, 4.0, -4.0, 6.0, -6.0], dtype), np.array([2.0, 2.0, -2.0, 2.0, 1.5, -1.5], dtype)
    x, y = te.placeholder((6,), dtype, "x"), te.placeholder((6,), dtype, "y")
    func = te.create_prim_func([x, y, *GRAPH_OPERATORS.get("fmod").apply([x, y])])
    out = np.ones(6, dtype)
    build(func)(a, b, out)
    assert not out.any() and np.signbit(out).tolist() == np.signbit(np.fmod(a, b)).tolist() == [False, True, False, True, False, True]


def test_remainders_of_very_large_quotients_are_nan() -> None:
    a, b = np.float32([3e38, 1e10, -3e38, 5]), np.float32([3, 3, 0.7, 1e38])
    x, y = te.placeholder((4,), "float32", "x"), te.placeholder((4,), "float32", "y")
    for name in ("fmod", "mod"):
        out = np.ones(4, np.float32)
        build(te.create_prim_func([x, y, *GRAPH_OPERATORS.get(name).apply([x, y])]))(a, b, out)
        np.testing.assert_array_equal(out, np.float32([np.nan, 1, np.nan, 5]))
