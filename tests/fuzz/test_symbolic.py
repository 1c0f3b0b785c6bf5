"""Compare functions with dynamic shapes, compiled once and called with many sizes, to numpy and the interpreter.

Each program is compiled unscheduled, with the default schedule, and with the default schedule for short vectors.  A guard page follows
each array, and inputs are read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.ir.expr import Call, const, select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import Var, floordiv, less_than, mod, poly
from tunesmith.ir.stmt import For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.measure.evaluator.guard_pages import GuardedArray
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.layer_norm import layer_norm
from tunesmith.ops.matmul import matmul
from tunesmith.ops.softmax import softmax
from tunesmith.runtime.module import CompiledFunction, Module
from tunesmith.support.seeds import stream

Array = np.ndarray
NARROW = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=2")
HERE = Target.detect().with_attributes(num_cores=2)
SIZES = (1, 2, 3, 7, 16, 17, 33)


@dataclass(frozen=True)
class Program:
    """A function, its input shapes as functions of the sizes, and its reference."""

    func: PrimFunc
    shapes: Callable[..., Sequence[tuple[int, ...]]]
    reference: Callable[..., Array]
    sizes: int = 1


def program(
    inputs: Sequence[te.Tensor], output: te.Tensor, shapes: Callable[..., Sequence[tuple[int, ...]]], reference: Callable[..., Array]
) -> Program:
    func = te.create_prim_func([*inputs, output], "f")
    return Program(func, shapes, reference, len(func.params) - len(inputs) - 1)


def rows_matmul() -> Program:
    n = te.var("n")
    x, w = te.placeholder((n, 24), name="x"), te.placeholder((24, 40), name="w")
    return program([x, w], matmul(x, w), lambda n: [(n, 24), (24, 40)], lambda x, w, n: x @ w)


def matmul_softmax() -> Program:
    n = te.var("n")
    x, w = te.placeholder((n, 9), name="x"), te.placeholder((9, 21), name="w")
    return program([x, w], softmax(matmul(x, w)), lambda n: [(n, 9), (9, 21)], lambda x, w, n: exp_rows(x @ w))


def exp_rows(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention_scores() -> Program:
    """q k^T with both lengths dynamic."""
    n, m = te.var("n"), te.var("m")
    q, k = te.placeholder((2, 3, n, 8), name="q"), te.placeholder((2, 3, m, 8), name="k")
    d = te.reduce_axis(8, "d")
    out = te.compute((2, 3, n, m), lambda b, h, i, j: te.sum(q[b, h, i, d] * k[b, h, j, d], d), "S")
    return program([q, k], out, lambda n, m: [(2, 3, n, 8), (2, 3, m, 8)], lambda q, k, n, m: q @ k.swapaxes(-1, -2))


def attention_values() -> Program:
    n, m = te.var("n"), te.var("m")
    p, v = te.placeholder((2, n, m), name="p"), te.placeholder((2, m, 20), name="v")
    j = te.reduce_axis(m, "j")
    out = te.compute((2, n, 20), lambda b, i, d: te.sum(p[b, i, j] * v[b, j, d], j), "O")
    return program([p, v], out, lambda n, m: [(2, n, m), (2, m, 20)], lambda p, v, n, m: p @ v)


def softmax_rows() -> Program:
    n = te.var("n")
    x = te.placeholder((5, n), name="x")
    return program([x], softmax(x), lambda n: [(5, n)], lambda x, n: exp_rows(x))


def norm_rows() -> Program:
    n = te.var("n")
    x, g, b = te.placeholder((n, 19), name="x"), te.placeholder((19,), name="g"), te.placeholder((19,), name="b")

    def reference(x: Array, g: Array, b: Array, n: int) -> Array:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + b

    return program([x, g, b], layer_norm(x, g, b), lambda n: [(n, 19), (19,), (19,)], reference)


def joined() -> Program:
    """Concatenation of two tensors; the offset of the second depends on a size."""
    n, m = te.var("n"), te.var("m")
    a, b = te.placeholder((3, n), name="a"), te.placeholder((3, m), name="b")
    out = te.compute((3, n + m), lambda i, j: select(less_than(j, n), a[i, j], b[i, j - n]), "Y")
    return program([a, b], out, lambda n, m: [(3, n), (3, m)], lambda a, b, n, m: np.concatenate([a, b], 1))


def padded() -> Program:
    n = te.var("n")
    x = te.placeholder((n, n), name="x")

    def element(i: te.Index, j: te.Index) -> te.Value:
        inside = te.all(less_than(0, i), less_than(i - 1, n), less_than(1, j), less_than(j - 2, n))
        return select(inside, x[poly(i) - 1, poly(j) - 2], const(0.5, "float32"))

    out = te.compute((n + 2, n + 3), element, "Y")
    return program([x], out, lambda n: [(n, n)], lambda x, n: np.pad(x, ((1, 1), (2, 1)), constant_values=0.5))


def transposed() -> Program:
    n, m = te.var("n"), te.var("m")
    x = te.placeholder((2, n, m), name="x")
    out = te.compute((2, m, n), lambda b, i, j: x[b, j, i], "Y")
    return program([x], out, lambda n, m: [(2, n, m)], lambda x, n, m: x.swapaxes(1, 2))


def reduced() -> Program:
    """Sums over a symbolic axis that is not the last, of products with intermediates of symbolic size."""
    n, m = te.var("n"), te.var("m")
    x = te.placeholder((n, m), name="x")
    square = te.compute((n, m), lambda i, j: x[i, j] * x[i, j], "square")
    r = te.reduce_axis(n, "r")
    out = te.compute((m,), lambda j: te.sum(square[r, j], r), "Y")
    return program([x], out, lambda n, m: [(n, m)], lambda x, n, m: (x * x).sum(0))


def largest() -> Program:
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    r = te.reduce_axis(n, "r")
    out = te.compute((1,), lambda i: te.max(x[r], r), "Y")
    return program([x], out, lambda n: [(n,)], lambda x, n: x.max(keepdims=True))


def reshaped() -> Program:
    """A reshape with two symbolic strides."""
    n, m = te.var("n"), te.var("m")
    x = te.placeholder((n, m * 2), name="x")
    out = te.compute((n * 2, m), lambda i, j: x[floordiv(i * m + j, m * 2), mod(i * m + j, m * 2)], "Y")
    return program([x], out, lambda n, m: [(n, m * 2)], lambda x, n, m: x.reshape(n * 2, m))


def causal() -> Program:
    """A causal mask: a guard between two symbolic loops, and a size in the arithmetic."""
    n, m = te.var("n"), te.var("m")
    x = te.placeholder((n, m), name="x")
    out = te.compute(
        (n, m), lambda i, j: select(less_than(j, poly(i) + m - n + 1), Call("exp", (x[i, j],), "float32"), const(0, "float32")), "Y"
    )
    return program([x], out, lambda n, m: [(n, m)], lambda x, n, m: np.where(np.tri(n, m, m - n), np.exp(x), 0))


def halves() -> Program:
    """Extents that are quotients of a size."""
    n = te.var("n")
    half = floordiv(n + 1, 2)
    x = te.placeholder((n, 6), name="x")
    out = te.compute((half, 6), lambda i, j: x[poly(i) * 2, j], "Y")
    return program([x], out, lambda n: [(n, 6)], lambda x, n: x[::2])


MAKERS = (
    rows_matmul,
    matmul_softmax,
    attention_scores,
    attention_values,
    softmax_rows,
    norm_rows,
    joined,
    padded,
    transposed,
    reduced,
    largest,
    reshaped,
    causal,
    halves,
)
MODES = ("plain", "default", "narrow")


@cache
def compiled(maker: Callable[[], Program], mode: str) -> tuple[Program, CompiledFunction]:
    made = maker()
    target = NARROW if mode == "narrow" else HERE
    func = made.func if mode == "plain" else default_schedule(made.func, target)
    assert mode == "plain" or func is not made.func
    return made, Module.from_object(build(func, target).data)["f"]


def pairs(count: int) -> list[tuple[int, ...]]:
    """Bindings for the calls: every size, combined with other sizes if there are two."""
    return [(n,) for n in SIZES] if count == 1 else [(n, SIZES[(i * 3 + k) % len(SIZES)]) for i, n in enumerate(SIZES) for k in (1, 4)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("maker", MAKERS, ids=lambda m: m.__name__)
def test_compiled_matches_numpy(maker: Callable[[], Program], mode: str) -> None:
    made, function = compiled(maker, mode)
    for sizes in pairs(made.sizes):
        rng = stream(3, "symbolic", maker.__name__, *map(str, sizes))
        inputs = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in made.shapes(*sizes)]
        expected = made.reference(*[x.astype(np.float64) for x in inputs], *sizes)
        given = [GuardedArray("float32", x.shape) for x in (*inputs, expected)]
        for array, x in zip(given, inputs, strict=False):
            array.data[...] = x
            array.seal()
        given[-1].data[...] = np.nan
        function(*[array.data for array in given[:-1]], given[-1].data, *sizes)
        np.testing.assert_allclose(given[-1].data, expected, rtol=2e-5, atol=2e-5, err_msg=f"sizes {sizes}")
        assert not given[-1].damaged(), f"sizes {sizes}: memory around the result was overwritten"


def without_vectors(func: PrimFunc) -> PrimFunc:
    """The function with vectorized loops made serial, since the interpreter reports reductions over lanes as races."""

    def on_for(n: For, recurse: Any) -> For:
        out: For = n.map_children(recurse)
        return out.with_(kind="serial") if n.kind == "vectorized" else out

    return func.with_(body=transform(func.body, {For: on_for}))


@pytest.mark.parametrize("maker", MAKERS, ids=lambda m: m.__name__)
def test_default_schedule_preserves_interpreted_results(maker: Callable[[], Program]) -> None:
    made = maker()
    for sizes in ((5, 3)[: made.sizes], (18, 6)[: made.sizes]):
        rng = stream(4, "symbolic", maker.__name__, *map(str, sizes))
        inputs = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in made.shapes(*sizes)]
        shape = made.reference(*inputs, *sizes).shape
        values = dict(zip([p for p in made.func.params if isinstance(p, Var)], sizes, strict=True))
        out = np.zeros(shape, np.float32)
        before = run(made.func, [*inputs, out], values)[-1]
        after = run(without_vectors(default_schedule(made.func, NARROW)), [*inputs, out], values, check_races=True)[-1]
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(before, made.reference(*inputs, *sizes), rtol=1e-5, atol=1e-5)
