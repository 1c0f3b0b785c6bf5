"""Expanded elementary functions against numpy in a wider type, over all exponents, and the pass that inserts them."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tunesmith.ir.buffer import Buffer, BufferLoad, load
from tunesmith.ir.expr import Binary, Broadcast, Call, Expr, Select, call, const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.intrinsics import INTRINSICS
from tunesmith.ir.poly import Var
from tunesmith.ir.stmt import BufferStore, nest, store
from tunesmith.ir.target.target import Target
from tunesmith.lower.passes.expand_math import expand_math
from tunesmith.lower.vector_math import expand_call, expand_floored, expand_pow
from tunesmith.lower.vector_math_tables import MULTIPLIED_EXPONENTS, OPERATIONS
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError


def _beside(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


expr_eval = _beside("expr_eval")
TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")

BINARY = {"pow": expand_pow, "floordiv": expand_floored, "mod": expand_floored}
Array = Any
ERF = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))


REFERENCE: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "tanh": np.tanh,
    "erf": lambda x: ERF(x).astype(x.dtype),
    "sigmoid": _sigmoid,
    "sin": np.sin,
    "cos": np.cos,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
# The accuracies that the docstrings state.
BOUND = {
    "exp": 2.2,
    "exp2": 1.9,
    "log": 1.2,
    "log2": 2.2,
    "tanh": 2.6,
    "erf": 3.2,
    "sigmoid": 3.5,
    "sin": 2.4,
    "cos": 2.4,
    "rsqrt": 1.5,
}
SPECIAL = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        1.17549435e-38,
        1.1754942e-38,
        3.4028235e38,
        -3.4028235e38,
        0.5,
        2.0,
        4.0,
    ],
    np.float32,
)


def _leaf(dtype: str = "float32", name: str = "x") -> BufferLoad:
    element, lanes = dt.split(dtype)
    buffer = Buffer(name, (lanes,), element)
    return load(buffer, 0) if lanes == 1 else BufferLoad(buffer, load(buffer, 0).indices, lanes)


def _ulps(got: Array, exact: Array) -> Array:
    """|got - exact| in ulp of `exact` as a number of `got`'s type; infinite where only one is NaN or infinite."""
    limits = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        exponent = np.maximum(np.frexp(exact)[1] - limits.nmant - 1, limits.minexp - limits.nmant)
        error = np.abs(got.astype(exact.dtype) - exact) / np.ldexp(exact.dtype.type(1), exponent)
    error = np.where(np.isfinite(got) == np.isfinite(rounded), error, np.inf)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.where(np.isfinite(error) | ~same, np.nan_to_num(error, nan=np.inf), 0.0)


def _check(name: str, x: Array, bound: float) -> None:
    leaf = _leaf(str(x.dtype))
    got = expr_eval.evaluate(expand_call(call(name, leaf)), {leaf: x})
    with np.errstate(all="ignore"):
        exact = REFERENCE[name](x.astype(np.float64 if x.dtype == np.float32 else np.longdouble))
    error = _ulps(got, exact)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, f"{name}({x[worst]!r}) = {got[worst]!r}, exact {exact[worst]!r}: {error[worst]} ulp"
    zero = got == 0
    assert np.array_equal(np.signbit(got[zero]), np.signbit(exact[zero])), f"{name}: sign of zero"


def test_every_expanded_intrinsic_has_a_reference_here() -> None:
    assert set(REFERENCE) == {name for name, i in INTRINSICS.items() if i.expanded}


@pytest.mark.parametrize("name", REFERENCE)
def test_accuracy_over_all_exponents_and_signs(name: str) -> None:
    bits = np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32)
    _check(name, np.concatenate([bits.view(np.float32), SPECIAL]), BOUND[name])


DENSE = {
    "exp": [(-104.5, -86.5), (-1, 1), (88, 89)],
    "exp2": [(-151.5, -125), (-1, 1), (127, 128.5)],
    "log": [(0.65, 1.55), (0.99, 1.01)],
    "log2": [(0.65, 1.55), (0.99, 1.01)],
    "tanh": [(-0.3, 0.7), (7.5, 10)],
    "erf": [(-0.3, 0.7), (3, 4.2)],
    "sigmoid": [(-104.5, -86.5), (-4, 4), (14, 18)],
    "sin": [(-7, 7), (1e5, 2e5)],
    "cos": [(-7, 7), (1e5, 2e5)],
    "rsqrt": [(0.2, 5)],
}


@pytest.mark.parametrize("name", DENSE)
def test_accuracy_where_results_are_denormal_zero_or_saturated(name: str) -> None:
    x = np.concatenate([np.linspace(low, high, 40001) for low, high in DENSE[name]]).astype(np.float32)
    _check(name, x, BOUND[name])


@pytest.mark.parametrize(("name", "x", "y"), [
    ("exp", 0.0, 1.0),
    ("exp", -0.0, 1.0),
    ("exp", -np.inf, 0.0),
    ("exp", np.inf, np.inf),
    ("exp2", -149.0, 1e-45),
    ("exp2", 10.0, 1024.0),
    ("log", 1.0, 0.0),
    ("log", 0.0, -np.inf),
    ("log", -0.0, -np.inf),
    ("log", -1e-45, np.nan),
    ("log2", 1e-45, -149.0),
    ("log2", 0.125, -3.0),
    ("log2", np.inf, np.inf),
    ("tanh", -0.0, -0.0),
    ("tanh", 1e-45, 1e-45),
    ("tanh", -np.inf, -1.0),
    ("erf", -0.0, -0.0),
    ("erf", np.inf, 1.0),
    ("sigmoid", 0.0, 0.5),
    ("sigmoid", -np.inf, 0.0),
    ("sigmoid", np.inf, 1.0),
    ("sin", -0.0, -0.0),
    ("sin", -1e-45, -1e-45),
    ("sin", np.inf, np.nan),
    ("cos", -0.0, 1.0),
    ("cos", -np.inf, np.nan),
    ("rsqrt", 0.0, np.inf),
    ("rsqrt", -0.0, -np.inf),
    ("rsqrt", np.inf, 0.0),
    ("rsqrt", -1.0, np.nan),
])  # fmt: skip
def test_exact_values(name: str, x: float, y: float) -> None:
    leaf = _leaf()
    got = expr_eval.evaluate(expand_call(call(name, leaf)), {leaf: np.array([x], np.float32)})[0]
    want = np.float32(y)
    assert np.array_equal(got, want, equal_nan=True) and (np.isnan(want) or np.signbit(got) == np.signbit(want))


@pytest.mark.parametrize("name", REFERENCE)
def test_nan_stays_nan(name: str) -> None:
    leaf = _leaf()
    assert np.isnan(expr_eval.evaluate(expand_call(call(name, leaf)), {leaf: np.array([np.nan, -np.nan], np.float32)})).all()


@pytest.mark.parametrize(("name", "low", "high"), [("tanh", -1, 1), ("erf", -1, 1), ("sigmoid", 0, 1), ("sin", -1, 1), ("cos", -1, 1)])
def test_values_stay_in_their_range(name: str, low: float, high: float) -> None:
    x = np.concatenate([np.linspace(-20, 20, 200001), np.linspace(3.5, 9.5, 200001)]).astype(np.float32)
    leaf = _leaf()
    got = expr_eval.evaluate(expand_call(call(name, leaf)), {leaf: x})
    assert got.min() >= low and got.max() <= high


# The float32 numbers nearest to an odd and to an even multiple of pi/2, and the worst below 2**50; exact values by 80-digit arithmetic.
@pytest.mark.parametrize(("name", "x", "exact"), [
    ("cos", math.ldexp(16367173, 72), -1.6147697982476211e-09),
    ("sin", math.ldexp(16367173, 73), -3.2295395964952422e-09),
    ("sin", math.ldexp(10741887, 12), -4.0252920638371055e-09),
])  # fmt: skip
def test_hardest_argument_reduction(name: str, x: float, exact: float) -> None:
    leaf = _leaf()
    got = expr_eval.evaluate(expand_call(call(name, leaf)), {leaf: np.array([x, -x], np.float32)})
    want = np.array([exact, -exact if name == "sin" else exact])
    assert _ulps(got, want).max() <= BOUND[name]


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_multiples_of_half_pi_and_window_borders(name: str) -> None:
    near = (np.arange(1, 60001) * (math.pi / 2)).astype(np.float32)
    borders = np.concatenate([np.float32(2.0**e) * (1 + np.linspace(-0.01, 0.01, 2001, dtype=np.float32)) for e in (50, 76, 102)])
    top = np.linspace(3e38, 3.4e38, 4001).astype(np.float32)
    _check(name, np.concatenate([near, -near, borders, top]), BOUND[name])


def _pow(x: Array, y: Array) -> Array:
    a, b = _leaf(), _leaf(name="y")
    return expr_eval.evaluate(expand_pow(Binary("pow", a, b)), {a: x, b: y})


def test_pow_of_special_pairs_follows_c99() -> None:
    values = np.concatenate(
        [SPECIAL, np.array([3, -3, -2, -0.5, 1.5, -1.5, 0.1, -0.1, 16777215, -16777216, 8388607.5, 1e10, -1e10], np.float32)]
    )
    values = np.concatenate([values, np.array([0.99999994, 1.0000001, -0.99999994], np.float32)])
    x, y = (g.ravel() for g in np.meshgrid(values, values))
    got = _pow(x, y)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
        signs = np.signbit(exact.astype(np.float32))
    assert _ulps(got, exact).max() <= 1.0
    assert np.array_equal(np.signbit(got) & ~np.isnan(got), signs & ~np.isnan(got))


def test_pow_is_accurate_for_random_pairs() -> None:
    rng = np.random.default_rng(5)
    bits = rng.integers(1, 0x7F800000, 1 << 18, dtype=np.uint32).view(np.float32)
    near_one = (1 + rng.uniform(-1, 1, 1 << 18) * 2.0 ** rng.uniform(-22, -1, 1 << 18)).astype(np.float32)
    x = np.concatenate([bits, near_one])
    with np.errstate(divide="ignore"):
        y = (rng.uniform(-151, 129, x.size) / np.log2(x.astype(np.float64))).clip(-3e38, 3e38).astype(np.float32)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    assert _ulps(_pow(x, y), exact).max() <= 1.0


@pytest.mark.parametrize("exponent", MULTIPLIED_EXPONENTS)
def test_constant_exponents_need_no_logarithm(exponent: float) -> None:
    x = np.concatenate([np.arange(0, 2**32, 40009, dtype=np.uint64).astype(np.uint32).view(np.float32), SPECIAL])
    leaf = _leaf()
    tree = expand_pow(Binary("pow", leaf, const(exponent, "float32")))
    assert sum(expr_eval.count_operations(tree)) <= 5
    got = np.broadcast_to(expr_eval.evaluate(tree, {leaf: x}), x.shape)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), np.full(x.shape, exponent))  # a scalar 0.5 would be a square root, NaN at -inf
    assert _ulps(got, exact).max() <= 2.0
    assert np.array_equal(np.signbit(got[got == 0]), np.signbit(exact[got == 0]))


@pytest.mark.parametrize("name", [*REFERENCE, *BINARY])
@pytest.mark.parametrize("lanes", [4, 16])
def test_vectors_compute_the_same_as_scalars(name: str, lanes: int) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([SPECIAL, rng.normal(0, 10, 1024 - SPECIAL.size)]).astype(np.float32)
    y = rng.normal(0, 3, 1024).astype(np.float32)

    def run(dtype: str, shape: tuple[int, ...]) -> Array:
        a, b = _leaf(dtype), _leaf(dtype, "y")
        tree = BINARY[name](Binary(name, a, b)) if name in BINARY else expand_call(call(name, a))
        assert tree.dtype == dtype
        return expr_eval.evaluate(tree, {a: x.reshape(shape), b: y.reshape(shape)}).reshape(-1)

    assert np.array_equal(run(f"float32x{lanes}", (-1, lanes)).view(np.uint32), run("float32", (-1,)).view(np.uint32))


def test_broadcast_constant_exponent_is_recognized() -> None:
    leaf = _leaf("float32x8")
    tree = expand_pow(Binary("pow", leaf, Broadcast(const(2, "float32"), 8)))
    assert isinstance(tree, Binary) and tree.op == "mul" and tree.a is leaf and tree.b is leaf


def test_integer_powers_multiply() -> None:
    leaf = _leaf("int32")
    x = np.arange(-50, 50, dtype=np.int32)
    for exponent in (0, 1, 2, 3, 4):
        got = expr_eval.evaluate(expand_pow(Binary("pow", leaf, const(exponent, "int32"))), {leaf: x})
        assert np.array_equal(np.broadcast_to(got, x.shape), x**exponent)


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_half_types_compute_in_float32(name: str, half: str) -> None:
    x = np.linspace(-9, 9, 4001).astype(np.float32)
    x = expr_eval.to_bfloat16(x) if half == "bfloat16" else x.astype(np.float16)
    leaf, wide = _leaf(half), _leaf()
    tree = expand_call(call(name, leaf))
    assert tree.dtype == half
    with np.errstate(all="ignore"):
        full = expr_eval.evaluate(expand_call(call(name, wide)), {wide: x.astype(np.float32)})
        want = expr_eval.to_bfloat16(full) if half == "bfloat16" else full.astype(np.float16)
    assert np.array_equal(expr_eval.evaluate(tree, {leaf: x}), want, equal_nan=True)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no type wider than float64 to compare with")
@pytest.mark.parametrize("name", ["exp", "exp2", "log", "log2", "tanh", "sigmoid", "rsqrt"])
def test_float64_accuracy(name: str) -> None:
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 2**64, 20000, dtype=np.uint64).view(np.float64)
    x = np.concatenate(
        [bits, rng.uniform(-1080, 1030, 20000), rng.normal(0, 1, 20000), 1 + rng.normal(0, 0.1, 20000), SPECIAL.astype(np.float64)]
    )
    _check(name, x, 2.5)


def test_float64_erf() -> None:
    x = np.concatenate([np.linspace(-6.5, 6.5, 20001), np.geomspace(1e-300, 1, 2001), [0.0, -0.0, np.inf, -np.inf, np.nan]])
    _check("erf", x, 3.5)  # math.erf itself is off by up to 1 ulp


@pytest.mark.parametrize("name", [*REFERENCE, *BINARY])
def test_cost_table(name: str) -> None:
    leaf, other = _leaf("float32x16"), _leaf("float32x16", "y")
    tree = BINARY[name](Binary(name, leaf, other)) if name in BINARY else expand_call(call(name, leaf))
    assert expr_eval.count_operations(tree) == OPERATIONS[name]


PLAIN = {"abs", "sqrt", "trunc", "floor", "copysign", "fma", "ldexp", "reinterpret"}


@pytest.mark.parametrize("name", [*REFERENCE, *BINARY])
def test_only_lane_wise_arithmetic_remains(name: str) -> None:
    leaf, other = _leaf("float32x16"), _leaf("float32x16", "y")
    tree = BINARY[name](Binary(name, leaf, other)) if name in BINARY else expand_call(call(name, leaf))
    for n in expr_eval.nodes(tree):
        assert dt.lanes(n.dtype) == 16 or not isinstance(n, (Binary, Call, Select))
        assert not isinstance(n, Call) or n.name in PLAIN
        assert not isinstance(n, Binary) or n.op not in ("pow", "min", "max", "floordiv", "mod")


@pytest.mark.parametrize(("name", "dtype", "words"), [
    ("sin", "float64", ["sin of float64", "computes in float64", "Cast the operand to float32"]),
    ("cos", "float64x8", ["cos of float64x8", "no wider type"]),
    ("exp", "int32", ["exp of int32", "take floats", "cast the operand to float32"]),
])  # fmt: skip
def test_refused_calls(name: str, dtype: str, words: list[str]) -> None:
    with pytest.raises(BuildError) as e:
        expand_call(call(name, _leaf(dtype)))
    assert all(w in str(e.value) for w in words), str(e.value)


@pytest.mark.parametrize(("dtype", "exponent", "words"), [
    ("float64", None, ["pow of float64", "0.5", "Cast the operand to float32"]),
    ("float64", 2.5, ["pow of float64"]),
    ("int32", None, ["pow of int32", "0, 1, 2, 3 and 4", "cast the operands to float32"]),
    ("int32", -1, ["pow of int32"]),
    ("int32", 5, ["pow of int32"]),
    ("bool", None, ["pow of bool", "take floats"]),
])  # fmt: skip
def test_refused_powers(dtype: str, exponent: float | None, words: list[str]) -> None:
    y = _leaf(dtype, "y") if exponent is None else const(exponent, dtype)
    with pytest.raises(BuildError) as e:
        expand_pow(Binary("pow", _leaf(dtype), y))
    assert all(w in str(e.value) for w in words), str(e.value)


def _function(make: Callable[[Expr], Expr], dtype: str = "float32") -> PrimFunc:
    a, b, i = Buffer("A", (8,), dtype), Buffer("B", (8,), dtype), Var("i")
    return PrimFunc("f", (a, b), (), nest([(i, 8)], store(b, [i], make(a[i]))))


def _value(func: PrimFunc) -> Expr:
    body = func.body
    while not isinstance(body, BufferStore):
        body = body.body  # type: ignore[attr-defined]
    return body.value


def test_function_without_such_calls_is_unchanged() -> None:
    func = _function(lambda x: call("sqrt", x) + x * 2.0)
    assert expand_math(func, TARGET) is func


def test_every_call_is_replaced_and_the_pass_is_idempotent() -> None:
    func = expand_math(_function(lambda x: Binary("pow", call("tanh", call("exp", x) + 1.0), call("sqrt", x))), TARGET)
    names = {n.name for n in expr_eval.nodes(_value(func)) if isinstance(n, Call)}
    assert "sqrt" in names and names <= PLAIN
    assert not any(isinstance(n, Binary) and n.op == "pow" for n in expr_eval.nodes(_value(func)))
    assert expand_math(func, TARGET) is func


def test_shared_expressions_stay_shared() -> None:
    def make(x: Expr) -> Expr:
        t = call("exp", x) + 1.0
        return call("log", t) * t + t

    shared = expand_math(_function(make), TARGET)
    operations = expr_eval.count_operations(_value(shared))[0]
    assert operations == OPERATIONS["exp"][0] + OPERATIONS["log"][0] + 3


def test_nested_functions_take_time_linear_in_objects() -> None:
    def make(x: Expr) -> Expr:
        for _ in range(12):  # as a tree this would have about 400**12 nodes
            x = call("tanh", x)
        return x

    func = _function(make)
    assert expr_eval.count_operations(_value(expand_math(func, TARGET))) == (12 * OPERATIONS["tanh"][0], 0)


def test_expanded_function_computes_the_composition() -> None:
    leaf_of: list[Expr] = []

    def make(x: Expr) -> Expr:
        leaf_of.append(x)
        return x * call("sigmoid", x)

    value = _value(expand_math(_function(make), TARGET))
    x = np.linspace(-20, 20, 101).astype(np.float32)
    (leaf,) = [n for n in expr_eval.nodes(value) if isinstance(n, BufferLoad)]
    assert leaf is leaf_of[0]
    np.testing.assert_allclose(expr_eval.evaluate(value, {leaf: x}), x * _sigmoid(x.astype(np.float64)), rtol=5e-7)


def test_evaluator_fma_rounds_once() -> None:
    one = np.float32(1)
    a = np.array([1 + 2.0**-12, 1.0, 2.0**-60], np.float32)
    # 1 + 2**-11 + 2**-24 would lose its last bit in a product rounded to float32.
    assert expr_eval.fma(a, a, -one * (1 + np.float32(2.0**-11)))[0] == np.float32(2.0**-24)
    # The sum is 1 + 2**-23 + 2**-24 - 2**-70: rounded to float64 first it would be a tie of float32, and go up.
    step = np.float32(2.0**-23)
    assert expr_eval.fma(np.array([one + step]), np.array([(one - step) * np.float32(2.0**-24)]), np.array([one + step]))[0] == one + step
    x = np.array([1 + 2.0**-30])
    assert expr_eval.fma(x, x, -(1 + 2.0**-29) * np.ones(1))[0] == 2.0**-60


def test_evaluator_refuses_mixed_types() -> None:
    leaf = _leaf("float32x4")
    with pytest.raises(AssertionError, match="add of float32x4 and float32"):
        expr_eval.evaluate(Binary("add", leaf, const(1, "float32")), {leaf: np.zeros((2, 4), np.float32)})
