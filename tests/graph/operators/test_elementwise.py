"""Test elementwise operators against numpy, interpreted and compiled, at zeros, NaN and infinities; accuracy; types; errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import ELEMENTWISE, GRAPH_OPERATORS
from tunesmith.ir import structural
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import Var
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.unary import UNARY, unary
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

FLOATS = ("float16", "float32", "float64")
INTS = ("int32", "int64", "uint8")
EDGES = np.array([0.0, -0.0, 1, -1, 0.5, -0.5, 2.5, -2.5, 3.5, 1e-3, -1e-3, 7, -7, 1e-20, 30, -30, np.nan, np.inf, -np.inf])

OF_FLOATS = (
    *("cos", "erf", "exp", "exp2", "expm1", "isnan", "log", "log1p", "log2", "reciprocal", "rsqrt"),
    *("sigmoid", "silu", "sin", "softplus", "sqrt", "tanh", "gelu", "elu", "selu", "hard_sigmoid", "hard_swish"),
)
OF_NUMBERS = ("abs", "ceil", "floor", "neg", "relu", "round", "sign", "square", "trunc", "clip", "identity")


def _ints(dtype: str) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.array([[0, 1, 2], [3, info.max, info.min], [info.max - 1, info.min + 1, 100]], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", (*OF_FLOATS, *OF_NUMBERS))
def test_floats(name: str, dtype: str) -> None:
    check_operator(name, [EDGES.astype(dtype)])


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_integers(name: str, dtype: str) -> None:
    check_operator(name, [_ints(dtype)])


def test_bool() -> None:
    both = np.array([[True, False, True]])
    check_operator("logical_not", [both])
    check_operator("identity", [both])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("name", "attrs"),
    [
        ("gelu", {"approximate": "tanh"}),
        ("clip", {"min": -1, "max": 2.0}),
        ("clip", {"min": 0.25}),
        ("clip", {"max": 1}),
        ("clip", {"min": -math.inf, "max": 1e300}),
        ("leaky_relu", {"slope": 0.1}),
        ("leaky_relu", {"slope": 3}),
        ("elu", {"alpha": 0.3}),
        ("selu", {"alpha": 2.0, "gamma": 0.5}),
        ("hard_sigmoid", {"alpha": 0.2, "beta": 0.4}),
    ],
)
def test_attributes(name: str, attrs: dict[str, object], dtype: str) -> None:
    check_operator(name, [EDGES.astype(dtype)], **attrs)


def test_clip_of_integers_accepts_bounds_outside_the_type() -> None:
    x = np.array([-128, -5, 0, 5, 127], np.int8)
    check_operator("clip", [x], min=-1e9, max=3)
    check_operator("clip", [x], min=-3.0, max=math.inf)


def test_clip_takes_sizes() -> None:
    n = Var("n")
    clip = GRAPH_OPERATORS.get("clip")
    attrs = clip.bind({"max": n})
    assert clip.infer([TensorType.of((n,), "int64")], attrs) == (TensorType.of((n,), "int64"),)
    assert clip.evaluate([np.arange(5)], attrs, {n: 3})[0].tolist() == [0, 1, 2, 3, 3]


@pytest.mark.parametrize("target", (*FLOATS, *INTS, "int8", "bool"))
@pytest.mark.parametrize("source", (*FLOATS, *INTS, "bool"))
def test_cast(source: str, target: str) -> None:
    values = np.array([0, 1, 2.25, 3.75, 100]).astype(source)
    check_operator("cast", [values], compiled=source != "bool", dtype=target)


def test_cast_truncates_and_compares_with_zero() -> None:
    check_operator("cast", [np.float32([-2.75, -0.5, 0.5, 2.75])], dtype="int32")
    check_operator("cast", [np.float64([0.0, -0.0, 1e-300, np.nan, np.inf])], dtype="bool")
    check_operator("cast", [np.float64([1 / 3, 1e6, 6e-8])], dtype="float16", rtol=0, atol=0)


def test_half_precision_is_rounded_once() -> None:
    x = np.linspace(-6, 6, 301).astype(np.float16)
    for name in ("gelu", "silu", "softplus", "elu", "hard_swish"):
        check_operator(name, [x], compiled=False, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sine_of_float64(name: str) -> None:
    rng = np.random.default_rng(0)
    small, large = rng.uniform(-20, 20, 300), rng.uniform(-(2.0**49), 2.0**49, 300)
    roots = rng.integers(-(2**40), 2**40, 300) * (math.pi / 2)
    check_operator(name, [np.concatenate([small, large, roots])], rtol=2e-15, atol=1e-22)


def test_sine_beyond_its_range_is_nan() -> None:
    sin = GRAPH_OPERATORS.get("sin")
    x = te.placeholder((1,), "float64", "X")
    func = te.create_prim_func([x, *sin.apply([x])])
    assert np.isnan(run(func, [np.array([2.0**51])])[-1][0])


def test_accuracy_near_zero() -> None:
    x = -np.exp2(np.linspace(-30, 6, 200))
    check_operator("elu", [x], rtol=4e-15, atol=0)
    check_operator("selu", [x], rtol=4e-15, atol=0)
    check_operator("softplus", [8 * x], rtol=4e-15, atol=0)
    both = np.concatenate([x, -x])
    check_operator("expm1", [both], rtol=4e-15, atol=0)
    check_operator("log1p", [both[both > -1]], rtol=4e-15, atol=0)
    check_operator("log1p", [both[both > -1].astype(np.float32)], rtol=4e-7, atol=0)
    check_operator("expm1", [both.astype(np.float32)], rtol=4e-7, atol=0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_powers_of_two_are_exact(dtype: str) -> None:
    whole = np.arange(-14, 16)
    check_operator("log2", [np.exp2(whole).astype(dtype)], rtol=0, atol=0)
    check_operator("exp2", [whole.astype(dtype)], rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 5), (2, 3, 1, 2, 2)])
def test_ranks(shape: tuple[int, ...]) -> None:
    check_operator("relu", [np.random.default_rng(0).standard_normal(shape).astype(np.float32)])


@pytest.mark.parametrize("name", ["exp", "relu", "tanh", "erf", "neg", "abs", "gelu"])
def test_programs_equal_those_of_ops(name: str) -> None:
    x = te.placeholder((3, 4), "float32", "X")
    made = te.create_prim_func([x, *GRAPH_OPERATORS.get(name).apply([x], GRAPH_OPERATORS.get(name).bind({}))])
    assert name in UNARY
    assert structural.equal(made, te.create_prim_func([x, unary(name, x)]))


def test_symbolic_sizes() -> None:
    n = Var("n")
    kind = TensorType.of((n, 4), "float32")
    for name in (*OF_FLOATS, *OF_NUMBERS):
        op = GRAPH_OPERATORS.get(name)
        (found,) = op.infer([kind], op.bind({}))
        assert found == TensorType.of((n, 4), "bool" if name == "isnan" else "float32"), name


def test_every_operator_is_elementwise_and_only_identity_is_a_view() -> None:
    names = (*OF_FLOATS, *OF_NUMBERS, "logical_not", "leaky_relu", "cast")
    assert all(GRAPH_OPERATORS.get(n).kind == ELEMENTWISE and GRAPH_OPERATORS.get(n).arity == (1, 1) for n in names)
    assert [n for n in names if GRAPH_OPERATORS.get(n).view] == ["identity"]


def test_references_return_a_new_array_or_their_operand() -> None:
    x = np.float32([1, -2])
    x.flags.writeable = False
    assert np.shares_memory(GRAPH_OPERATORS.get("identity").evaluate([x])[0], x) is False
    assert GRAPH_OPERATORS.get("neg").evaluate([np.float32(3)])[0].shape == ()


@pytest.mark.parametrize(
    ("name", "dtype", "attrs", "message"),
    [
        ("exp", "int32", {}, r"exp\(int32\[3\]\): it takes floats, not int32; insert a cast"),
        ("relu", "bool", {}, "it takes floats and integers, not bool"),
        ("logical_not", "uint8", {}, "it takes bool, not uint8"),
        ("isnan", "int64", {}, "it takes floats, not int64"),
        ("elu", "int32", {}, "it takes floats, not int32"),
        ("gelu", "float32", {"approximate": "erf"}, 'approximate must be "none" or "tanh", got \'erf\''),
        ("clip", "int32", {"min": 0.5}, r"min is 0\.5, which is not representable in int32"),
        ("clip", "int32", {"max": math.nan}, "max is nan, which is not representable in int32"),
        ("clip", "float32", {"max": "1"}, "max is '1'; it must be a number or a size"),
        ("leaky_relu", "float32", {"slope": None}, "slope is None; it must be a number or a size"),
        ("cast", "float32", {"dtype": "float33"}, "unknown dtype 'float33'"),
        ("cast", "float32", {"dtype": "float32x4"}, "'float32x4' is not an element type of tensors"),
        ("cast", "float32", {"dtype": 3}, "3 is not an element type of tensors"),
    ],
)
def test_errors(name: str, dtype: str, attrs: dict[str, object], message: str) -> None:
    op = GRAPH_OPERATORS.get(name)
    with pytest.raises(ScriptError, match=message):
        op.infer([TensorType.of((3,), dtype)], op.bind(attrs))


def test_required_attributes() -> None:
    for name, key in (("leaky_relu", "slope"), ("cast", "dtype")):
        with pytest.raises(ScriptError, match=f"attribute {key} is missing"):
            GRAPH_OPERATORS.get(name).bind({})
