"""Operators that transpose: tiles of the axis that is read and the axis that is written, transposed in registers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tunesmith import te
from tunesmith.codegen.llvm.build import build, emit_text
from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule, replay
from tunesmith.search.space.rules.pointwise import axis_across, sketches
from tunesmith.search.space.rules_table import generate

TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=256 -num-cores=2")


def permuted(shape: tuple[int, ...], order: tuple[int, ...], dtype: str = "float32") -> PrimFunc:
    """Y[i] = x[i permuted] + b[last of i]."""
    x = te.placeholder(shape, dtype, "x")
    out = tuple(shape[d] for d in order)
    b = te.placeholder(out[-1:], dtype, "b")
    return te.create_prim_func([x, b, te.compute(out, lambda *i: x[tuple(i[order.index(d)] for d in range(len(shape)))] + b[i[-1]], "Y")])


def names(func: PrimFunc) -> list[str]:
    return [name for name, _ in sketches(func, TARGET)]


def across(shape: tuple[int, ...], order: tuple[int, ...]) -> int | None:
    return axis_across(Schedule(permuted(shape, order)).blocks()[0])


def test_the_axis_across_is_that_of_the_reads() -> None:
    x = te.placeholder((8, 9, 10), name="x")

    def of(index: object) -> int | None:
        func = te.create_prim_func([x, te.compute((10, 9, 8), index, "Y")])
        return axis_across(Schedule(func).blocks()[0])

    assert of(lambda i, j, k: x[k, j, i]) == 0
    assert of(lambda i, j, k: x[k, i % 9, j]) == 1
    assert of(lambda i, j, k: x[k, j, 2 * i]) is None, "a step of 2 is not contiguous"
    assert of(lambda i, j, k: x[i % 8, j, k]) is None, "read along the last axis, as it is written"
    assert of(lambda i, j, k: x[k, j, i] + x[i % 8, j, k]) == 0, "one of two operands is transposed"
    assert of(lambda i, j, k: x[0, j, 3]) is None
    assert of(lambda i, j, k: x[0, j, i]) is None, "not strided along the last axis, but constant"
    y = te.placeholder((8, 1), name="y")
    assert axis_across(Schedule(te.create_prim_func([y, te.compute((1, 8), lambda i, j: y[j, i], "Y")])).blocks()[0]) is None


def test_sketches_of_a_transposition() -> None:
    x = te.placeholder((20, 30), name="x")
    t = te.compute((30, 20), lambda i, j: x[j, i], "T")
    func = te.create_prim_func([x, te.compute((30, 20), lambda i, j: t[i, j] * 2.0, "Y")])
    assert names(func) == ["pointwise", "pointwise serial", "pointwise across", "pointwise across serial"]
    same = te.create_prim_func([x, te.compute((20, 30), lambda i, j: x[i, j] * 2.0, "Y")])
    assert names(same) == ["pointwise", "pointwise serial"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "float16"])
@pytest.mark.parametrize(
    ("shape", "order"), [((33, 40), (1, 0)), ((9, 20, 35), (2, 1, 0)), ((3, 17, 2, 40), (0, 3, 2, 1)), ((1, 7, 50), (2, 0, 1))]
)
def test_transposed_tiles_are_right(shape: tuple[int, ...], order: tuple[int, ...], dtype: str) -> None:
    func = permuted(shape, order, dtype)
    rng = np.random.default_rng(len(shape))
    x = rng.integers(-9, 9, shape).astype(dtype)
    expected = x.transpose(order)
    b = rng.integers(-9, 9, expected.shape[-1:]).astype(dtype)
    found = [s for s in generate(func, TARGET).sketches if s.name.startswith("pointwise across")]
    assert found
    for sketch in found:
        for row in sketch.space.sample(3, rng):
            numbers = tuple(int(n) for n in row)
            program = sketch.concretize(numbers)
            assert structural.equal(program, replay(sketch.trace.with_configuration(numbers), func).func)
            y = np.zeros(expected.shape, dtype)
            Module.from_object(build(program, TARGET).data)[func.name](x, b, y)
            np.testing.assert_array_equal(y, expected + b)


def test_tiles_are_transposed_in_registers() -> None:
    """Whole tiles have neither scatters nor stores of single elements."""
    func = permuted((32, 5, 64), (2, 1, 0))
    sketch = next(s for s in generate(func, TARGET).sketches if s.name == "pointwise across serial")
    rows = itertools.islice((tuple(int(n) for n in r) for r in sketch.space.sample(8, np.random.default_rng(0))), 8)
    whole = next(r for r in rows if all(32 % n == 0 for n in r))
    text, _ = emit_text(sketch.concretize(whole), TARGET)
    assert "scatter" not in text and "store float " not in text and "shufflevector" in text


def test_an_intermediate_with_two_writers_has_no_tiles_across() -> None:
    made = parse("""
@T.prim_func
def f(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in T.serial(8):
        with T.block("zero"):
            vi = T.axis.spatial(8, i)
            B[vi] = 1.0
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi]
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi] * 2.0
""")
    assert isinstance(made, PrimFunc)
    assert names(made) == ["pointwise", "pointwise serial"]
    assert generate(made, TARGET).sketches
