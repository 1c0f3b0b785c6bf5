"""Test the derived schedules: their plans (golden), groups, packing, irregular blocks, and the best schedule without measurements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tunesmith
from tunesmith import te
from tunesmith.ir.expr import call
from tunesmith.ir.expr import equal as te_equal
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import floordiv
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import For
from tunesmith.ir.structural import equal
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under, walk
from tunesmith.lower.pipelines import CPU
from tunesmith.ops.cumulative import cumulative as ops_cumulative
from tunesmith.ops.cumulative import cumulative_reference
from tunesmith.ops.ordering import argsort
from tunesmith.schedule.schedule import replay
from tunesmith.search.analytic_schedule import analytic_schedule
from tunesmith.search.space.derive.axes import AxisClasses
from tunesmith.search.space.derive.plans import plans
from tunesmith.search.space.derive.regular import irregularity
from tunesmith.search.space.derive.scans import scan_axis
from tunesmith.search.space.rules import derived
from tunesmith.search.space.rules_table import generate
from tunesmith.support.seeds import stream

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")


def rms_norm_product(m: int = 128, k: int = 256, n: int = 512) -> PrimFunc:
    x, w = te.placeholder((m, k), name="x"), te.placeholder((k, n), name="w")
    a, b = te.reduce_axis(k, "a"), te.reduce_axis(k, "b")
    s = te.compute((m,), lambda i: te.sum(x[i, a] * x[i, a], axis=a), "S")
    r = te.compute((m,), lambda i: call("rsqrt", s[i] / float(k) + 1e-5), "R")
    y = te.compute((m, k), lambda i, j: x[i, j] * r[i], "Y")
    return te.create_prim_func([x, w, te.compute((m, n), lambda i, j: te.sum(y[i, b] * w[b, j], axis=b), "C")], "rms_norm_product")


def attention(h: int = 4, n: int = 100, d: int = 32) -> PrimFunc:
    q, k, v = (te.placeholder((h, n, d), name=name) for name in "qkv")
    r, a, b, c = te.reduce_axis(d, "r"), *[te.reduce_axis(n, name) for name in "abc"]
    s = te.compute((h, n, n), lambda h, i, j: te.sum(q[h, i, r] * k[h, j, r], axis=r), "S")
    m = te.compute((h, n), lambda h, i: te.max(s[h, i, a], axis=a), "M")
    e = te.compute((h, n, n), lambda h, i, j: call("exp", s[h, i, j] - m[h, i]), "E")
    z = te.compute((h, n), lambda h, i: te.sum(e[h, i, b], axis=b), "Z")
    p = te.compute((h, n, n), lambda h, i, j: e[h, i, j] / z[h, i], "P")
    o = te.compute((h, n, d), lambda h, i, x: te.sum(p[h, i, c] * v[h, c, x], axis=c), "O")
    return te.create_prim_func([q, k, v, o], "attention")


def group_norm(c: int = 64, h: int = 14, w: int = 14, groups: int = 8) -> PrimFunc:
    each = c // groups
    x = te.placeholder((c, h, w), name="x")
    r = [te.reduce_axis(n, f"r{i}") for i, n in enumerate((each, h, w))]
    s = te.compute((groups,), lambda g: te.sum(x[g * each + r[0], r[1], r[2]], axis=r), "S")
    a = te.compute((groups,), lambda g: s[g] / float(each * h * w), "A")
    return te.create_prim_func([x, te.compute((c, h, w), lambda i, j, k: x[i, j, k] - a[floordiv(i, each)], "Y")], "group_norm")


def softmax_axis_1(m: int = 16, n: int = 100, k: int = 64) -> PrimFunc:
    x = te.placeholder((m, n, k), name="x")
    a, b = te.reduce_axis(n, "a"), te.reduce_axis(n, "b")
    top = te.compute((m, k), lambda i, j: te.max(x[i, a, j], axis=a), "M")
    e = te.compute((m, n, k), lambda i, q, j: call("exp", x[i, q, j] - top[i, j]), "E")
    z = te.compute((m, k), lambda i, j: te.sum(e[i, b, j], axis=b), "Z")
    return te.create_prim_func([x, te.compute((m, n, k), lambda i, q, j: e[i, q, j] / z[i, j], "Y")], "softmax_axis_1")


FUNCTIONS = (rms_norm_product, attention, group_norm, softmax_axis_1)


def test_sketches(assert_golden: Callable[..., None]) -> None:
    lines = []
    for make in FUNCTIONS:
        space = generate(make(), TARGET)
        assert not space.refused and not space.plain
        lines += [make.__name__, *[f"  {s.name}: {', '.join(p.name for p in s.params)}" for s in space.sketches]]
    assert_golden("\n".join(lines) + "\n")


@pytest.mark.parametrize("make", FUNCTIONS, ids=lambda f: f.__name__)
def test_every_function_is_vectorised_and_parallel(make: Callable[[], PrimFunc]) -> None:
    for s in generate(make(), TARGET).sketches:
        kinds = {n.kind for n in walk(s.func.body) if type(n) is For}
        assert "vectorized" in kinds and ("parallel" in kinds) == ("serial" not in s.name.split())


def test_group_norm_is_one_nest() -> None:
    """The axis of the groups is the outer part of the channels, so that statistics and output share the loop over groups."""
    axes = AxisClasses(blocks_under(group_norm().body))
    outer = axes.outer_part("Y", 0)
    assert outer is not None and outer == (axes.axis("S", 0), 8) and set(axes.shared(["S", "A", "Y"])) == {outer[0]}
    (plan, *_) = plans(group_norm(), TARGET)
    assert not plan.apart


def test_values_read_at_two_axes_are_computed_before() -> None:
    """D[i, j] = N[i] + N[j]: no tile of D contains all readers of an element of N."""
    x, r = te.placeholder((100, 32), name="x"), te.reduce_axis(32, "r")
    norm = te.compute((100,), lambda i: te.sum(x[i, r] * x[i, r], axis=r), "N")
    func = te.create_prim_func([x, te.compute((100, 100), lambda i, j: norm[i] + norm[j], "D")], "distances")
    assert all("N" in p.apart for p in plans(func, TARGET))
    far = te.create_prim_func([x, te.compute((50,), lambda i: norm[i] * norm[i + 50], "D")], "far")
    assert all("N" in p.apart for p in plans(far, TARGET))


def test_a_matrix_vector_product_follows_the_order_of_memory() -> None:
    w, x, r = te.placeholder((512, 256), name="w"), te.placeholder((1, 256), name="x"), te.reduce_axis(256, "r")
    y = te.compute((1, 512), lambda b, i: te.sum(x[b, r] * w[i, r], axis=r), "P")
    func = te.create_prim_func([w, x, te.compute((1, 512), lambda b, i: te.maximum(y[b, i], 0.0), "Y")], "layer")
    found = derived.sketches(func, TARGET)
    assert found and all("P_rf" in str(s.func) for s in generate(func, TARGET, [derived.sketches]).sketches)


def test_operands_that_are_not_contiguous_are_packed() -> None:
    func = attention()
    names = [s.name for s in generate(func, TARGET).sketches]
    for s in generate(func, TARGET).sketches:
        assert "k_copy" in str(s.func) and ("v_copy" in str(s.func)) == ("pack" in s.name.split())
    assert any("pack" in name.split() for name in names)


# ---- blocks without a structure


@T.prim_func
def scan(X: T.Buffer((64, 100), "float32"), Z: T.Buffer((64, 100), "float32")):
    Y = T.alloc_buffer((64, 100), "float32")
    for i, j in T.grid(64, 100):
        with T.block("Y"):
            v_i, v_j = T.axis.remap("SR", [i, j])
            Y[v_i, v_j] = X[v_i, v_j] + T.select(v_j < 1, T.float32(0.0), Y[v_i, v_j - 1])
    for i, j in T.grid(64, 100):
        with T.block("Z"):
            v_i, v_j = T.axis.remap("SS", [i, j])
            Z[v_i, v_j] = Y[v_i, v_j] * T.float32(2.0)


@T.prim_func
def heap(X: T.Buffer((64,), "float32"), Y: T.Buffer((64,), "float32")):
    for i in T.serial(64):
        with T.block("Y"):
            v_i = T.axis.spatial(64, i)
            Y[v_i] = X[v_i] + T.select(v_i < 1, T.float32(0.0), Y[v_i // 2])


@T.prim_func
def two_stores(X: T.Buffer((64,), "float32"), Y: T.Buffer((64,), "float32"), Z: T.Buffer((64,), "float32")):
    for i in T.serial(64):
        with T.block("Y"):
            v_i = T.axis.spatial(64, i)
            Y[v_i] = X[v_i]
            Z[v_i] = X[v_i] * T.float32(2.0)


@T.prim_func
def reversed_store(X: T.Buffer((64,), "float32"), Y: T.Buffer((64,), "float32")):
    for i in T.serial(64):
        with T.block("Y"):
            v_i = T.axis.spatial(64, i)
            Y[63 - v_i] = X[v_i]


@T.prim_func
def no_init(X: T.Buffer((64, 100), "float32"), Y: T.Buffer((64,), "float32")):
    for i, j in T.grid(64, 100):
        with T.block("Y"):
            v_i, v_j = T.axis.remap("SR", [i, j])
            Y[v_i] = T.max(Y[v_i], X[v_i, v_j])


@T.prim_func
def scattered_sum(X: T.Buffer((64, 100), "float32"), Y: T.Buffer((65,), "float32")):
    for i, j in T.grid(64, 100):
        with T.block("Y"):
            v_i, v_j = T.axis.remap("SR", [i, j])
            with T.init():
                Y[v_i + 1] = T.float32(0.0)
            Y[v_i + 1] = Y[v_i + 1] + X[v_i, v_j]


@pytest.mark.parametrize(
    ("func", "why"),
    [
        (heap, "reads elements that its other instances write"),
        (two_stores, "stores several values"),
        (reversed_store, "does not store at its iteration variables"),
        (no_init, "no init and update"),
        (scattered_sum, "accumulates at indices that are not"),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_blocks_without_a_structure_are_named(func: PrimFunc, why: str) -> None:
    """Their functions have a space, in which the other blocks have their structures, and the tuner reports them."""
    assert why in irregularity(blocks_under(func.body)[0])
    space = generate(func, TARGET)
    assert space.sketches and len(space.plain) == 1 and space.plain[0].startswith(f"block Y of {func.name} keeps plain loops")
    report = tunesmith.tune(func, budget=2, workers=0, progress=False, target=Target.detect())
    assert space.plain[0] in report.notes


@T.prim_func
def conditional(A: T.Buffer((30, 40), "float32"), Y: T.Buffer((30, 40), "float32")):
    for i, j in T.grid(30, 40):
        with T.block("Y"):
            v_i, v_j = T.axis.remap("SS", [i, j])
            if A[v_i, v_j] > 0.0:
                Y[v_i, v_j] = A[v_i, v_j] * 2.0


@T.prim_func
def loop_inside(A: T.Buffer((30, 40), "float32"), Y: T.Buffer((30,), "float32")):
    for i in T.serial(30):
        with T.block("Y"):
            v_i = T.axis.spatial(30, i)
            for k in range(40):
                Y[v_i] = A[v_i, k]


@pytest.mark.parametrize(("func", "why"), [(conditional, "its store is conditional"), (loop_inside, "a loop inside the block")])
def test_a_single_store_below_other_statements_has_its_own_reason(func: PrimFunc, why: str) -> None:
    (line,) = generate(func, TARGET).plain
    assert why in line and "several" not in line


def histogram(columns: int | None) -> PrimFunc:
    """Occurrences of each value in a vector, or in each row of a matrix."""
    shape = (500,) if columns is None else (columns, 500)
    x = te.placeholder(shape, "uint8", name="x")
    y = te.scatter(
        lambda *i: 0,
        shape,
        lambda *i: (*i[:-1], te.cast("int64", x[i])),
        lambda old, *i: old + 1,
        shape=(*shape[:-1], 256),
        name="Y",
        dtype="int32",
    )
    return te.create_prim_func([x, y], "histogram")


def test_scatters_and_scans_that_run_serially_are_named() -> None:
    (line,) = generate(histogram(None), TARGET).plain
    assert line.startswith("block Y of histogram runs serially: updates of one element stay in order")
    assert not generate(histogram(4), TARGET).plain, "its rows are parallel"
    (line,) = generate(cumulative(1, shape=(1, 900)), TARGET).plain
    assert line.endswith("runs serially: each element needs the one before it, and there is no other axis")
    assert not generate(cumulative(1, shape=(4, 900)), TARGET).plain


def test_other_blocks_of_a_function_with_a_scan_are_vectorised() -> None:
    text = str(analytic_schedule(scan, TARGET))
    assert "T.vectorized" in text
    x = np.random.default_rng(0).standard_normal((64, 100)).astype(np.float32)
    y = np.full_like(x, np.nan)
    tunesmith.compile(scan)["scan"](x, y)
    np.testing.assert_allclose(y, 2 * np.cumsum(x, 1), rtol=1e-4, atol=1e-4)


def cumulative(axis: int, *, reverse: bool = False, exclusive: bool = False, shape: tuple[int, ...] = (6, 17, 20)) -> PrimFunc:
    x = te.placeholder(shape, name="x")
    return te.create_prim_func([x, ops_cumulative("cumsum", x, axis, reverse=reverse, exclusive=exclusive)], "cumulative")


def test_the_structures_of_a_scan(assert_golden: Callable[..., None]) -> None:
    """Lanes beside the scan's axis, or rows in turns; the first element is apart, and its successors have the last in a register."""
    for axis in (1, 2):
        space = generate(cumulative(axis), TARGET)
        assert not space.plain
        assert_golden(str(space.sketches[0].func), f"search/rules/scan_along_{axis}")
    lowered = str(CPU(analytic_schedule(cumulative(1, shape=(8, 17, 64)), TARGET), TARGET))
    assert "_last.vstore" in lowered and "if " not in lowered


@pytest.mark.parametrize("shape", [(6, 17, 20), (3, 1, 5), (1, 9, 1)], ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"exclusive": True}, {"reverse": True, "exclusive": True}], ids=str)
def test_all_sketches_of_a_scan_compute_it(shape: tuple[int, ...], axis: int, options: dict[str, bool]) -> None:
    f = cumulative(axis, shape=shape, **options)
    x = stream(3, "scan").standard_normal(shape).astype(np.float32)
    want = cumulative_reference("cumsum", x, axis, **options)
    for sketch in generate(f, Target.detect()).sketches:
        for row in sketch.space.sample(3, stream(4, "scan")):
            values = tuple(map(int, row))
            f_row = sketch.concretize(values)
            assert equal(f_row, replay(sketch.trace_of(values), f).func)
            y = np.full_like(x, np.nan)
            tunesmith.build(f_row)["cumulative"](x, y)
            np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5, err_msg=sketch.name)


def transposed(n: int = 5, ci: int = 3, co: int = 7) -> PrimFunc:
    """A transposed convolution with stride 2, as a sum over all rows of the filter."""
    x, w = te.placeholder((ci, n, n), name="x"), te.placeholder((ci, co, 4, 4), name="w")
    c, a, b = te.reduce_axis(ci, "c"), te.reduce_axis(4, "a"), te.reduce_axis(4, "b")

    def element(o: te.Poly, i: te.Poly, j: te.Poly) -> te.Expr:
        u, v = i + 5 - a, j + 5 - b
        p, q = floordiv(u, 2) - 2, floordiv(v, 2) - 2
        inside = te.all(te_equal(u % 2, 0), te_equal(v % 2, 0), p >= 0, p < n, q >= 0, q < n)
        return te.sum(te.select(inside, x[c, p, q], 0.0) * w[c, o, a, b], axis=[c, a, b])

    return te.create_prim_func([x, w, te.compute((co, 2 * n, 2 * n), element, "Y")], "transposed")


def test_terms_that_are_always_zero_are_left_out() -> None:
    f = transposed()
    rng = stream(6, "transposed")
    x, w = rng.standard_normal((3, 5, 5), "float32"), rng.standard_normal((3, 7, 4, 4), "float32")
    want = run(f, [x, w])[2]
    space = generate(f, Target.detect())
    assert any("across" in s.name for s in space.sketches)
    for sketch in space.sketches:
        assert str(sketch.trace).count("restrict_reduction") == 2
        row = tuple(map(int, sketch.space.sample(1, rng)[0]))
        assert equal(sketch.concretize(row), replay(sketch.trace_of(row), f).func)
        y = np.zeros_like(want)
        tunesmith.build(sketch.concretize(row))["transposed"](x, w, y)
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5, err_msg=sketch.name)


def index_add(rows: int = 9, columns: int = 20, updates: int = 31) -> PrimFunc:
    x, v = te.placeholder((rows, columns), name="x"), te.placeholder((updates, columns), name="v")
    at = te.placeholder((updates,), "int64", name="at")
    return te.create_prim_func(
        [x, at, v, te.scatter(x, v.shape, lambda k, c: (at[k], c), lambda old, *i: old + v[i], name="Y")], "index_add"
    )


def test_columns_of_a_scatter_are_vectors_and_parallel(assert_golden: Callable[..., None]) -> None:
    space = generate(index_add(), TARGET)
    assert not space.plain and not space.refused
    assert_golden(str(space.sketches[0].func), "search/rules/scatter")


@pytest.mark.parametrize("shape", [(9, 20, 31), (4, 1, 7), (1, 33, 2)], ids=str)
def test_all_sketches_of_a_scatter_compute_it(shape: tuple[int, int, int]) -> None:
    f = index_add(*shape)
    rng = stream(5, "scatter")
    x, at, v = rng.random(shape[:2], "float32"), rng.integers(0, shape[0], shape[2]), rng.random((shape[2], shape[1]), "float32")
    want = x.copy()
    np.add.at(want, at, v)
    for sketch in generate(f, Target.detect()).sketches:
        for row in sketch.space.sample(3, rng):
            values = tuple(map(int, row))
            assert equal(sketch.concretize(values), replay(sketch.trace_of(values), f).func)
            y = np.full_like(x, np.nan)
            tunesmith.build(sketch.concretize(values))["index_add"](x, at, v, y)
            np.testing.assert_allclose(y, want, rtol=1e-6, err_msg=sketch.name)


def scatter_between(make: Callable[[te.Tensor], te.Tensor]) -> PrimFunc:
    """Rows that a scatter adds up, and a function of its result."""
    v, at = te.placeholder((31, 20), name="v"), te.placeholder((31,), "int64", name="at")
    x = te.scatter(
        lambda i, j: te.const(0.0, "float32"), (31, 20), lambda k, c: (at[k], c), lambda old, k, c: old + v[k, c], shape=(9, 20), name="X"
    )
    return te.create_prim_func([v, at, make(x)], "scatter_between")


def scaled(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i, j: x[i, j] * 2.0, "Y")


def running(x: te.Tensor) -> te.Tensor:
    """A scan of sums: the scan has no tiles that the sums are computed in."""
    r = te.reduce_axis(20, "r")
    z = te.compute((9,), lambda i: te.sum(x[i, r], axis=r), "Z")
    return te.scan((9,), lambda before, i: before + z[i], 0.0, name="Y")


@pytest.mark.parametrize(("make", "want"), [(scaled, lambda x: x * 2), (running, lambda x: x.sum(1).cumsum())], ids=["scaled", "running"])
def test_consumers_of_a_scatter_have_their_structures(
    make: Callable[[te.Tensor], te.Tensor], want: Callable[[np.ndarray], np.ndarray]
) -> None:
    """The initial values, which have a second writer, are not inlined."""
    f = scatter_between(make)
    space = generate(f, TARGET)
    serial = ["block Y of scatter_between runs serially: each element needs the one before it, and there is no other axis"]
    assert not space.refused and list(space.plain) == (serial if make is running else [])
    assert all(s.name.startswith("derived") for s in space.sketches)
    rng = stream(6, "scatter_between")
    v, at, x = rng.random((31, 20), "float32"), rng.integers(0, 9, 31), np.zeros((9, 20), "float32")
    np.add.at(x, at, v)
    for sketch in generate(f, Target.detect()).sketches:
        for row in sketch.space.sample(2, rng):
            y = np.full_like(want(x), np.nan)
            tunesmith.build(sketch.concretize(tuple(map(int, row))))["scatter_between"](v, at, y)
            np.testing.assert_allclose(y, want(x), rtol=1e-4, err_msg=sketch.name)


def test_a_scatter_of_one_row_is_parallel_along_it() -> None:
    space = generate(index_add(9, 200, 1), TARGET)
    assert not space.refused and "T.parallel" in str(space.sketches[0].func)


def test_an_epilogue_reads_what_is_computed_after_the_contraction() -> None:
    """The epilogue stays behind the maxima that it reads: the contraction is computed in its tiles."""
    n = 40
    a, w, r, k = te.placeholder((n, n), name="a"), te.placeholder((n, n), name="w"), te.reduce_axis(n, "r"), te.reduce_axis(n, "k")
    product = te.compute((n, n), lambda i, j: te.sum(a[i, k] * w[k, j], axis=k), "C")
    top = te.compute((n,), lambda j: te.max(a[r, j], axis=r), "top")
    f = te.create_prim_func([a, w, te.compute((n, n), lambda i, j: product[i, j] - top[j], "Y")], "f")
    assert [b.name for b in blocks_under(f.body)] == ["C", "top", "Y"]
    assert not generate(f, TARGET).refused
    rng = stream(7, "epilogue")
    x, v = rng.random((n, n), "float32"), rng.random((n, n), "float32")
    for sketch in generate(f, Target.detect()).sketches:
        y = np.full_like(x, np.nan)
        tunesmith.build(sketch.concretize(tuple(map(int, sketch.space.sample(1, rng)[0]))))["f"](x, v, y)
        np.testing.assert_allclose(y, x @ v - x.max(0), rtol=1e-4, atol=1e-5, err_msg=sketch.name)


def chain(products: int) -> PrimFunc:
    """Products of matrices, with an elementwise function behind each."""
    names = [te.placeholder((40, 40), name="X")]
    made = names[0]
    for n in range(products):
        w, k = te.placeholder((40, 40), name=f"W{n}"), te.reduce_axis(40, f"k{n}")
        y = te.compute((40, 40), lambda i, j, x=made, w=w, k=k: te.sum(x[i, k] * w[k, j], axis=k), f"C{n}")
        made = te.compute((40, 40), lambda i, j, y=y: te.maximum(y[i, j], 0.0) * 2.0, f"Y{n}")
        names.append(w)
    return te.create_prim_func([*names, made], "chain")


def test_functions_of_many_blocks_have_few_plans() -> None:
    """Choices are combined in small functions only."""
    small, large = len(plans(chain(3), TARGET)), len(plans(chain(7), TARGET))
    assert 4 <= large < small < 60


@pytest.mark.parametrize(
    ("stored", "loaded", "axis"),
    [
        ("v_i, v_j", "v_i, v_j - 1", 1),
        ("v_i, v_j", "v_i - 2, v_j", 0),
        ("v_i, 63 - v_j", "v_i, 64 - v_j", 1),
        ("v_i, v_j", "v_i, v_j + 1", None),
        ("v_i, v_j", "v_i - 1, v_j - 1", None),
        ("v_i, v_j", "v_j, v_i", None),
        ("v_i, v_i", "v_i, v_i - 1", None),
        ("v_i, v_j", "v_i, v_j", None),
        ("v_i, v_j", "v_i, v_j // 2", None),
    ],
)
def test_which_blocks_are_scans(stored: str, loaded: str, axis: int | None) -> None:
    f = parse(f"""
@T.prim_func
def f(X: T.Buffer((64, 64), "float32"), Y: T.Buffer((64, 64), "float32")):
    for i, j in T.grid(64, 64):
        with T.block("Y"):
            v_i, v_j = T.axis.remap("SS", [i, j])
            Y[{stored}] = X[v_i, v_j] + T.select(X[v_i, v_j] < 0.0, Y[{loaded}], T.float32(0))
""")
    assert scan_axis(blocks_under(f.body)[0]) == axis


def test_names_fit_into_records() -> None:
    """The sort of a row of 4,000 values has more blocks than a name may list."""
    values = te.placeholder((2, 4000), name="values")
    names = [plan.name for plan in plans(te.create_prim_func([values, argsort(values, 1)]), TARGET)]
    assert max(map(len, names)) <= 256 and len(set(names)) == len(names)
    assert any(".." in name for name in names)


def test_a_product_of_a_matrix_and_its_transpose_packs_one_of_the_reads() -> None:
    x, k = te.placeholder((20, 30), name="x"), te.reduce_axis(30, "k")
    func = te.create_prim_func([x, te.compute((20, 20), lambda i, j: te.sum(x[i, k] * x[j, k], axis=k), "C")], "gram")
    space = generate(func, TARGET)
    assert not space.refused and all("pack(x)" in s.name for s in space.sketches)
    data, result = np.random.default_rng(0).random((20, 30), np.float32), np.zeros((20, 20), np.float32)
    tunesmith.compile(func, Target.detect())(data, result)
    np.testing.assert_allclose(result, data @ data.T, rtol=1e-5)
