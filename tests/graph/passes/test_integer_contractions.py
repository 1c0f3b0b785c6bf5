"""Test contractions in integers: forms of weights, scales and layouts, exact sums, padding with zero points, and what stays float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.driver.compile_model import compile_model
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import Call, Operand, all_bindings
from tunesmith.graph.ir.verify import verify
from tunesmith.graph.passes.integer_contractions import integer_contractions
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.support.seeds import stream

Passed = Callable[..., Any]
TARGET = Target("llvm").with_attributes(num_cores=2)
SCALE = 0.037

QDQ = """
@G.function
def main(x: G.Tensor((1, 2, 4, 4), "float32"), c: G.Tensor((), "bool")):
    s = G.constant(0.05, (), "float32")
    z = G.constant(7, (), "uint8")
    q = G.quantize(x, s, z)
    d = G.dequantize(q, s, z)
    w = G.constant([[[[3]], [[-128]]], [[[127]], [[5]]]], (2, 2, 1, 1), "int8")
    t = G.constant([[[[0.5]]], [[[0.25]]]], (2, 1, 1, 1), "float32")
    o = G.constant(0, (), "int8")
    k = G.dequantize(w, t, o)
    y = G.conv2d(d, k, padding=(1, 0, 1, 0))
    b = G.constant([[[1.0]], [[-1.0]]], (2, 1, 1), "float32")
    y_1 = G.add(y, b)
    y_2 = G.relu(y_1)
    n = G.constant([[1.0]], (1, 1), "float32")
    y_3 = G.add(y_2, n)
    r = G.constant(0.1, (), "float32")
    e = G.constant(-100, (), "int8")
    p = G.quantize(y_3, r, e)
    if c:
        h = G.reshape(p, shape=(24, 2))
        f = G.dequantize(h, r, e)
        v = G.constant([[1, -2], [3, 4]], (2, 2), "int8")
        u = G.dequantize(v, r, o)
        m = G.matmul(f, u)
    else:
        g = G.dequantize(p, r, e)
        m = G.reshape(g, shape=(24, 2))
    return m, p
"""


def test_a_small_quantised_model(passed: Passed, assert_golden: Callable[..., None]) -> None:
    """A convolution with a zero point, whose result is quantised, and a product of int8 in a branch."""
    assert_golden(str(passed(integer_contractions, QDQ)["main"]))


class Model:
    """A contraction of a dequantised activation with dequantised weights.

    Args:
        shape: of the activation.
        weights: the bytes of the weights.
        scale: of the weights.
        zero: of the weights, with their type.
        attrs: of the contraction.
        activation: type and zero point of the activation.
        given: "bytes" if the activation is an argument of the function.
    """

    def __init__(
        self,
        shape: tuple[Any, ...],
        weights: np.ndarray,
        scale: Any = 0.5,
        zero: Any = 0,
        operator: str = "matmul",
        activation: tuple[str, int] = ("uint8", 7),
        given: str = "floats",
        axes: tuple[int, ...] | None = None,
        finish: Callable[[GraphBuilder, Operand], Operand] = lambda b, o: o,
        **attrs: Any,
    ) -> None:
        b = GraphBuilder("main")
        dtype, shift = activation
        s, z = b.constant(np.float32(SCALE)), b.constant(np.asarray(shift, dtype))
        x: Operand = b.input("x", shape, dtype if given == "bytes" else "float32")
        q = x if given == "bytes" else b.quantize(x, s, z)
        w = b.dequantize(b.constant(weights, "w"), b.constant(np.asarray(scale, np.float32)), b.constant(np.asarray(zero, weights.dtype)))
        w = w if axes is None else b.permute_dims(w, axes=axes)
        self.before = IRModule({"main": b.finish(finish(b, b.call(operator, b.dequantize(q, s, z), w, **attrs)), q)})
        self.after = integer_contractions(self.before)
        verify(self.main, self.after)
        extents = [e if isinstance(e, int) else 3 for e in shape]
        rng = stream(0, "integers", operator, dtype)
        self.arrays = [rng.integers(*(0, 256) if dtype == "uint8" else (-128, 128), extents).astype(dtype)]
        if given == "floats":
            self.arrays = [((self.arrays[0].astype(np.float32) - shift) * np.float32(SCALE)).astype(np.float32)]

    @property
    def main(self) -> GraphFunc:
        found = self.after["main"]
        assert isinstance(found, GraphFunc)
        return found

    @property
    def contractions(self) -> list[str]:
        """The contractions with the types of their operands and results."""
        made = [b for b in all_bindings(self.main.body) if isinstance(b.operation, Call) and b.operation.operator in ("conv2d", "matmul")]
        return [" ".join([a.type.dtype for a in (*b.operation.args, *b.results)]) for b in made]

    def check(self, expected: str, compiled: bool = True) -> None:
        """The types of the contraction, and results equal to those of the original up to the rounding of float32."""
        assert self.contractions == [expected]
        want = run(self.before["main"], self.arrays)  # type: ignore[arg-type]
        made = [run(self.main, self.arrays)]
        if compiled:
            made.append(compile_model(self.before, TARGET, untuned=default_schedule)(*self.arrays))
        for found in made:
            np.testing.assert_allclose(found[0], want[0], rtol=1e-5, atol=1e-5 * np.abs(want[0]).max())
            np.testing.assert_array_equal(found[1].astype(np.int32), want[1].astype(np.int32))  # the bytes themselves keep their type
        assert integer_contractions(self.after)["main"] is self.main, "the pass is not idempotent"


FLOAT, UNSIGNED, SIGNED = "float32 float32 float32", "uint8 int8 int32", "int8 int8 int32"


def weights(*shape: int, low: int = -128, high: int = 128, dtype: str = "int8") -> np.ndarray:
    return stream(1, "weights", *shape).integers(low, high, shape).astype(dtype)


def scales(*shape: int) -> np.ndarray:
    return stream(2, "scales", *shape).uniform(0.01, 0.1, shape).astype(np.float32)


@pytest.mark.parametrize("zero", [0, 7, 255])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 2, 0, 1)])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_padding_has_the_value_of_the_zero_point(zero: int, padding: tuple[int, ...], layout: str) -> None:
    first = layout == "NCHW"
    w = weights(*((6, 4, 3, 2) if first else (3, 2, 4, 6)))
    s = scales(*((6, 1, 1, 1) if first else (1, 1, 1, 6)))
    shape = (2, 4, 5, 6) if first else (2, 5, 6, 4)
    attrs: dict[str, Any] = {"padding": padding, "layout": layout, "strides": (1, 2)}
    Model(shape, w, s, 0, "conv2d", ("uint8", zero), **attrs).check(UNSIGNED, compiled=zero == 7)
    Model(shape, w, s, 0, "conv2d", ("uint8", zero), "bytes", **attrs).check(UNSIGNED, compiled=zero == 7)


@pytest.mark.parametrize("shift", [-128, -3, 0, 127])
def test_int8_activations(shift: int) -> None:
    """Quantised in the graph they become uint8; those of an argument stay int8."""
    w, attrs = weights(5, 3, 3, 3), {"padding": (1, 1, 1, 1)}
    made = Model((1, 3, 6, 5), w, 0.1, 0, "conv2d", ("int8", shift), **attrs)
    made.check(UNSIGNED, compiled=shift == -3)
    assert [r.type.dtype for r in made.main.results] == ["float32", "int8"], "the quantised result of the function stays int8"
    Model((1, 3, 6, 5), w, 0.1, 0, "conv2d", ("int8", shift), "bytes", **attrs).check(SIGNED, compiled=shift == -3)
    Model((4, 6), weights(6, 5), 0.1, 0, "matmul", ("int8", shift)).check(UNSIGNED, compiled=shift == -3)


def test_sums_are_exact() -> None:
    """The largest sums of float32 operands are rounded; those of integers are not."""
    w = np.full((4096, 2), 127, np.int8)
    w[:, 1] = -128
    w[0] = 126, -127
    made = Model((1, 4096), w, 1.0, 0, "matmul", ("uint8", 0), "bytes")
    x = np.full((1, 4096), 255, np.uint8)
    found = next(b for b in all_bindings(made.main.body) if isinstance(b.operation, Call) and b.operation.operator == "matmul").results[0]
    sums = GraphFunc("main", made.main.params, made.main.body.__class__(made.main.body.bindings, (found,)), (), ())
    want = x.astype(np.int64) @ w
    assert (np.abs(want) > 2**24).all()
    for got in (run(sums, [x])[0], compile_model(IRModule({"main": sums}), TARGET, untuned=default_schedule)(x)):
        assert got.dtype == np.int32 and (got == want).all()


@pytest.mark.parametrize(
    ("stored", "zero", "expected"),
    [
        (weights(6, 5), 0, UNSIGNED),
        (weights(6, 5, low=0, high=256, dtype="uint8"), 128, UNSIGNED),
        (weights(6, 5, low=10, high=138, dtype="uint8"), 10, UNSIGNED),
        (weights(6, 5, low=0, high=120), -7, UNSIGNED),
        (weights(6, 5, low=0, high=256, dtype="uint8"), 127, FLOAT),  # 128 is no int8
        (weights(6, 5, low=0, high=256, dtype="uint8"), 0, FLOAT),
        (weights(6, 5), 1, FLOAT),  # -129
        (weights(6, 5).astype(np.int16), 0, FLOAT),
        (weights(6, 5, low=0, high=100), np.int8([[0, -3, 5, -27, 9]]), UNSIGNED),
        (weights(6, 5, low=0, high=100), np.int8([[0], [-3], [5], [-27], [9], [1]]), UNSIGNED),  # folded into the weights
    ],
)
def test_zero_points_of_weights(stored: np.ndarray, zero: Any, expected: str) -> None:
    stored = stored.copy()
    stored.flat[0], stored.flat[1] = (stored.min(), stored.max())
    if stored.dtype == np.uint8 and np.ndim(zero) == 0 and zero != 10:
        stored.flat[0], stored.flat[1] = 0, 255
    if expected == FLOAT and stored.dtype == np.int8:
        stored.flat[0] = -128
    Model((3, 6), stored, scales(1, 5), zero).check(expected)


@pytest.mark.parametrize("scale", [0.1, np.float32([0.1]), scales(1, 5)], ids=["number", "vector of one", "channels"])
@pytest.mark.parametrize("axes", [None, (1, 0), (-1, -2)])
def test_permuted_weights_of_products(scale: Any, axes: tuple[int, ...] | None) -> None:
    w = weights(5, 6) if axes else weights(6, 5)
    s = np.asarray(scale).T if axes and np.ndim(scale) == 2 else scale
    Model((2, 3, 6), w, s, axes=axes).check(UNSIGNED)
    Model((6,), w, s, axes=axes).check(UNSIGNED)


def test_weights_permuted_by_default_are_reversed() -> None:
    b = GraphBuilder("main")
    x, s, z = b.input("x", (2, 6), "uint8"), b.constant(np.float32(SCALE)), b.constant(np.uint8(3))
    w = b.permute_dims(b.dequantize(b.constant(weights(5, 6)), b.constant(scales(5, 1)), b.constant(np.int8(0))))
    before = IRModule({"main": b.finish(b.matmul(b.dequantize(x, s, z), w))})
    after = integer_contractions(before)
    given = [weights(2, 6, low=0, high=256, dtype="uint8")]
    np.testing.assert_allclose(run(after["main"], given)[0], run(before["main"], given)[0], rtol=1e-5)  # type: ignore[arg-type]
    assert "int32" in str(after["main"])


def test_permuted_filters() -> None:
    """An OIHW filter as HWIO, with the scales along."""
    Model((1, 5, 6, 4), weights(6, 4, 3, 2), scales(6, 1, 1, 1), 0, "conv2d", axes=(2, 3, 1, 0), layout="NHWC").check(UNSIGNED)


@pytest.mark.parametrize(
    ("shape", "w", "options"),
    [
        ((1, 4, 5, 5), weights(4, 1, 3, 3), {"operator": "conv2d", "groups": 4}),
        ((1, 4, 5, 5), weights(6, 2, 3, 3), {"operator": "conv2d", "groups": 2}),
        ((1, 4, 5, 5), weights(4, 3, 3), {"operator": "conv2d"}),
        ((1, 4, 5, 5), weights(6, 4, 3, 3), {"operator": "conv2d", "padding_value": 0.5, "padding": (1, 1, 1, 1)}),
        ((1, 4, 5, 5), weights(6, 4, 3, 3), {"operator": "conv2d", "scale": scales(1, 4, 1, 1)}),  # of input channels
        ((2, 3, 6), weights(2, 6, 5), {}),
        ((3, 6), weights(6), {}),
        ((3, 6), weights(6, 5), {"scale": scales(6, 1)}),
        ((3, 6), weights(6, 5), {"scale": scales(6, 5)}),
        ((3, 6), weights(6, 1), {"scale": scales(1, 5)}),  # the scale has more elements than the weights
        ((3, 6), weights(6), {"scale": np.float32([[0.5]] * 6)}),
        ((3, 6), weights(5, 6), {"scale": scales(1, 6), "axes": (1, 0)}),
    ],
)
def test_contractions_that_stay_float32(shape: tuple[int, ...], w: np.ndarray, options: dict[str, Any]) -> None:
    Model(shape, w, **options).check(FLOAT)


def test_a_sum_that_may_exceed_int32_stays_float32() -> None:
    w = np.full((70000, 1), 127, np.int8)
    x = [np.full((1, 70000), 255, np.uint8)]
    made = Model((1, 70000), w, 1.0, 0, "matmul", ("uint8", 0), "bytes")
    assert made.contractions == [FLOAT] and run(made.main, x)[0].item() > 2**31 * SCALE
    w[:4000] = 0
    assert Model((1, 70000), w, 1.0, 0, "matmul", ("uint8", 0), "bytes").contractions == [UNSIGNED]


def operands(**changed: Any) -> GraphFunc:
    """A product whose operands are given by their constructors."""
    b = GraphBuilder("main")
    given: dict[str, Callable[[], Operand]] = {
        "q": lambda: b.input("q", (3, 6), "uint8"),
        "scale": lambda: b.constant(np.float32(SCALE)),
        "zero": lambda: b.constant(np.uint8(7)),
        "w": lambda: b.constant(weights(6, 5)),
        "unit": lambda: b.constant(np.float32(0.5)),
        "origin": lambda: b.constant(np.int8(0)),
    }
    made = {name: changed[name](b) if name in changed else make() for name, make in given.items()}
    x = b.dequantize(made["q"], made["scale"], made["zero"])
    w = b.dequantize(made["w"], made["unit"], made["origin"])
    return b.finish(b.matmul(x, w))


@pytest.mark.parametrize(
    "changed",
    [
        {"w": lambda b: b.input("w", (6, 5), "int8")},
        {"unit": lambda b: b.input("unit", ())},
        {"origin": lambda b: b.input("origin", (), "int8")},
        {"scale": lambda b: b.input("scale", ())},
        {"zero": lambda b: b.input("zero", (), "uint8")},
        {"scale": lambda b: b.constant(scales(1, 6))},
        {"zero": lambda b: b.constant(np.uint8([[1, 2, 3, 4, 5, 6]]))},
        {"scale": lambda b: b.constant(np.float32([[[0.5]]]))},  # the activation has one dimension more than the bytes
        {"unit": lambda b: b.constant(np.float32([[[0.5]]])), "w": lambda b: b.constant(weights(6, 5))},
        {"q": lambda b: b.input("q", (3, 6), "int16"), "zero": lambda b: b.constant(np.int16(7))},
        {"q": lambda b: b.constant(weights(3, 6, low=0, dtype="uint8"))},
        {"scale": lambda b: b.constant(np.float32(3e38)), "unit": lambda b: b.constant(np.float32(3e38))},  # the product is infinite
        {"scale": lambda b: b.constant(np.float32(np.nan))},
        {"scale": lambda b: b.constant(np.asarray(0.5)), "unit": lambda b: b.constant(np.asarray(0.5))},  # float64
        {"scale": lambda b: b.constant(np.float16(0.5)), "unit": lambda b: b.constant(np.float16(0.5))},
    ],
)
def test_operands_that_are_not_supported(changed: dict[str, Any], unchanged: Passed) -> None:
    assert "int32" in str(integer_contractions(IRModule({"main": operands()}))["main"]), "the unchanged product is rewritten"
    made = integer_contractions(IRModule({"main": operands(**changed)}))["main"]
    assert "int32" not in str(made)
    unchanged(integer_contractions, made)


def test_scales_computed_from_constants() -> None:
    def twice(b: GraphBuilder) -> Operand:
        made: Operand = b.reshape(b.multiply(b.constant(scales(5)), b.constant(np.float32(2))), shape=(1, 5))
        return made

    made = integer_contractions(IRModule({"main": operands(unit=twice, scale=lambda b: b.sqrt(b.constant(np.float32(0.01))))}))
    given = [weights(3, 6, low=0, high=256, dtype="uint8")]
    want = run(operands(unit=twice, scale=lambda b: b.sqrt(b.constant(np.float32(0.01)))), given)
    np.testing.assert_allclose(run(made["main"], given)[0], want[0], rtol=1e-5)  # type: ignore[arg-type]
    assert "int32" in str(made["main"]) and "sqrt" not in str(made["main"])


def test_values_with_several_uses() -> None:
    """A dequantised value that is a residual, too, and weights shared by two products."""
    b = GraphBuilder("main")
    x = b.input("x", (4, 4))
    pair = b.constant(np.float32(SCALE)), b.constant(np.int8(-5))
    q = b.quantize(x, *pair)
    d = b.dequantize(q, *pair)
    w = b.dequantize(b.constant(weights(4, 4)), b.constant(np.float32(0.01)), b.constant(np.int8(0)))
    func = b.finish(b.add(b.matmul(d, w), d), b.matmul(b.matmul(d, w), w), q, w)
    before = IRModule({"main": func})
    after = integer_contractions(before)
    verify(after["main"], after)  # type: ignore[arg-type]
    given = [stream(0, "uses").standard_normal((4, 4)).astype(np.float32)]
    for a, c in zip(run(after["main"], given), run(func, given), strict=True):  # type: ignore[arg-type]
        assert a.dtype == c.dtype
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-4)
    assert str(after["main"]).count('out_dtype="int32"') == 2, "the product of a product stays float32"


def test_a_dynamic_batch() -> None:
    Model((Var("n"), 4, 5, 6), weights(6, 4, 3, 2), scales(6, 1, 1, 1), 0, "conv2d", padding=(1, 1, 1, 1)).check(UNSIGNED)
    Model((Var("n"), 6), weights(6, 5), scales(1, 5)).check(UNSIGNED)
    Model((Var("n"), Var("m"), 6), weights(6, 5), scales(1, 5), 0, "matmul", ("int8", -3)).check(UNSIGNED)
    Model((1, 4, Var("h"), Var("w")), weights(6, 4, 3, 3), 0.1, 0, "conv2d", ("int8", 9), padding=(1, 1, 1, 1)).check(UNSIGNED)


def test_modules_without_quantised_contractions_are_unchanged(unchanged: Passed) -> None:
    b = GraphBuilder("main")
    x = b.input("x", (2, 6))
    unchanged(integer_contractions, b.finish(b.matmul(x, b.constant(weights(6, 5).astype(np.float32)))))
