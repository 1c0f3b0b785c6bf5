"""Test the folding of scales of quantised results into scales and biases, and values that cannot be folded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.driver.compile_model import compile_model
from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import Operand
from tunesmith.graph.ir.verify import verify
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.graph.passes.fold_constants import fold_constants
from tunesmith.graph.passes.fold_requantization import fold_requantization
from tunesmith.graph.passes.integer_contractions import integer_contractions
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.support.seeds import stream

Passed = Callable[..., Any]
TARGET = Target("llvm").with_attributes(num_cores=2)

BLOCK = """
@G.function
def main(x: G.Tensor((1, 2, 3, 3), "int32"), q: G.Tensor((1, 2, 3, 3), "uint8"), y: G.Tensor((1, 2, 3, 3), "float32")):
    s = G.constant([[[0.5]], [[0.25]]], (2, 1, 1), "float32")
    b = G.constant([[[1.0]], [[-1.0]]], (2, 1, 1), "float32")
    t = G.constant(0.125, (), "float32")
    z = G.constant(3, (), "uint8")
    r = G.constant(0.0625, (), "float32")
    o = G.constant(-2, (), "int8")
    x_1 = G.cast(x, dtype="float32")
    x_2 = G.multiply(x_1, s)
    x_3 = G.add(x_2, b)
    d = G.dequantize(q, t, z)
    x_4 = G.add(d, x_3)
    x_5 = G.relu(x_4)
    x_6 = G.clip(x_5, min=None, max=6.0)
    x_7 = G.add(x_6, y)
    a = G.quantize(x_7, r, o)
    return a
"""


def cleaned(mod: IRModule) -> IRModule:
    return dead_code(fold_requantization(mod))


def test_a_block(passed: Passed, assert_golden: Callable[..., None]) -> None:
    """Scales, biases, a quantised residual, activations, and a residual of float32, which is multiplied."""
    assert_golden(str(passed(cleaned, BLOCK)["main"]))


@pytest.mark.parametrize("unit", [0.0625, 0.037, 3.7])
@pytest.mark.parametrize(("dtype", "zero"), [("int8", -2), ("uint8", 0), ("uint8", 131), ("int16", 1000), ("int32", 0)])
def test_results_differ_by_at_most_one_step(unit: float, dtype: str, zero: int) -> None:
    """Powers of two are exact.  Saturated elements are equal."""
    mod = module(lambda b, x: b.quantize(b.relu(x), b.constant(np.float32(unit)), b.constant(np.asarray(zero, dtype))))
    off = differences(mod)
    assert off.max() <= (0 if unit == 0.0625 else 1) and np.mean(off) < 0.02
    assert "quantize" not in str(fold_requantization(mod)["main"])


def sums(b: GraphBuilder, name: str = "x", shape: tuple[Any, ...] = (4, 8)) -> Operand:
    """The result of a contraction in integers."""
    scale = b.constant(np.float32(2.0) ** -np.arange(1, 9, dtype=np.float32))
    made: Operand = b.multiply(b.cast(b.input(name, shape, "int32"), dtype="float32"), scale)
    return made


def module(finish: Callable[[GraphBuilder, Operand], Any], shape: tuple[Any, ...] = (4, 8)) -> IRModule:
    b = GraphBuilder("main")
    made = finish(b, sums(b, "x", shape))
    return IRModule({"main": b.finish(*(made if isinstance(made, tuple) else (made,)))})


def arguments(func: GraphFunc) -> list[np.ndarray]:
    rng = stream(0, "requantise")
    made = []
    for p in func.params:
        shape = [3 if e.const is None else e.const for e in p.type.shape]
        made.append(
            rng.integers(-3000, 3000, shape).astype(np.int32) if p.type.dtype == "int32"
            else np.asarray(True) if p.type.dtype == "bool"
            else rng.integers(0, 256, shape).astype(np.uint8) if p.type.dtype == "uint8"
            else rng.standard_normal(shape).astype(np.float32)
        )  # fmt: skip
    return made


def differences(mod: IRModule, compiled: bool = True) -> np.ndarray:
    """Differences of all results before and after the pass, interpreted and compiled."""
    func = mod["main"]
    assert isinstance(func, GraphFunc)
    done = fold_requantization(mod)
    verify(done["main"], done)  # type: ignore[arg-type]
    assert fold_requantization(done)["main"] is done["main"], "the pass is not idempotent"
    given = arguments(func)
    want = run(func, given, mod)
    found = [run(done["main"], given, done)]  # type: ignore[arg-type]
    if compiled:
        made = compile_model(mod, TARGET, untuned=default_schedule)(*given)
        found.append([made] if len(want) == 1 else list(made))
    for results in found:
        assert [(r.dtype, r.shape) for r in results] == [(w.dtype, w.shape) for w in want]
    return np.concatenate([np.abs(np.float64(r) - np.float64(w)).ravel() for rs in found for r, w in zip(rs, want, strict=True)])


def scale_of(b: RegionBuilder, value: Any = 0.0625) -> Operand:
    return b.constant(np.asarray(value, np.float32))


def bytes_of(b: RegionBuilder, x: Operand, unit: Any = 0.0625, zero: Any = 128) -> Operand:
    made: Operand = b.quantize(x, scale_of(b, unit), b.constant(np.asarray(zero, np.uint8)))
    return made


FOLDED: dict[str, Callable[[GraphBuilder, Operand], Any]] = {
    "sums": bytes_of,
    "a bound": lambda b, x: bytes_of(b, b.clip(x, min=-2.5, max=None)),
    "both bounds": lambda b, x: bytes_of(b, b.clip(x, min=-2.5, max=3.5)),
    "a value with two uses": lambda b, x: (bytes_of(b, b.relu(x)), bytes_of(b, x, 0.125)),
    "a value that is a result": lambda b, x: (bytes_of(b, y := b.relu(x)), y),
    "quantised twice": lambda b, x: (bytes_of(b, y := b.relu(x)), bytes_of(b, y, 0.5)),
    "added to itself": lambda b, x: bytes_of(b, b.add(x, x)),
    "a residual of one element": lambda b, x: bytes_of(b, b.add(x, b.input("y", (1, 1)))),
    "a residual that is broadcast": lambda b, x: bytes_of(b, b.add(x, b.input("y", (4, 1)))),
    "a residual of more dimensions": lambda b, x: bytes_of(b, b.add(b.input("y", (2, 4, 8)), x)),
    "two contractions": lambda b, x: bytes_of(b, b.add(b.relu(x), sums(b, "y"))),
    "a quantised residual": lambda b, x: bytes_of(b, b.add(x, b.dequantize(b.input("q", (4, 8), "uint8"), *pair(b)))),
    "residuals quantised with other scales for each column": lambda b, x: bytes_of(
        b, b.add(x, b.dequantize(b.input("q", (4, 8), "uint8"), scale_of(b, [0.25, 0.5] * 4), pair(b)[1]))
    ),
    "a quantised constant": lambda b, x: bytes_of(b, b.add(x, b.dequantize(b.constant(np.arange(8, dtype=np.uint8)), *pair(b)))),
    "a residual whose scale adds a dimension": lambda b, x: bytes_of(
        b, b.add(x, b.dequantize(b.input("q", (4, 8), "uint8"), scale_of(b, [[[0.5]]]), pair(b)[1]))
    ),
    "a negative bias": lambda b, x: bytes_of(b, b.relu(b.add(scale_of(b, [-1.5] * 8), x))),
    "an activation of another kind": lambda b, x: bytes_of(b, b.add(b.tanh(b.input("y", (4, 8))), x)),
    "a scale with dimensions": lambda b, x: bytes_of(b, x, [[0.0625]], [128]),
}


def pair(b: GraphBuilder, unit: float = 0.25) -> tuple[Operand, Operand]:
    return scale_of(b, unit), b.constant(np.uint8(3))


@pytest.mark.parametrize("name", FOLDED)
def test_folded(name: str) -> None:
    mod = module(FOLDED[name])
    assert "G.quantize" not in str(fold_requantization(mod)["main"])
    assert differences(mod).max() <= (1 if name == "an activation of another kind" else 0), "scales are powers of two"


KEPT: dict[str, Callable[[GraphBuilder, Operand], Any]] = {
    "no contraction": lambda b, x: (bytes_of(b, b.relu(b.input("y", (4, 8)))), x),
    "scales for each channel": lambda b, x: bytes_of(b, x, [0.5] * 8),
    "zero points for each channel": lambda b, x: bytes_of(b, x, 0.5, [1] * 8),
    "a scale that is no constant": lambda b, x: b.quantize(x, b.input("s", ()), b.constant(np.uint8(1))),
    "a zero point that is no constant": lambda b, x: b.quantize(x, scale_of(b), b.input("z", (), "uint8")),
    "a scale that adds a dimension": lambda b, x: bytes_of(b, x, [[[0.5]]]),
    "a zero point that adds a dimension": lambda b, x: bytes_of(b, x, 0.5, [[[1]]]),
    "an inverse that is no float32": lambda b, x: bytes_of(b, x, 1e-42),
    "a bias divided by a small scale": lambda b, x: bytes_of(b, b.add(x, scale_of(b, [1e5] * 8)), 1.2e-38),
    "a scale divided by a small scale": lambda b, x: bytes_of(b, x, 1e-33),
    "a bound divided by a small scale": lambda b, x: bytes_of(b, b.add(x, b.clip(b.tanh(x), min=None, max=6.0)), 1e-30),
    "a residual with a large scale": lambda b, x: bytes_of(b, b.add(x, b.dequantize(b.input("q", (4, 8), "uint8"), *pair(b, 3e38)))),
    "a negative scale": lambda b, x: bytes_of(b, x, -0.5),
    "int32 with a zero point": lambda b, x: b.quantize(x, scale_of(b), b.constant(np.asarray(7, np.int32))),
    "another operator between": lambda b, x: bytes_of(b, b.tanh(x)),
    "products of two values": lambda b, x: bytes_of(b, b.multiply(x, b.input("y", (4, 8)))),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str, unchanged: Passed) -> None:
    unchanged(fold_requantization, module(KEPT[name])["main"])


def test_bytes_with_a_large_scale_are_dequantised() -> None:
    """Otherwise q * scale - zero * scale would be the difference of two infinities."""
    mod = module(lambda b, x: b.dequantize(bytes_of(b, x), *pair(b, 3e38)))
    assert "G.dequantize" in str(fold_requantization(mod)["main"]) and "G.quantize" not in str(fold_requantization(mod)["main"])


def test_casts_that_truncate_are_kept() -> None:
    """The operand of a cast to bytes is a rounded number only if this pass made it."""

    def truncated(b: GraphBuilder, x: Operand) -> Any:
        q = b.cast(b.clip(b.add(b.multiply(x, scale_of(b, [0.3] * 8)), scale_of(b, [0.5] * 8)), min=0.0, max=255.0), dtype="uint8")
        return b.dequantize(q, scale_of(b, 1.0), b.constant(np.uint8(0)))

    assert differences(module(truncated)).max() == 0


def test_zeros_stay_zeros() -> None:
    """The number of the zero point is dequantised to 0 exactly, so that signs and comparisons of it are right."""
    mod = module(lambda b, x: b.sign(b.dequantize(bytes_of(b, x, 0.37, 115), scale_of(b, 0.37), b.constant(np.uint8(115)))))
    func = mod["main"]
    assert isinstance(func, GraphFunc)
    x = np.tile(np.arange(-2, 2, dtype=np.int32), (4, 2))
    done = fold_requantization(mod)
    (want,), (made,) = run(func, [x], mod), run(done["main"], [x], done)
    assert np.array_equal(made, want) and (want == 0).any()


def test_sums_of_large_residuals() -> None:
    """Two residuals divided by a small scale are no difference of infinities."""
    mod = module(lambda b, x: bytes_of(b, b.add(b.add(x, b.input("y", (4, 8))), b.input("z", (4, 8))), 1e-37))
    func = mod["main"]
    assert isinstance(func, GraphFunc)
    given = [np.zeros((4, 8), np.int32), np.full((4, 8), 100, np.float32), np.full((4, 8), -100, np.float32)]
    done = fold_requantization(mod)
    (want,), (made,) = run(func, given, mod), run(done["main"], given, done)
    assert np.array_equal(made, want)


def test_chains_of_sums_take_linear_time() -> None:
    """A search along all paths has 2 ** 40 of them."""

    def doubled(b: GraphBuilder, x: Operand) -> Any:
        y = b.input("y", (4, 8))
        for _ in range(40):
            y = b.add(y, y)
        return bytes_of(b, y), x

    mod = module(doubled)
    assert fold_requantization(mod)["main"] is mod["main"]


def test_long_chains_are_folded_in_part() -> None:
    def chain(b: GraphBuilder, x: Operand) -> Any:
        for _ in range(1500):
            x = b.add(x, scale_of(b, 0.5))
        return bytes_of(b, x)

    mod = module(chain)
    assert differences(mod, compiled=False).max() == 0
    assert str(fold_requantization(mod)["main"]).count("G.add") < str(mod["main"]).count("G.add")


def test_branches(passed: Passed) -> None:
    """A value of the outer function that is quantised in a branch, and one of a branch."""
    b = GraphBuilder("main")
    x = sums(b)
    condition = b.input("c", (), "bool")

    def then(r: RegionBuilder) -> Operand:
        return bytes_of(r, r.relu(x))

    def otherwise(r: RegionBuilder) -> Any:
        return bytes_of(r, r.add(r.multiply(r.cast(b.params[0], dtype="float32"), scale_of(r, [0.5] * 8)), x))

    func = b.finish(b.branch(condition, then, otherwise), bytes_of(b, x))
    assert "G.quantize" not in str(passed(fold_requantization, func)["main"])


def test_a_dynamic_batch() -> None:
    n = Var("n")
    assert differences(module(lambda b, x: bytes_of(b, b.add(b.relu(x), b.input("y", (n, 8)))), (n, 8))).max() == 0


def test_layers_that_differ_in_scales_and_zero_points_are_one_program() -> None:
    """Both are vectors of constants, not literals."""
    b = GraphBuilder("main")
    x = b.input("x", (4, 8), "uint8")
    for unit, zero in ((0.5, 3), (0.25, 5)):
        s, z = b.constant(np.float32(unit)), b.constant(np.uint8(zero))
        w = b.dequantize(b.constant(np.arange(64, dtype=np.int8).reshape(8, 8)), s, b.constant(np.int8(0)))
        d = b.dequantize(x, s, z)
        x = b.quantize(b.relu(b.add(b.matmul(d, w), d)), b.constant(np.float32(unit * 3)), z)
    model = compile_model(IRModule({"main": b.finish(x)}), TARGET, untuned=default_schedule)
    assert len([f for f in model.module if f != "main"]) == 1


def test_a_residual_that_another_function_computes_is_stored_as_bytes() -> None:
    """The later of two contractions is computed with the sum; the numbers of the earlier would be stored with four times as many bytes."""
    made = fold_requantization(
        module(lambda b, x: bytes_of(b, b.add(*(b.dequantize(bytes_of(b, v), *pair(b)) for v in (x, sums(b, "y"))))))
    )
    text = str(made["main"])
    assert text.count('dtype="uint8"') == 2 and "quantize" not in text


def test_the_passes_together_remove_all_float_quotients() -> None:
    b = GraphBuilder("main")
    s, z = b.constant(np.float32(0.1)), b.constant(np.int8(3))
    w = b.dequantize(b.constant(np.arange(24, dtype=np.int8).reshape(4, 6)), s, b.constant(np.int8(0)))
    q = b.matmul(b.dequantize(b.input("x", (2, 4), "int8"), s, z), w)
    mod = IRModule({"main": b.finish(b.quantize(b.relu(q), s, z))})
    done = fold_constants(fold_requantization(integer_contractions(mod)))
    assert "quantize(" not in str(done["main"]) and "divide" not in str(done["main"])
