"""Products of bytes and of bfloat16 by dot-product instructions: which blocks, which targets, results, the law."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith import te
from tunesmith.codegen.llvm.build import assembly, build
from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule, replay
from tunesmith.search.space.rules.block_classes import is_contraction
from tunesmith.search.space.rules.contraction import sketches as contraction_sketches
from tunesmith.search.space.rules.dot_instruction import dot_of
from tunesmith.search.space.rules.dot_products import sketches
from tunesmith.search.space.rules_table import generate

ZEN5 = Target("llvm -mcpu=znver5 -num-cores=2")
HERE = Target.detect()


def product(
    m: int, n: int, k: int, left: str = "uint8", right: str = "int8", out: str = "int32", swap: bool = False, constant: bool = False
) -> PrimFunc:
    a, b, r = te.placeholder((m, k), left, "A"), te.placeholder((k, n), right, "B"), te.reduce_axis(k, "k")

    def element(i: object, j: object) -> object:
        x, y = a[i, r].astype(out), b[r, j].astype(out)
        return te.sum(y * x if swap else x * y, axis=r)

    func = te.create_prim_func([a, b, te.compute((m, n), element, "C")], "product")
    return func.with_(attrs=(("constants", "B"),)) if constant else func


def diagonal() -> PrimFunc:
    """Rows of A times the diagonal B[k, k, :]."""
    a, b, r = te.placeholder((32, 64), "uint8", "A"), te.placeholder((64, 64, 32), "int8", "B"), te.reduce_axis(64, "k")
    c = te.compute((32, 32), lambda i, j: te.sum(a[i, r].astype("int32") * b[r, r, j].astype("int32"), axis=r), "C")
    return te.create_prim_func([a, b, c], "diagonal")


def convolution(ci: int, co: int) -> PrimFunc:
    """3 x 3, padded, with a bias, in NHWC, requantised to a multiple of 1/8."""
    x, w, bias = (
        te.placeholder((1, 4, 5, ci), "uint8", "x"),
        te.placeholder((3, 3, ci, co), "int8", "w"),
        te.placeholder((co,), "int32", "b"),
    )
    c, kh, kw = te.reduce_axis(ci, "c"), te.reduce_axis(3, "kh"), te.reduce_axis(3, "kw")

    def padded(n: object, i: object, j: object, d: object) -> object:
        inside = te.all(i >= 1, i < 5, j >= 1, j < 6)
        return te.select(inside, x[n, i - 1, j - 1, d], te.const(0, "uint8"))

    p = te.compute((1, 6, 7, ci), padded, "P")
    s = te.compute(
        (1, 4, 5, co),
        lambda n, i, j, o: te.sum(p[n, i + kh, j + kw, c].astype("int32") * w[kh, kw, c, o].astype("int32"), axis=[kh, kw, c]),
        "S",
    )
    y = te.compute(s.shape, lambda n, i, j, o: (s[n, i, j, o] + bias[o]).astype("float32") * 0.125, "Y")
    return te.create_prim_func([x, w, bias, y], "convolution")


def intrinsic(func: PrimFunc, target: Target = ZEN5) -> str | None:
    main = next(b for b in blocks_under(func.body) if is_contraction(b))
    found = dot_of(main, target)
    return None if found is None else found.intrinsic


def test_the_widest_instruction_that_the_target_has() -> None:
    assert intrinsic(product(8, 32, 16)) == "x86.vpdpbusd.512"
    assert intrinsic(product(8, 32, 16), Target("llvm -mcpu=alderlake -num-cores=2")) == "x86.vpdpbusd.256"
    assert intrinsic(product(8, 32, 16), Target("llvm -mcpu=znver5 -vector-bits=256 -num-cores=2")) == "x86.vpdpbusd.256"
    assert intrinsic(product(8, 32, 16), Target("llvm -mcpu=x86-64-v4 -num-cores=2")) is None
    assert intrinsic(product(8, 32, 16), Target("llvm -mcpu=znver5 -mattr=-avx512vnni,-avxvnni -num-cores=2")) is None
    assert intrinsic(product(8, 32, 16, "bfloat16", "bfloat16", "float32")) == "x86.vdpbf16ps.512"
    assert intrinsic(product(8, 32, 16, "int8", "int8")) == "x86.vpdpbusd_s8s8.512"
    assert intrinsic(convolution(8, 32)) == "x86.vpdpbusd.512"


def test_a_result_of_one_element_has_no_instruction() -> None:
    """Its tiles would all be partial, and no program of the sketch could be built."""
    found = [intrinsic(product(m, n, 16, "int8", "int8")) for m, n in ((1, 1), (1, 2), (2, 1))]
    assert found == [None, "x86.vpdpbusd_s8s8.512", "x86.vpdpbusd_s8s8.512"]


def test_other_products_have_no_instruction() -> None:
    assert intrinsic(product(8, 32, 16, "int8", "uint8")) is None, "the packed operand is signed"
    assert intrinsic(product(8, 32, 16, "uint8", "uint8")) is None
    assert intrinsic(product(8, 32, 16, "uint8", "int8", "float32")) is None
    assert intrinsic(product(8, 32, 3)) is None, "a group of 4 is longer than the reduction"
    assert intrinsic(convolution(6, 32)) is None, "operands of a convolution are not indexed by variables, so that they cannot be padded"
    assert intrinsic(diagonal()) is None, "neighbours along the reduction are no neighbours in the packed operand"
    assert intrinsic(product(8, 32, 16, "float32", "float32", "float32")) is None
    assert sketches(product(8, 32, 16, "float32", "float32", "float32"), ZEN5) == []
    assert sketches(product(8, 32, 16), Target("cuda -arch=sm_90")) == []


def arguments(func: PrimFunc) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    given = []
    for b in func.params[:-1]:
        shape = [e.as_int() for e in b.shape]  # type: ignore[union-attr]
        high = 128 if b.dtype == "int8" else 256  # type: ignore[union-attr]
        given.append(rng.integers(-128 if high == 128 else 0, high, shape).astype(b.dtype))  # type: ignore[union-attr]
    return given


CASES = [
    product(8, 32, 16),
    product(13, 50, 24, swap=True),
    product(18, 70, 32, constant=True),
    product(1, 40, 8),
    product(5, 7, 4),
    product(13, 50, 24, "int8", "int8"),
    product(7, 20, 18),
    product(13, 35, 77, constant=True),
    product(6, 33, 9, "int8", "int8"),
    convolution(8, 20),
    convolution(16, 32),
]


@pytest.mark.parametrize("n", range(len(CASES)))
def test_results_and_law(n: int) -> None:
    """All rows are compiled and run where the processor has the instructions; the interpreter runs one program of each nest.

    A serial sketch has the nest of its parallel twin, so that one row of it is enough.
    """
    func = CASES[n]
    given = arguments(func)
    want = run(func, given)[-1]
    rng = np.random.default_rng(n)
    space = generate(func, ZEN5, rules=[sketches])
    assert not space.refused and not space.left_out
    names = {s.name for s in space.sketches}
    for sketch in space.sketches:
        twin = sketch.name.endswith(" serial") and sketch.name.removesuffix(" serial") in names
        for k, row in enumerate(sketch.space.sample(1 if twin else 3, rng)):
            numbers = tuple(int(x) for x in row)
            program = sketch.concretize(numbers)
            assert structural.equal(program, replay(sketch.trace.with_configuration(numbers), func).func)
            runs_here = "avx512vnni" in HERE.features
            if (k == 0 and not twin) or not runs_here:
                np.testing.assert_array_equal(run(program, given)[-1], want)
                assert "vpdpbusd" in assembly(program, ZEN5)
            if runs_here:
                got = np.zeros_like(want)
                Module.from_object(build(program, HERE).data)[func.name](*given, got)
                np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("k", [32, 33])
def test_bfloat16(k: int) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    func = product(9, 40, k, "bfloat16", "bfloat16", "float32")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((9, k), (k, 40)))
    want = a.astype("float64") @ b.astype("float64")
    for sketch in generate(func, ZEN5, rules=[sketches]).sketches:
        program = sketch.concretize(tuple(int(x) for x in sketch.space.sample(1, rng)[0]))
        assert "vdpbf16ps" in assembly(program, ZEN5)
        if "avx512bf16" in HERE.features:
            got = np.zeros((9, 40), "float32")
            Module.from_object(build(program, HERE).data)["product"](a, b, got)
            np.testing.assert_allclose(got, want, atol=1e-5)


def test_the_default_space_contains_both_rules() -> None:
    names = [s.name for s in generate(product(64, 64, 64, constant=True), ZEN5).sketches]
    assert any(name.startswith("dot ") for name in names) and any(name.startswith("tile ") for name in names)


@pytest.mark.parametrize("left", ["uint8", "float32"])
def test_every_reader_of_the_sums_is_part_of_the_nest(left: str) -> None:
    """Two results of one product: both read the accumulators."""
    right, out = ("int8", "int32") if left == "uint8" else ("float32", "float32")
    a, b, r = te.placeholder((13, 33), left, "A"), te.placeholder((33, 40), right, "B"), te.reduce_axis(33, "k")
    c = te.compute((13, 40), lambda i, j: te.sum(a[i, r].astype(out) * b[r, j].astype(out), axis=r), "C")
    d, e = (te.compute((13, 40), lambda i, j, n=n: c[i, j] + n, name) for n, name in ((1, "D"), (2, "E")))
    func = te.create_prim_func([a, b, d, e], "both")
    shapes = [([x.as_int() for x in p.shape], p.dtype) for p in func.params[:2]]  # type: ignore[union-attr]
    given = [np.random.default_rng(0).integers(0, 9, shape).astype(dtype) for shape, dtype in shapes]
    want = run(func, given)[2:]
    space = generate(func, HERE, rules=[contraction_sketches, sketches])
    assert space.sketches and not space.refused
    for sketch in space.sketches:
        for row in sketch.space.sample(2, np.random.default_rng(1)):
            got = [np.zeros_like(x) for x in want]
            Module.from_object(build(sketch.concretize(tuple(int(x) for x in row)), HERE).data)["both"](*given, *got)
            for x, y in zip(got, want, strict=True):
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("channels", "axis", "lanes"), [(1, "j", 64), (8, "d", 8), (100, "d", 64)])
def test_padded_bytes_are_copied_by_vectors_of_bytes_along_an_axis_of_many(channels: int, axis: str, lanes: int) -> None:
    """The innermost axis has one channel where channels are folded into the width."""
    x, w = te.placeholder((1, 6, 150, channels), "uint8", "x"), te.placeholder((1, 8, channels, 32), "int8", "w")
    c, kw = te.reduce_axis(channels, "c"), te.reduce_axis(8, "kw")

    def padded(n: Any, i: Any, j: Any, d: Any) -> Any:
        return te.select(te.all(j >= 4, j < 154), x[n, i, j - 4, d], te.const(7, "uint8"))

    p = te.compute((1, 6, 157, channels), padded, "P")
    s = te.compute(
        (1, 6, 150, 32), lambda n, i, j, o: te.sum(p[n, i, j + kw, c].astype("int32") * w[0, kw, c, o].astype("int32"), axis=[kw, c]), "S"
    )
    space = generate(te.create_prim_func([x, w, s], "conv"), ZEN5, rules=[sketches])
    found = [k for k in space.sketches if "pad(root)" in k.name]
    assert found and not space.refused
    for sketch in found:
        schedule = Schedule(sketch.concretize(tuple(int(v) for v in sketch.space.sample(1, np.random.default_rng(0))[0])))
        loops = [schedule.loop(v) for v in schedule.get_loops(schedule.get_block("P"))]
        vector = next(n for n in loops if n.kind == "vectorized")
        assert vector.extent == lanes and vector.var.name.startswith(axis)
