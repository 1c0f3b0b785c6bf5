"""code_size, bound_unrolling: estimates, loops that stay loops, refusals, and the size of the compiled code."""

from __future__ import annotations

import numpy as np
import pytest

import tunesmith
from tunesmith.codegen.llvm.build import emit_text
from tunesmith.ir.expr import Expr, call, select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.code_size import EMITTED, UNROLLED, code_size
from tunesmith.lower.passes.bound_unrolling import bound_unrolling
from tunesmith.lower.pipelines import CPU
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.formulas import softplus
from tunesmith.ops.workload import workload
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.analytic_schedule import analytic_schedule
from tunesmith.search.space.rules.block_classes import INLINED, inlined_sizes, is_within
from tunesmith.search.space.rules_table import generate
from tunesmith.support.errors import BuildError

AVX512 = Target("llvm -mcpu=znver4 -num-cores=1")


def lines(func: PrimFunc) -> int:
    """The number of lines of LLVM IR."""
    return emit_text(func, AVX512)[0].count("\n")


def unrolled_product(n: int) -> PrimFunc:
    """A matrix product whose loops are all unrolled."""
    s = Schedule(workload(f"matmul(m={n},n={n},k={n})").func)
    for x in s.get_loops(s.get_block("C")):
        s.unroll(x)
    return s.func


def epilogue(formula: str, rows: int) -> PrimFunc:
    """`formula` of X, in a register tile of rows and four vectors."""

    @T.prim_func
    def f(A: T.Buffer((256, 64), "float32"), Y: T.Buffer((256, 64), "float32")):
        C = T.alloc_buffer((256, 64), "float32", scope="register")
        for i in T.serial(256 // rows):
            for r in T.unroll(rows):
                for j in T.vectorized(64):
                    with T.block("C"):
                        vi = T.axis.spatial(256, i * rows + r)
                        vj = T.axis.spatial(64, j)
                        C[vi, vj] = A[vi, vj] * 2.0
            for r in T.unroll(rows):
                for j in T.vectorized(64):
                    with T.block("Y"):
                        vi = T.axis.spatial(256, i * rows + r)
                        vj = T.axis.spatial(64, j)
                        Y[vi, vj] = C[vi, vj] + 1.0

    s = Schedule(f)
    body = s.block(s.get_block("Y")).body

    def applied(b: object) -> object:
        x = body.value
        return b.with_(body=body.with_(value=FORMULAS[formula](x)))  # type: ignore[attr-defined]

    s.replace_block("Y", applied)  # type: ignore[arg-type]
    return s.func


def _mish(x: Expr) -> Expr:
    return x * call("tanh", softplus(x))


FORMULAS = {
    "softplus": softplus,
    "mish": _mish,
    "elu": lambda x: select(x > 0, x, call("exp", x) - 1.0),
}


@pytest.mark.parametrize("formula", list(FORMULAS))
def test_an_epilogue_with_a_select_is_vectorized(formula: str) -> None:
    """Both sides of the select only use loads that run anyway, so no lane is computed separately."""
    func = epilogue(formula, 4)
    assert lines(func) < 3000
    a = np.linspace(-30, 30, 256 * 64, dtype="float32").reshape(256, 64)
    y = np.empty_like(a)
    tunesmith.build(func, AVX512 if "avx512f" in Target.detect().features else None)(a, y)
    x = a.astype("float64") * 2 + 1
    want = {"softplus": np.logaddexp(0, x), "mish": x * np.tanh(np.logaddexp(0, x)), "elu": np.where(x > 0, x, np.expm1(np.minimum(x, 0)))}
    np.testing.assert_allclose(y, want[formula], rtol=1e-5, atol=1e-6)


def test_lanes_of_a_select_do_not_read_out_of_range() -> None:
    """If a side has loads that are out of range for some lanes, each lane is computed separately."""
    A, L = te.placeholder((32,), name="A"), te.placeholder((48,), name="L")
    B = te.compute((48,), lambda i: te.select(L[i] < 31.5, A[i], 7.0), name="B")
    s = Schedule(te.create_prim_func([A, L, B]))
    s.vectorize(s.split(s.get_loops(s.get_block("B"))[0], [None, 16])[1])
    text = emit_text(s.func, AVX512)[0]
    assert "br i1" in text and "load <16 x float>" not in text


def test_integer_divisions_in_a_select_keep_their_branch() -> None:
    """An unselected quotient may divide by zero."""
    A, B = te.placeholder((32,), "int32", "A"), te.placeholder((32,), "int32", "B")
    C = te.compute((32,), lambda i: te.select(te.maximum(B[i], 0) > 0, A[i] // B[i], 0), name="C")
    s = Schedule(te.create_prim_func([A, B, C]))
    s.vectorize(s.split(s.get_loops(s.get_block("C"))[0], [None, 16])[1])
    a, b, c = np.arange(32, dtype="int32"), np.arange(32, dtype="int32") % 3, np.empty(32, "int32")
    tunesmith.build(s.func)(a, b, c)
    np.testing.assert_array_equal(c, np.where(b > 0, a // np.maximum(b, 1), 0))


def test_a_chain_of_clamps_is_linear() -> None:
    """An expanded exp has two selects of its argument; as branches, each would double the code."""
    A = te.placeholder((4,), name="A")

    def nested(n: int) -> int:
        def formula(i: object) -> Expr:
            x = A[i] * 0.1
            for _ in range(n):
                x = te.call("exp", x) * 0.1
            return x

        return lines(te.create_prim_func([A, te.compute((4,), formula, "B")]))

    assert nested(8) < 2.5 * nested(4)


def test_time_is_linear_in_shared_divisors() -> None:
    """As a tree, the last of the divisors has 3 ** 40 nodes."""
    A = te.placeholder((37,), name="A")

    def formula(i: object) -> Expr:
        x = A[i]
        for _ in range(40):
            x = x / (x * x + 1.0)
        return x

    s = Schedule(te.create_prim_func([A, te.compute((37,), formula, "B")]))
    s.vectorize(s.split(s.get_loops(s.get_block("B"))[0], [None, 8])[1])
    a, b = np.linspace(-2, 2, 37, dtype="float32"), np.empty(37, "float32")
    tunesmith.build(s.func)(a, b)
    want = a.astype("float64")
    for _ in range(40):
        want = want / (want * want + 1.0)
    np.testing.assert_allclose(b, want, rtol=1e-5)


def test_loops_with_too_many_copies_stay_loops() -> None:
    """The outermost loops of a nest stay loops, so that the estimate is within the budget."""
    func = unrolled_product(48)
    assert code_size(func.body) > 1_000_000
    kept = bound_unrolling(func, AVX512)
    assert [n.kind for n in walk(kept.body) if type(n) is For] == ["serial", "unrolled", "unrolled"] or code_size(kept.body) <= UNROLLED
    assert code_size(kept.body) <= UNROLLED
    assert lines(func) < EMITTED
    small = unrolled_product(8)
    assert bound_unrolling(small, AVX512) is small
    a, c = np.random.default_rng(0).random((48, 48), "float32"), np.empty((48, 48), "float32")
    tunesmith.build(func)(a, a, c)
    np.testing.assert_allclose(c, a @ a, rtol=1e-5)


def test_registers_that_cannot_be_unrolled_are_refused() -> None:
    """Registers have no run-time index: the error names the loop and the buffer."""
    with pytest.raises(BuildError, match=r"\[code-size\] unrolling the loops .*r.* about \d+ instructions.* C of scope register"):
        CPU(epilogue("mish", 128), AVX512)


def test_copies_that_a_guard_removes_do_not_count() -> None:
    """Of 64 lanes that are computed separately, three remain."""

    @T.prim_func
    def f(A: T.Buffer((64, 4096), "float32"), Y: T.Buffer((64, 4096), "float32")):
        C = T.alloc_buffer((64, 64), "float32", scope="register")
        for i in T.unroll(64):
            for j in T.unroll(64):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    T.where(j < 3)
                    C[vi, vj] = A[vi, vj * vj]
        for i in T.unroll(64):
            for j in T.unroll(64):
                with T.block("Y"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    T.where(j < 3)
                    Y[vi, vj] = C[vi, vj] + 1.0

    assert code_size(f.body) > UNROLLED
    assert lines(f) < EMITTED


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_a_select_that_unrolling_decides_counts_one_side(kind: str) -> None:
    """Each copy of the loop over 24 rows has one of 24 sums of 24 terms: 24 * 24 terms, and not 24 times as many."""
    A = te.placeholder((8, 24), name="A")

    def element(i: object, row: object) -> Expr:
        sums = [sum((A[i, k] * float(r + k) for k in range(1, 24)), A[i, 0]) for r in range(24)]
        out = sums[-1]
        for r in reversed(range(23)):
            out = te.select(row < r + 1, sums[r], out)  # type: ignore[operator]
        return te.cast(kind, out)

    s = Schedule(te.create_prim_func([A, te.compute((8, 24), element, "B")], "rows"))
    s.unroll(s.get_loops(s.get_block("B"))[1])
    assert code_size(s.func.body) > 2 * UNROLLED
    loops = [n.kind for n in walk(CPU(s.func, AVX512).body) if type(n) is For]
    assert loops == ["serial"], "the loop over rows is unrolled"
    a, b = np.random.default_rng(0).random((8, 24), "float32"), np.empty((8, 24), kind)
    tunesmith.build(s.func)(a, b)
    factors = np.arange(24)[:, None] + np.arange(24)[None, :].astype("float64")
    factors[:, 0] = 1.0
    np.testing.assert_allclose(b, a @ factors.T, rtol=1e-5)


def test_the_size_of_compiled_code_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No function with more than `EMITTED` instructions is passed to LLVM."""
    monkeypatch.setattr("tunesmith.codegen.llvm.kernel.function.EMITTED", 500)
    with pytest.raises(BuildError, match=r"\[code-size\].* more than 500 instructions"):
        emit_text(unrolled_product(8), AVX512)


def chain(formula: str, count: int, n: int = 32) -> PrimFunc:
    """A contraction followed by `count` elementwise blocks."""
    A, B = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    r = te.reduce_axis(n, "k")
    x = te.compute((n, n), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), "C")
    for k in range(count):
        x = te.compute((n, n), lambda i, j, x=x: FORMULAS[formula](x[i, j]), f"Y{k}")  # type: ignore[misc]
    return te.create_prim_func([A, B, x], "f")


def test_rules_bound_inlining() -> None:
    """A chain of elementwise blocks that read their operand seven times has sketches with small programs."""
    short, long = chain("mish", 1), chain("mish", 12)
    assert any(s.name.startswith("tile") for s in generate(short, AVX512).sketches)
    assert not is_within(max(inlined_sizes(long).values(), key=lambda size: size.nodes), INLINED)
    assert [s.name for s in generate(long, AVX512).sketches] == ["stages"]
    program = analytic_schedule(long, AVX512)
    assert all(is_within(size, INLINED) for size in inlined_sizes(program).values()) or code_size(program.body, 16) <= UNROLLED
    assert code_size(program.body, 16) <= UNROLLED
    assert lines(program) < EMITTED
