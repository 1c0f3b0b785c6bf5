"""The default schedule of functions with dynamic shapes; tests/fuzz/test_symbolic.py tests that it preserves results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tunesmith
from tunesmith.codegen.llvm.build import build, emit_text
from tunesmith.driver.compile_model import compile_model
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.expr import Expr
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import GRAIN, For, annotation
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.matmul import matmul
from tunesmith.ops.softmax import softmax
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import BuildError

HERE = Target.detect().with_attributes(num_cores=2)
TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=2")


def loops(func: PrimFunc, block: str) -> list[tuple[str, str]]:
    """Kind and extent of the loops around a block, outermost first."""
    s = Schedule(func)
    return [(s.loop(x).kind, str(s.loop(x).extent)) for x in s.get_loops(s.get_block(block))]


def product_of_rows(columns: int = 40) -> PrimFunc:
    n = te.var("n")
    x, w = te.placeholder((n, 24), name="x"), te.placeholder((24, columns), name="w")
    return te.create_prim_func([x, w, matmul(x, w)], "f")


def test_contractions_are_tiled_in_registers() -> None:
    func = default_schedule(product_of_rows(), TARGET)
    assert [b.scope for b in func.allocs] == ["register"]
    parallel = ("parallel", "3*ceildiv(n, 4)")
    assert loops(func, "C") == [parallel, ("serial", "24"), ("unrolled", "4"), ("vectorized", "16")]
    assert loops(func, "C_init") == [parallel, ("unrolled", "4"), ("vectorized", "16")]
    assert loops(func, "C_write") == [parallel, ("unrolled", "4"), ("vectorized", "16")]


def test_tiles_are_no_wider_than_the_result() -> None:
    assert loops(default_schedule(product_of_rows(9), TARGET), "C")[-1] == ("vectorized", "8")
    func = default_schedule(product_of_rows(3), TARGET)
    assert not func.allocs and all(kind != "vectorized" for kind, _ in loops(func, "C"))


@pytest.mark.parametrize(("fold", "want"), [(te.sum, np.cumsum), (te.max, np.maximum.accumulate)], ids=["sum", "max"])
def test_conditions_on_the_column_have_narrow_tiles(fold: Callable[..., Expr], want: Callable[..., np.ndarray]) -> None:
    """A tile of four vectors a row was too much code: each lane of the condition is code of its own."""
    n, m = te.var("n"), te.var("m")
    x, r = te.placeholder((n, m), name="x"), te.reduce_axis(m, "r")
    low = 0.0 if fold is te.sum else -1.0
    f = te.create_prim_func([x, te.compute((n, m), lambda i, j: fold(te.select(r <= j, x[i, r], low), axis=r), "y")], "prefixes")
    call = tunesmith.compile(f, HERE)["prefixes"]
    for shape in ((5, 37), (1, 1), (0, 3), (4, 64)):
        a, y = np.random.default_rng(0).random(shape, "float32"), np.full(shape, np.nan, "float32")
        call(a, y, *shape)
        np.testing.assert_allclose(y, want(a, 1), rtol=1e-5)


def test_reductions_along_memory_are_folded() -> None:
    n = te.var("n")
    x = te.placeholder((50, n), name="x")
    func = default_schedule(te.create_prim_func([x, softmax(x)], "f"), TARGET)
    assert loops(func, "M") == [("parallel", "50"), ("serial", "ceildiv(n, 16)"), ("vectorized", "16")]
    assert loops(func, "M_init") == [("parallel", "50")]
    assert loops(func, "E") == [("parallel", "50"), ("serial", "ceildiv(n, 4)"), ("vectorized", "4")]


def test_divisors_are_constant_if_possible() -> None:
    n, m = te.var("n"), te.var("m")
    x = te.placeholder((n, m), name="x")
    twice = te.compute((n, m), lambda i, j: x[i, j] * 2.0, "Y")
    assert loops(default_schedule(te.create_prim_func([x, twice], "f"), TARGET), "Y")[0] == ("parallel", "n")
    row = te.placeholder((1, m), name="x")
    twice = te.compute((1, m), lambda i, j: row[i, j] * 2.0, "Y")
    assert loops(default_schedule(te.create_prim_func([row, twice], "f"), TARGET), "Y")[:2] == [
        ("serial", "1"),
        ("parallel", "ceildiv(m, 4)"),
    ]


def test_a_leading_dimension_of_one_element_adds_no_division() -> None:
    n = te.var("n")
    x, w, k = te.placeholder((1, n, n), name="x"), te.placeholder((1, n, 64), name="w"), te.reduce_axis(n, "k")
    f = te.create_prim_func([x, w, te.compute((1, n, 64), lambda a, i, j: te.sum(x[a, i, k] * w[a, k, j], axis=[k]), "C")], "f")
    call = Module.from_object(build(default_schedule(f, HERE), HERE).data)["f"]
    for size in (0, 1, 9):
        rng = np.random.default_rng(size)
        left, right, out = (
            rng.random((1, size, size), np.float32),
            rng.random((1, size, 64), np.float32),
            np.zeros((1, size, 64), np.float32),
        )
        call(left, right, out, size)
        np.testing.assert_allclose(out, left @ right, rtol=1e-5)


def test_one_core_runs_no_tasks() -> None:
    func = default_schedule(product_of_rows(), TARGET.with_attributes(num_cores=1))
    assert not any(type(x) is For and x.kind == "parallel" for x in walk(func.body))


def test_scheduled_functions_are_unchanged() -> None:
    func = default_schedule(product_of_rows(), TARGET)
    assert default_schedule(func, TARGET) is func


def test_each_call_decides_between_threads_and_serial_code() -> None:
    n = te.var("n")
    x = te.placeholder((n, 64), name="x")
    func = default_schedule(te.create_prim_func([x, softmax(x)], "f"), TARGET)
    tasks = [m for m in walk(func.body) if type(m) is For and m.kind == "parallel"]
    grains = [annotation(m, GRAIN) for m in tasks]
    assert tasks and all(isinstance(g, Poly) and (g.const or 0) > 1000 for g in grains)
    text, _ = emit_text([func], TARGET)
    assert text.count("fcmp olt double") == len(tasks) == text.count("@GOMP_parallel(ptr @")
    f = Module.from_object(build([func], HERE).data)["f"]
    for rows in (1, 7, 5000):
        a = np.linspace(-1, 1, rows * 64, dtype="float32").reshape(rows, 64)
        out = np.full_like(a, np.nan)
        f(a, out, rows)
        want = np.exp(a - a.max(axis=1, keepdims=True))
        np.testing.assert_allclose(out, want / want.sum(axis=1, keepdims=True), rtol=1e-5)


def test_a_grain_is_an_integer() -> None:
    n = te.var("n")
    x = te.placeholder((n, 64), name="x")
    s = Schedule(te.create_prim_func([x, softmax(x)], "f"))
    loop = s.get_loops(s.get_block("Y"))[0]
    s.parallel(loop)
    s.annotate(loop, GRAIN, "many")
    with pytest.raises(BuildError, match="the annotation 'grain' of loop .* is 'many'; it takes a number"):
        emit_text([s.func], TARGET)


def test_constant_work_is_estimated_once() -> None:
    n = te.var("n")
    x, y = te.placeholder((n, 8), name="x"), te.placeholder((16, 16), name="y")
    func = default_schedule(te.create_prim_func([x, y, softmax(x), softmax(y)], "f"), TARGET)
    assert all(m.extent.const is None for m in walk(func.body) if type(m) is For and m.kind == "parallel")


def triangle(extent: str) -> PrimFunc:
    """y[i] = sum of x[i, j] for j <= i, with tasks of rows."""
    rows = "n" if extent == "n" else "9"
    size = ", n: T.int64" if extent == "n" else ""
    found = parse(f"""
@T.prim_func
def f(x: T.Buffer(({rows}, {rows}), "float32"), y: T.Buffer(({rows},), "float32"){size}):
    for i in T.parallel({rows}, annotations={{"grain": 1000}}):
        for j in range(i + 1):
            with T.block("y"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    y[vi] = T.float32(0.0)
                y[vi] = y[vi] + x[vi, vj]
""")
    assert isinstance(found, PrimFunc)
    return found


@pytest.mark.parametrize("extent", ["n", "9"])
def test_the_work_of_an_inner_loop_may_depend_on_the_task(extent: str) -> None:
    f = Module.from_object(build([triangle(extent)], HERE).data)["f"]
    for rows in (1, 9, 60) if extent == "n" else (9,):
        a = np.arange(rows * rows, dtype="float32").reshape(rows, rows)
        out = np.full(rows, np.nan, "float32")
        f(a, out, *([rows] if extent == "n" else []))
        np.testing.assert_allclose(out, np.tril(a).sum(axis=1), rtol=1e-5)


def test_extents_that_depend_on_several_loops_are_bounded() -> None:
    """The window of a transposed convolution, whose length differs from element to element."""
    b = GraphBuilder("main")
    x, w = b.input("x", (Var("n"), 4, 5, 5)), np.ones((4, 4, 3, 3), "float32")
    y = b.conv2d_transpose(x, b.constant(w, "w"), strides=(2, 2), padding=(1, 1, 1, 1))
    model = compile_model(IRModule({"main": b.finish(y)}), HERE)
    for n in (1, 3):
        got = model(np.ones((n, 4, 5, 5), "float32"))
        assert isinstance(got, np.ndarray) and got.shape == (n, 4, 9, 9)
        np.testing.assert_array_equal(got[0, 0, :2, :3], [[4, 8, 4], [8, 16, 8]])
