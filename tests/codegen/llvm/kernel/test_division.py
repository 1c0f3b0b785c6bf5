"""Integer division of any operands: 0 for divisor 0, the minimum integer by -1 is itself, and no signal is raised."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build, emit_text
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Binary, Expr, const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import Poly, Var, ceildiv, floordiv, mod, poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import For, nest, seq, store
from tunesmith.ir.target.target import Target
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule

TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=256 -num-cores=1")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def compiled(func: PrimFunc, *given: np.ndarray) -> list[np.ndarray]:
    """Copies of the arguments after a call of the compiled function."""
    out = [x.copy() for x in given]
    Module.from_object(build(func, TARGET).data)[func.name](*out)
    return out


def same(func: PrimFunc, *given: np.ndarray) -> list[np.ndarray]:
    """The results of compiled code, after a comparison with the interpreter."""
    got = compiled(func, *given)
    for a, b in zip(got, run(func, given), strict=True):
        np.testing.assert_array_equal(a, b)
    return got


@pytest.mark.parametrize("kind", ["serial", "vectorized"])
@pytest.mark.parametrize("dtype", INTS)
def test_every_pair_of_interesting_operands(dtype: str, kind: str) -> None:
    info = np.iinfo(dtype)
    values = np.array([info.min, info.min + 1, info.max - 1, info.max, 0, 1, 2, 3, *([-1, -2, -7] if info.min else [7, 8])], dtype)
    pairs = np.array(list(itertools.product(values, repeat=2)), dtype)
    n = len(pairs)
    a, b, q, r = [Buffer(x, (n,), dtype) for x in "ABQR"]
    i = Var("i")
    body = For(i, poly(n), seq([store(q, (i,), Binary("floordiv", a[i], b[i])), store(r, (i,), Binary("mod", a[i], b[i]))]), kind)
    got = same(PrimFunc("f", (a, b, q, r), (), body), pairs[:, 0].copy(), pairs[:, 1].copy(), np.zeros(n, dtype), np.zeros(n, dtype))
    for x, y, quotient, remainder in zip(*[g.tolist() for g in got], strict=True):
        wanted = (0, 0) if y == 0 else (x, 0) if (x, y) == (info.min, -1) else divmod(x, y)
        assert (quotient, remainder) == wanted, (x, y)


def test_masked_off_lanes_may_divide_by_zero() -> None:
    """13 elements in vectors of 16: inactive lanes divide 0 by 0."""
    f = parse("""
@T.prim_func
def f(A: T.Buffer((13,), "int32"), B: T.Buffer((13,), "int32"), C: T.Buffer((13,), "int32")):
    for i in T.serial(13):
        with T.block("C"):
            vi = T.axis.spatial(13, i)
            C[vi] = A[vi] // B[vi]
""")
    s = Schedule(f)
    _, v = s.split(s.get_loops(s.get_block("C"))[0], [None, 16])
    s.vectorize(v)
    a = np.arange(13, dtype="int32")
    assert compiled(s.func, a, np.full(13, 3, "int32"), a)[2].tolist() == (a // 3).tolist()


CHOICES = {
    "side": "C[vi] = T.if_then_else(vi > 0, 100 // T.cast(vi, 'int32'), -1)",
    "data": "C[vi] = T.if_then_else(A[vi] != 0, 100 // A[vi], -1)",
    "other side": "C[vi] = T.if_then_else(A[vi] == 0, -1, 100 % A[vi])",
    "nested": "C[vi] = T.if_then_else(A[vi] > 2, T.if_then_else(A[vi] > 5, 7 // (A[vi] - 3), 5), 100 // (A[vi] - 3))",
}


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("name", CHOICES)
def test_the_side_not_selected_may_divide_by_zero(name: str, vector: bool) -> None:
    f = parse(f"""
@T.prim_func
def f(A: T.Buffer((16,), "int32"), C: T.Buffer((16,), "int32")):
    for i in T.serial(16):
        with T.block("C"):
            vi = T.axis.spatial(16, i)
            {CHOICES[name]}
""")
    s = Schedule(f)
    if vector:
        s.vectorize(s.get_loops(s.get_block("C"))[0])
    same(s.func, np.arange(16, dtype="int32"), np.zeros(16, "int32"))


GUARDED = """
@T.prim_func
def f(A: T.Buffer((64,), "int32"), C: T.Buffer((4, 16, 3), "int32")):
    for j, i, k in T.grid(4, 16, 3):
        with T.block("C"):
            vj, vi, vk = T.axis.remap("SSS", [j, i, k])
            {}
"""


@pytest.mark.parametrize("steps", ["none", "unroll", "vectorize", "parallel"])
@pytest.mark.parametrize(
    "statement",
    [
        "C[vj, vi, vk] = A[vi // vj] if vj > 0 else -1",
        "C[vj, vi, vk] = A[vi % vj + 3 * vk] if vj > 0 else -1",
        "C[vj, vi, vk] = A[T.ceildiv(vi, vj)] if vj > 0 else -1",
        "C[vj, vi, vk] = A[16 + vi // (vj - 2)] if vj > 2 else T.cast(vi // (vj - 1), 'int32')",
        "C[vj, vi, vk] = A[vi // (vj + 1)]",
    ],
)
def test_index_divisions_by_loop_variables(statement: str, steps: str) -> None:
    """Addresses are computed before their guards, and loops are unrolled into divisions by 0."""
    s = Schedule(parse(GUARDED.format(statement)))
    j, _, k = s.get_loops(s.get_block("C"))
    if steps == "unroll":
        s.unroll(j)
    elif steps == "vectorize":
        s.vectorize(k)
    elif steps == "parallel":
        s.parallel(j)
    same(s.func, np.arange(64, dtype="int32"), np.zeros((4, 16, 3), "int32"))


def test_every_index_division_has_a_value() -> None:
    x, d = Var("x"), Var("d")
    out = Buffer("C", (3, 11, 7), "int64")
    make = (floordiv, mod, ceildiv)
    stores = [store(out, (poly(n), x, d), f(poly(x) - 5, poly(d) - 3)) for n, f in enumerate(make)]
    got = same(PrimFunc("f", (out,), (), nest([(x, 11), (d, 7)], seq(stores))), np.zeros((3, 11, 7), "int64"))[0]
    for a, b in itertools.product(range(-5, 6), range(-3, 4)):
        wanted = [a // b, a % b, -(-a // b)] if b else [0, 0, 0]
        assert got[:, a + 5, b + 3].tolist() == wanted, (a, b)


@pytest.mark.parametrize("divisor", ["three", "index", "cast", "clamped"])
def test_safe_divisors_need_no_checks(divisor: str) -> None:
    i = Var("i")
    a, b, c = [Buffer(n, (8,), "int64" if divisor == "index" else "int32") for n in "ABC"]
    at: Poly = poly(i) + 1
    by: dict[str, Expr] = {
        "three": const(3, a.dtype),
        "index": at,
        "clamped": Binary("max", b[i], const(1, a.dtype)),
    }
    if divisor == "cast":
        f = parse("""
@T.prim_func
def f(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    for i in T.serial(8):
        C[i] = A[i] // T.cast(i + 1, "int32")
""")
    else:
        f = PrimFunc("f", (a, b, c), (), nest([(i, 8)], store(c, (i,), Binary("floordiv", a[i], by[divisor]))))
    assert "sdiv" in kernel(f) and "select" not in kernel(f)
    assert "select" in kernel(PrimFunc("f", (a, b, c), (), nest([(i, 8)], store(c, (i,), Binary("floordiv", a[i], b[i])))))


def kernel(func: PrimFunc) -> str:
    """The kernel as LLVM IR text."""
    return emit_text(func, TARGET)[0].partition("define void @f_kernel")[2].partition("\n}")[0]


@pytest.mark.parametrize("divisor", [0, -1])
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_unusual_constant_divisors(divisor: int, kind: str) -> None:
    i = Var("i")
    a, q, r = [Buffer(n, (8,), "int16") for n in "AQR"]
    by = const(divisor, "int16")
    body = For(i, poly(8), seq([store(q, (i,), Binary("floordiv", a[i], by)), store(r, (i,), Binary("mod", a[i], by))]), kind)
    values = np.array([-(2**15), -3, -1, 0, 1, 7, 8, 2**15 - 1], "int16")
    got = same(PrimFunc("f", (a, q, r), (), body), values, values, values)
    np.testing.assert_array_equal(got[1], values * divisor)
    assert not got[2].any()


@pytest.mark.parametrize("kind", ["serial", "vectorized"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floored_division_of_floats(dtype: str, kind: str) -> None:
    """Quotient and remainder as in Python, whose float64 is exact enough for all pairs here; for 0, infinity and NaN as in numpy."""
    values = np.array([0, 1, -1, 0.1, -0.1, 7, -7, 2.5, 3, -3, 0.001, 60000, np.inf, -np.inf, np.nan], dtype)
    x, y = [v.ravel() for v in np.meshgrid(values, values)]
    a, b, q, r = [Buffer(name, x.shape, dtype) for name in "ABQR"]
    i = Var("i")
    body = For(i, poly(len(x)), seq([store(q, (i,), Binary("floordiv", a[i], b[i])), store(r, (i,), Binary("mod", a[i], b[i]))]), kind)
    _, _, quotient, rest = compiled(PrimFunc("f", (a, b, q, r), (), body), x, y, np.zeros_like(x), np.zeros_like(x))
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64), y.astype(np.float64)
        np.testing.assert_array_equal(quotient, np.floor_divide(*wide).astype(dtype))
        np.testing.assert_array_equal(rest, np.mod(*wide).astype(dtype))
