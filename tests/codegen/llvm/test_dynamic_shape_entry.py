"""Functions with dynamic shapes: rejected arguments, and memory use."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build, emit_text
from tunesmith.codegen.llvm.export import export_library
from tunesmith.codegen.params import param_specs
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import ONE, Index, Param, Poly, Var, ceildiv, floordiv, maximum, minimum, mod, poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import Block, For, Iter, Stmt, nest, seq, store
from tunesmith.ir.target.target import Target
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.matmul import matmul
from tunesmith.ops.softmax import softmax
from tunesmith.runtime.module import CompiledFunction, Module, load_module
from tunesmith.support.errors import BuildError, RunError

TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=2")


def compiled(func: PrimFunc) -> CompiledFunction:
    return Module.from_object(build(func, TARGET).data)[func.name]


def scaled() -> PrimFunc:
    """y[n, 64] = x[n, 64] + b[64], and z[n + m], which is unused."""
    n, m = te.var("n"), te.var("m")
    x, b, z = te.placeholder((n, 64), name="x"), te.placeholder((64,), name="b"), te.placeholder((n + m,), name="z")
    y = te.compute((n, 64), lambda i, j: x[i, j] + b[j] + z[i + m], "y")
    return te.create_prim_func([x, b, z, y], "f")


@pytest.fixture(scope="module")
def function() -> CompiledFunction:
    return compiled(scaled())


def arrays(n: int = 7, m: int = 3) -> list[np.ndarray]:
    return [np.ones((n, 64), "float32"), np.ones(64, "float32"), np.ones(n + m, "float32"), np.zeros((n, 64), "float32")]


def refusal(call: CompiledFunction, *arguments: object) -> str:
    with pytest.raises(RunError) as caught:
        call(*arguments)
    return str(caught.value)


def test_sizes_follow_the_tensors(function: CompiledFunction) -> None:
    for n in (1, 2, 9):
        given = arrays(n)
        function(*given, n, 3)
        assert (given[-1] == 3).all()
    given = arrays()
    bound = function.bind(*given, 7, 3)
    bound()
    assert (given[-1] == 3).all()


def test_shapes_are_checked_against_the_sizes(function: CompiledFunction) -> None:
    x, b, z, y = arrays()
    eight = np.ones((8, 64), "float32")
    assert refusal(function, eight, b, z, y, 7, 3) == "f: argument 0 (x): expected float32[n, 64] with n = 7, got shape [8, 64]"
    assert refusal(function, x, b[:5], z, y, 7, 3) == "f: argument 1 (b): expected float32[64], got shape [5]"
    assert refusal(function, x, b, z, y, 7, 4) == "f: argument 2 (z): expected float32[m + n] with n = 7, m = 4, got shape [10]"
    assert refusal(function, x, b, z, eight, 7, 3) == "f: argument 3 (y): expected float32[n, 64] with n = 7, got shape [8, 64]"
    assert refusal(function, x[0], b, z, y, 7, 3).endswith("with n = 7, got shape [64]")
    assert refusal(function, x.astype("float64"), b, z, y, 7, 3).endswith("expected float32[n, 64] with n = 7, got dtype float64")
    assert "with n = 7, got strides [1, 7] (in elements)" in refusal(function, np.ones((64, 7), "float32").T, b, z, y, 7, 3)
    assert "with n = 7, got memory that it shares with argument 0 (x)" in refusal(function, x, b, z, x, 7, 3)
    assert "with n = 7, got a value of type int: pass a tensor" in refusal(function, 3, b, z, y, 7, 3)


def test_the_kernel_does_not_run_on_errors(function: CompiledFunction) -> None:
    x, b, z, y = arrays()
    refusal(function, x, b, z, y, 7, 4)
    assert not y.any()


@pytest.mark.parametrize(("size", "shown"), [(-1, "-1"), (2**31, "2147483648"), (-(2**63), "-9223372036854775808")])
def test_sizes_out_of_range(function: CompiledFunction, size: int, shown: str) -> None:
    assert refusal(function, *arrays(), size, 3) == f"f: argument 4 (n): expected an int from 0 to 2147483647, got {shown}"
    assert refusal(function, *arrays(), 7, size) == f"f: argument 5 (m): expected an int from 0 to 2147483647, got {shown}"


@pytest.mark.parametrize(("value", "kind"), [(7.0, "float"), (True, "bool"), (None, "None"), ("7", "ffi.SmallStr")])
def test_sizes_must_be_ints(function: CompiledFunction, value: object, kind: str) -> None:
    expected = f"f: argument 4 (n): expected an int from 0 to 2147483647, got a value of type {kind}: pass the size as an int"
    assert refusal(function, *arrays(), value, 3) == expected
    assert "argument 5 (m): expected an int" in refusal(function, *arrays(), 7, arrays()[0])


def test_number_of_arguments(function: CompiledFunction) -> None:
    usage = "f(x: float32[n, 64], b: float32[64], z: float32[m + n], y: float32[n, 64], n: int, m: int)"
    assert refusal(function, *arrays()) == f"f: expected 6 argument(s), got 4; signature: {usage}"
    assert "expected 6 argument(s), got 7" in refusal(function, *arrays(), 7, 3, 1)
    assert "expected 6 argument(s), got 0" in refusal(function)


# ---- extents that are expressions


def filled(extent: Poly, *sizes: Poly) -> PrimFunc:
    """y[extent] = 1."""
    i, vi, y = Var("i"), Var("vi"), Buffer("y", (extent,))
    block = Block("y", (Iter(vi, extent, "S"),), (poly(i),), (), None, store(y, (vi,), const(1, "float32")))
    return PrimFunc("f", (y, *[v for s in sizes if (v := s.as_var()) is not None]), (), nest([(i, extent)], block))


N, M = poly(Var("n")), poly(Var("m"))


def _text(x: object) -> str:
    """The name of a case; empty for functions, whose text contains an address."""
    return repr(x) if isinstance(x, Poly) else ""


@pytest.mark.parametrize(
    ("extent", "value"),
    [
        (floordiv(N + M, 3), lambda n, m: (n + m) // 3),
        (ceildiv(N * 2, M), lambda n, m: -(-2 * n // m)),
        (mod(N * M, 7) + 1, lambda n, m: n * m % 7 + 1),
        (minimum(N, M * 2) + maximum(N, 5), lambda n, m: min(n, 2 * m) + max(n, 5)),
        (N * N - N * M + 99, lambda n, m: n * n - n * m + 99),
        (maximum(N - M, 0), lambda n, m: max(n - m, 0)),
        (floordiv(N - M, 4) + 9, lambda n, m: (n - m) // 4 + 9),
        (mod(N - M, M + 1) + 1, lambda n, m: (n - m) % (m + 1) + 1),
    ],
    ids=_text,
)
def test_extents_are_computed(extent: Poly, value: object) -> None:
    call = compiled(filled(extent, N, M))
    for n, m in ((1, 1), (5, 2), (2, 5), (13, 7), (8, 9)):
        size = value(n, m)  # type: ignore[operator]
        y = np.zeros(size, "float32")
        call(y, n, m)
        assert (y == 1).all()
        assert f"with n = {n}, m = {m}, got shape [{size + 1}]" in refusal(call, np.zeros(size + 1, "float32"), n, m)


@pytest.mark.parametrize("extent", [N * N * N, N * N * M * 4, N * N * (N + M)], ids=repr)
def test_extents_that_overflow_are_refused(extent: Poly) -> None:
    call = compiled(filled(extent, N, M))
    message = refusal(call, np.zeros(0, "float32"), 2**22, 2**20)
    assert message == "f: with n = 4194304, m = 1048576: too large, a tensor of these sizes has more bytes than there are addresses"


@pytest.mark.parametrize(("n", "m", "extent"), [(1, 2, 5), (1, 1, 1), (3, 3, 7)])
def test_an_extent_divided_by_zero_is_zero(n: int, m: int, extent: int) -> None:
    call = compiled(filled(floordiv(N * 4, M - 1) + 1, N, M))
    y = np.zeros(extent, "float32")
    call(y, n, m)
    assert (y == 1).all()
    assert f"with n = {n}, m = {m}, got shape [99]" in refusal(call, np.zeros(99, "float32"), n, m)


# ---- intermediate memory


def squares(scope: str, parallel: bool) -> PrimFunc:
    """y[i] = sum over j of t[j], with t[j] = x[i, j] * x[i, j] stored in a buffer inside the loop over i."""
    n, m = Var("n"), Var("m")
    x, y, t = Buffer("x", (n, m)), Buffer("y", (n,)), Buffer("t", (n, m), scope=scope)
    i, j, k = Var("i"), Var("j"), Var("k")
    a, b, c, d = Var("a"), Var("b"), Var("c"), Var("d")
    first = Block("t", (Iter(a, poly(n), "S"), Iter(b, poly(m), "S")), (poly(i), poly(j)), (), None, store(t, (a, b), x[a, b] * x[a, b]))
    init = store(y, (c,), const(0, "float32"))
    second = Block("y", (Iter(c, poly(n), "S"), Iter(d, poly(m), "R")), (poly(i), poly(k)), (), init, store(y, (c,), y[c] + t[c, d]))
    body = seq([nest([(j, m)], first), nest([(k, m)], second)])
    return PrimFunc("f", (x, y, n, m), (t,), For(i, poly(n), body, "parallel" if parallel else "serial"))


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("scope", ["global", "workspace"])
def test_memory_inside_loops(scope: str, parallel: bool) -> None:
    call = compiled(squares(scope, parallel))
    for n, m in ((1, 1), (3, 5), (17, 33), (40, 2000), (2, 70000)):
        x = np.random.default_rng(n).integers(-3, 4, (n, m)).astype("float32")
        y = np.zeros(n, "float32")
        call(x, y, n, m)
        np.testing.assert_array_equal(y, (x * x).sum(1))


def test_registers_have_constant_sizes() -> None:
    with pytest.raises(BuildError, match="f: the buffer t of scope register has 1 x m elements, but registers need constant extents"):
        build(squares("register", False), TARGET)


def test_memory_is_freed() -> None:
    n = te.var("n")
    x, w = te.placeholder((n, 16), name="x"), te.placeholder((16, 512), name="w")
    call = compiled(te.create_prim_func([x, w, softmax(matmul(x, w))], "f"))
    given = [np.ones((512, 16), "float32"), np.ones((16, 512), "float32"), np.zeros((512, 512), "float32")]

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    call(*given, 512)
    gc.collect()
    before = resident()
    for _ in range(50):
        call(*given, 512)
    assert resident() - before < 10000, "pages; each call allocates 2 MB"


def test_failed_allocations() -> None:
    """Only the intermediate result is large: 2**60 bytes and more, or a size that does not fit into 64 bits."""
    n, m, k = Var("n"), Var("m"), Var("k")
    y, t = Buffer("y", (4,)), Buffer("t", (n, m, k))
    i, a = Var("i"), Var("a")
    j, b = Var("j"), Var("b")

    def at(*indices: Index) -> tuple[Poly, ...]:
        return tuple(map(poly, indices))

    # Both ends of each dimension are used, so that the buffer is not compacted.
    first = store(t, at(0, 0, 0), const(1, "float32"))
    last = store(t, (poly(n) - 1, poly(m) - 1, poly(k) - 1), const(2, "float32"))
    total = t[0, 0, 0] + t[poly(n) - 1, poly(m) - 1, poly(k) - 1]
    write = Block("w", (Iter(a, ONE, "S"),), at(i), (), None, seq([first, last]))
    read = Block("r", (Iter(b, poly(4), "S"),), at(j), (), None, store(y, at(b), total))
    body: Stmt = seq([nest([(i, 1)], write), nest([(j, 4)], read)])
    call = compiled(PrimFunc("f", (y, n, m, k), (t,), body))
    out = np.zeros(4, "float32")
    call(out, 2, 3, 4)
    assert (out == 3).all()
    out[:] = 0
    message = refusal(call, out, 2**30, 2**28, 1)
    assert message.startswith("f: with n = 1073741824, m = 268435456, k = 1: out of memory, 1152921504606")
    assert message.endswith(" bytes for intermediate results were refused")
    for sizes in ((2**31 - 1, 2**31 - 1, 1), (2**31 - 1, 2**31 - 1, 2**31 - 1), (2**30, 2**30, 4)):
        assert "out of memory, 9223372036854775807 bytes" in refusal(call, out, *sizes)
    assert not out.any()
    call(out, 5, 1, 1)
    assert (out > 0).all()


def test_concurrent_calls(in_threads: Callable[..., None]) -> None:
    n = te.var("n")
    x = te.placeholder((n, 33), name="x")
    call = compiled(te.create_prim_func([x, softmax(x)], "f"))
    wrong: list[float] = []

    def work(rows: int) -> None:
        data = np.random.default_rng(rows).random((rows, 33)).astype("float32")
        e = np.exp(data - data.max(1, keepdims=True))
        for _ in range(20):
            out = np.zeros_like(data)
            call(data, out, rows)
            wrong.append(float(np.abs(out - e / e.sum(1, keepdims=True)).max()))

    in_threads(work, (3, 50, 200))
    assert len(wrong) == 60 and max(wrong) < 1e-5


# ---- building


def test_libraries_include_the_checks(tmp_path: Path) -> None:
    path = export_library(tmp_path / "f.so", [build(scaled(), TARGET).data])
    call = load_module(path)["f"]
    given = arrays(2)
    call(*given, 2, 3)
    assert (given[-1] == 3).all()
    assert "with n = 3, got shape [2, 64]" in refusal(call, *given, 3, 3)
    assert not hasattr(ctypes.CDLL(None), "tunesmith_check_sizes_v2")


def test_constant_shapes_are_checked() -> None:
    text, _ = emit_text(filled(poly(8)), TARGET)
    assert "tunesmith_check_v1" in text and "sizes" not in text and "define void @f_kernel(ptr noalias %a0)" in text
    text, _ = emit_text([filled(poly(8)), filled(N, N).with_(name="g"), filled(N * 3, N).with_(name="h")], TARGET)
    assert text.count("declare i32 @tunesmith_check_sizes_v2") == 1 and text.count("declare i32 @tunesmith_check_v1") == 1
    assert "define i64 @g_kernel(ptr noalias %a0, i64 %z0)" in text


@pytest.mark.parametrize("order", [1, -1])
def test_constant_and_dynamic_shapes_share_a_module(order: int) -> None:
    """Both entries report a kernel that refused to run: a parallel one with constant shapes, and one with dynamic shapes."""
    fixed = parse(
        """
@T.prim_func
def doubled(x: T.Buffer((4096,), "float32"), y: T.Buffer((4096,), "float32")):
    for i in T.parallel(4096):
        with T.block("y"):
            v = T.axis.spatial(4096, i)
            y[v] = x[v] * T.float32(2.0)
"""
    )
    module = build([fixed, scaled()][::order], TARGET)
    loaded = Module.from_object(module.data) if not isinstance(module, Module) else module
    x, y = np.arange(4096, dtype="float32"), np.zeros(4096, "float32")
    loaded["doubled"](x, y)
    np.testing.assert_array_equal(y, 2 * x)
    given = arrays(2)
    loaded["f"](*given, 2, 3)
    assert (given[-1] == 3).all()


def test_functions_that_cannot_be_built() -> None:
    p = Param("p", [4, 8])
    with pytest.raises(BuildError, match="f: parameter y: .* has no constant shape; bind symbolic sizes"):
        build(filled(poly(p)), TARGET)
    with pytest.raises(BuildError, match="f: parameter y: .* has no constant shape; n is not a parameter: add it after the buffers"):
        build(filled(N * M, M), TARGET)
    first = filled(N, N)
    with pytest.raises(BuildError, match="f: parameter n has no constant shape and precedes a buffer"):
        build(first.with_(params=first.params[::-1]), TARGET)
    with pytest.raises(BuildError, match="f: parameter y: .* has no constant shape"):
        param_specs(first)
    many = [poly(Var(f"n{i}")) for i in range(65)]
    with pytest.raises(BuildError, match="f: a function has at most 64 sizes, got 65"):
        build(filled(many[0], *many), TARGET)
