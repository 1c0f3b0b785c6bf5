"""Values computed by device code for every type: OpenCL results equal the interpreter, and CUDA code compiles."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.c.dialect import CUDA, OPENCL
from tunesmith.codegen.device.build import build, emit_source
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import ARITHMETIC, COMPARISONS, Binary, Call, Cast, Const, Expr, Not, Select, const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.intrinsics import INTRINSICS
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import For, Stmt, seq, store
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.device import opencl
from tunesmith.runtime.device.module import DeviceModule
from tunesmith.runtime.device.opencl import OPENCL as DRIVER
from tunesmith.runtime.device.program import DeviceProgram
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError

pytestmark = pytest.mark.skipif(DRIVER.count() == 0, reason="no OpenCL runtime here: pip install 'tunesmith[opencl]'")
TARGET = Target("opencl")
DTYPES = dt.SCALARS
NUMBERS = tuple([d for d in DTYPES if d != "bool"])
FLOATS = ("float16", "bfloat16", "float32", "float64")
THREADS = 4
Make = Callable[..., Expr]


def program(dtypes: Sequence[str], outputs: Sequence[tuple[str, Make]], n: int, lanes: int) -> PrimFunc:
    """One kernel that stores each output, (dtype, function of the loads), with `lanes` lanes per thread."""
    inputs = [Buffer(f"A{k}", (n,), d) for k, d in enumerate(dtypes)]
    outs = [Buffer(f"O{k}", (n,), d) for k, (d, _) in enumerate(outputs)]
    b, t = Var("b"), Var("t")
    stores: list[Stmt] = []
    for out, (_, make) in zip(outs, outputs, strict=True):
        lane = Var("lane")
        at = (poly(b) * THREADS + t) * lanes + lane
        stores.append(For(lane, poly(lanes), store(out, (at,), make(*[x[at] for x in inputs])), "vectorized"))
    body = For(b, poly(n // lanes // THREADS), For(t, poly(THREADS), seq(stores), "thread", "threadIdx.x"), "thread", "blockIdx.x")
    return PrimFunc("values", (*inputs, *outs), (), body)


def bfloat(x: Any) -> np.ndarray:
    """Truncate to bfloat16, stored as float32."""
    return (np.asarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def held(x: Any, dtype: str) -> np.ndarray:
    return bfloat(x) if dtype == "bfloat16" else np.asarray(x).astype(dt.to_numpy(dtype))


def on_device(func: PrimFunc, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The buffers after a call; bfloat16 in the interpreter's representation."""
    module = DeviceModule(DeviceProgram.from_bytes(build(func, TARGET).data))
    memory = []
    for b, x in zip(func.params, arrays, strict=True):
        assert isinstance(b, Buffer)
        bits = (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16) if b.dtype == "bfloat16" else x
        memory.append(DeviceArray.from_numpy(opencl(), bits, b.dtype))
    module[func.name](*memory)
    found = [m.numpy() for m in memory]
    return [
        (x.astype(np.uint32) << np.uint32(16)).view(np.float32) if m.dtype == "bfloat16" else x for m, x in zip(memory, found, strict=True)
    ]


def compiles(func: PrimFunc) -> None:
    """Compile the CUDA code, if the compiler is installed."""
    if importlib.util.find_spec("cuda") is None:
        return
    from tunesmith.codegen.cuda.nvrtc import compile_cuda

    for arch in ("sm_80", "sm_90"):
        source, _ = emit_source(func, Target(f"cuda -arch={arch}"))
        compile_cuda(source, arch)


def compare(
    dtypes: Sequence[str], outputs: Sequence[tuple[str, Make]], arrays: Sequence[Any], lanes: int = 4, ulps: float = 0, cuda: bool = True
) -> None:
    """Check that device and interpreter agree in all outputs."""
    n = len(arrays[0]) // (THREADS * lanes) * THREADS * lanes
    assert n
    func = program(dtypes, outputs, n, lanes)
    verify(func)
    given = [held(np.asarray(x)[:n], d) for x, d in zip(arrays, dtypes, strict=True)]
    given += [np.zeros(n, dt.to_numpy(d)) for d, _ in outputs]
    wanted = run_threads(func, [x.copy() for x in given])
    got = on_device(func, given)
    for k, (d, _) in enumerate(outputs, len(dtypes)):
        a, b = got[k], wanted[k]
        same = (a == b) | ((a != a) & (b != b))
        if ulps and dt.is_float(d):
            with np.errstate(invalid="ignore"):
                step = np.spacing(np.abs(b)).astype(np.float64) * (65536 if d == "bfloat16" else 1)
                same |= np.abs(a.astype(np.float64) - b.astype(np.float64)) <= ulps * step
        bad = np.flatnonzero(~same)[:3]
        assert not bad.size, (
            f"output {k - len(dtypes)} of {d}: {[[x[i] for x in given[: len(dtypes)]] for i in bad]}: {a[bad]} not {b[bad]}"
        )
    if cuda:
        compiles(func)


SIGNED = np.array([-128, -127, -100, -7, -3, -2, -1, 0, 1, 2, 3, 5, 7, 100, 126, 127])
UNSIGNED = np.array([0, 1, 2, 3, 5, 7, 8, 9, 11, 100, 126, 127, 128, 200, 254, 255])
REALS = np.array([0.0, -0.0, 1, -1, 0.5, -2.5, 3.7, -7.25, 100, 1e-3, -1e-3, 1000.5, 65504, np.inf, -np.inf, np.nan])


def samples(dtype: str) -> np.ndarray:
    return UNSIGNED if dt.is_unsigned(dtype) else SIGNED if dt.is_int(dtype) else np.arange(16) % 2 if dtype == "bool" else REALS


def pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of sample values."""
    both = np.array(list(itertools.product(samples(dtype), repeat=2)))
    return both[:, 0], both[:, 1]


def operations(dtype: str) -> list[str]:
    integers = ("bitand", "bitor", "bitxor", "shl", "shr", "floordiv", "mod")
    return [op for op in ARITHMETIC if op != "pow" and (op != "div" if dt.is_int(dtype) else op not in integers)]


def total(op: str, dtype: str) -> Make:
    """The operation where it is defined, else its first operand: shift counts stay below 8."""

    def make(a: Expr, b: Expr) -> Expr:
        def test(how: str, x: Expr, value: int) -> Expr:
            return Binary(how, x, const(value, dtype))

        if op in ("shl", "shr"):
            return Select(Binary("and", test("ge", b, 0), test("lt", b, 8)), Binary(op, a, b), a)
        return Binary(op, a, b)

    return make


@pytest.mark.parametrize("dtype", NUMBERS)
def test_operations(dtype: str) -> None:
    """Arithmetic wraps, division rounds down, min and max propagate NaN; comparisons and selects."""
    outputs = [(dtype, total(op, dtype)) for op in operations(dtype)]
    outputs += [("bool", lambda a, b, op=op: Binary(op, a, b)) for op in COMPARISONS]
    outputs.append((dtype, lambda a, b: Select(Binary("lt", a, b), Binary("add", a, const(1, dtype)), b)))
    outputs.append((dtype, lambda a, b: Call("abs", (Binary("sub", a, const(1, dtype)),), dtype)))
    compare((dtype, dtype), outputs, pairs(dtype))


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16", "int8"])
def test_operations_of_single_elements(dtype: str) -> None:
    outputs = [(dtype, total(op, dtype)) for op in operations(dtype)]
    compare((dtype, dtype), outputs, pairs(dtype), lanes=1, cuda=False)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers(dtype: str) -> None:
    x, y = np.abs(REALS[2:13]), np.array([0, 1, 2, 0.5, -1, 3, -0.5, 2.5])
    both = np.array(list(itertools.product(x, y)))
    compare((dtype, dtype), [(dtype, lambda a, b: Binary("pow", a, b))], (both[:80, 0], both[:80, 1]), ulps=16 if dtype == "float32" else 4)


def test_floored_division_of_floats() -> None:
    x, y = np.array([1.0, -1.0, 0.5, 7, -7, 1, 0, 3] * 2), np.array([0.001, np.inf, -np.inf, 2, 2, 0.1, np.inf, -2] * 2)
    outputs = [("float64", lambda a, b, op=op: Binary(op, a, b)) for op in ("floordiv", "mod")]
    compare(("float64", "float64"), outputs, (x, y))


@pytest.mark.parametrize("dtype", FLOATS)
def test_floored_division_of_ordinary_floats(dtype: str) -> None:
    x, y = np.array([7, -7, 7, -7, 6, -6, 0, 5.5] * 2), np.array([2, 2, -2, -2, 3, 3, 2, 0.5] * 2)
    compare((dtype, dtype), [(dtype, lambda a, b, op=op: Binary(op, a, b)) for op in ("floordiv", "mod")], (x, y))


def test_boolean_operations() -> None:
    outputs: list[tuple[str, Make]] = [("bool", lambda a, b, op=op: Binary(op, a, b)) for op in ("and", "or", *COMPARISONS)]
    outputs += [("bool", lambda a, b: Not(a)), ("bool", lambda a, b: Select(a, Not(b), b)), ("float32", lambda a, b: Cast("float32", a))]
    x = np.arange(16)
    compare(("bool", "bool"), outputs, (x % 2, x // 2 % 2))
    compare(("bool", "bool"), outputs, (x % 2, x // 2 % 2), lanes=1, cuda=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_casts(dtype: str) -> None:
    """To every type, for values in its range; floats are truncated."""
    small = np.array([0, 1, 2, 3, 5, 7, 100, 126, 17, 33, 64, 99, 4, 8, 9, 127])
    signed = small * np.where(np.arange(16) % 2, -1, 1)
    reals = np.array([0, -1.5, 2.7, -3.999, 0.5, 1e-3, 100.25, -126.75, 1, -17.5, 33, 64, -99, 2.5, 3.5, -0.25])

    def of(unsigned: bool) -> np.ndarray:
        if dtype == "bool":
            return small % 2
        if dt.is_float(dtype):
            return np.abs(reals) if unsigned else reals
        return small if unsigned or dt.is_unsigned(dtype) else signed

    for unsigned in (False, True):
        to = [d for d in DTYPES if dt.is_unsigned(d) == unsigned]
        compare((dtype,), [(d, lambda a, d=d: Cast(d, a)) for d in to], (of(unsigned),))


def test_casts_round_to_even_and_overflow() -> None:
    x = np.array([2049, 2051, 65519, 65520, -65520, 1e-8, 6e-8, 5.9e-8, 257, 259, 3.39e38, np.inf, np.nan, -0.0, 1 / 3, 2**-24 * 1.5])
    compare(("float32",), [("float16", lambda a: Cast("float16", a)), ("bfloat16", lambda a: Cast("bfloat16", a))], (x,))


def test_doubles_are_rounded_to_halves_once() -> None:
    compare(("float64",), [("float16", lambda a: Cast("float16", a))], (np.full(16, 1 + 2**-11 + 2**-40),))


FLT_MAX = float(np.finfo(np.float32).max)
LITERALS: dict[str, tuple[Any, ...]] = {
    "float32": (FLT_MAX, -FLT_MAX, 1e39, 1e-45, 0.1, np.inf, -np.inf, np.nan, -0.0, 16777217.0, 1e10, -2.5),
    "float64": (1.7e308, 5e-324, 0.1, np.inf, -np.inf, np.nan, -0.0, 1e100, -2.5),
    "float16": (0.1, 1 / 3, 65504.0, 1e5, -1e5, 1e-8, 6e-8, np.nan),
    "bfloat16": (0.1, 1 / 3, 65504.0, 3.39e38, 1e39, -1e-8, np.nan),
    "int8": (-128, 127, -1),
    "uint8": (255, 128),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (2**16 - 1,),
    "int32": (-(2**31), 2**31 - 1, -1),
    "uint32": (2**32 - 1, 2**31, 7),
    "int64": (-(2**63), 2**63 - 1, 2**31, -1),
    "uint64": (2**64 - 1, 2**63),
    "bool": (True, False),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_literals(dtype: str) -> None:
    """Literals rounded to their type, with a load that keeps the select in the kernel; unsigned ones wrap."""
    one = const(1, dtype)
    outputs: list[tuple[str, Make]] = [(dtype, lambda a, v=v: Select(Binary("eq", a, one), const(v, dtype), a)) for v in LITERALS[dtype]]
    if dt.is_float(dtype):
        outputs += [("float64", lambda a, v=v: Cast("float64", Select(Binary("eq", a, one), const(v, dtype), a))) for v in LITERALS[dtype]]
    if dt.is_unsigned(dtype):
        outputs += [("bool", lambda a, v=v: Binary("lt", Binary("add", a, const(v, dtype)), const(50, dtype))) for v in LITERALS[dtype]]
    compare((dtype,), outputs, (np.arange(16) % 2,))


def test_spelling_of_literals() -> None:
    for dialect, text in ((CUDA, "__int_as_float(2139095040)"), (OPENCL, "as_float(2139095040)")):
        assert dialect.number(float("inf"), "float32") == text
        assert [dialect.number(x, "float32") for x in (0.1, 1.0, -2.5, 1e10, FLT_MAX)] == [
            "0.1f",
            "1.0f",
            "(-2.5f)",
            "1e+10f",
            "3.4028235e+38f",
        ]
        assert [dialect.number(x, "float64") for x in (0.1, 1.0)] == ["0.1", "1.0"]
        assert [dialect.number(x, "int32") for x in (5, -5, -(2**31))] == ["5", "(-5)", "(-2147483647 - 1)"]
        assert [dialect.number(x, "bool") for x in (True, False)] == ["1", "0"]
    assert [CUDA.number(5, "int64"), OPENCL.number(5, "int64"), OPENCL.number(5, "uint64")] == ["(5LL)", "(5L)", "(5UL)"]


# ---- intrinsics

ULPS = {"exp": 3, "exp2": 3, "log": 3, "log2": 3, "tanh": 5, "erf": 16, "sin": 4, "cos": 4, "rsqrt": 2, "sigmoid": 4}
"""Error bounds of OpenCL for float32 functions (its specification, section 7.4); sigmoid is made of two.  Others are exact."""
PLAIN = [n for n, i in INTRINSICS.items() if not (i.effect or i.reduces or i.shuffle) and n != "reinterpret"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_intrinsics(dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=112) * 3, REALS[:4], [0.5, 2.5, 3.5, -2.5, np.inf, -np.inf, np.nan, 88.0, -88.0, 1e-10, 20, -20]])
    y, z = x[::-1].copy(), np.roll(x, 5)
    for names, bound in ((sorted(ULPS), 16), ([n for n in PLAIN if n not in ULPS and INTRINSICS[n].arity == 1], 0)):
        outputs: list[tuple[str, Make]] = []
        for n in names:
            out = "bool" if n == "isnan" else dtype

            def make(a: Expr, n: str = n, out: str = out) -> Expr:
                positive = n in ("log", "log2", "sqrt", "rsqrt")
                return Call(n, (Call("abs", (a,), dtype) if positive else a,), out)

            outputs.append((out, make))
        compare((dtype,), outputs, (x,), ulps=max([ULPS.get(n, 0) for n in names]) if bound else 0)
    others: list[tuple[str, Make]] = [
        (dtype, lambda a, b, c: Call("copysign", (a, b), dtype)),
        (dtype, lambda a, b, c: Call("fma", (a, b, c), dtype)),
    ]
    compare((dtype,) * 3, others, (x, y, z))
    powers = np.clip(np.nan_to_num(np.rint(y)), -20, 20)
    compare((dtype, dtype), [(dtype, lambda a, b: Call("ldexp", (a, b), dtype))], (x, powers))


@pytest.mark.parametrize("name", sorted(ULPS))
def test_functions_meet_their_error_bounds(name: str) -> None:
    """Each float32 function separately."""
    x = np.abs(np.random.default_rng(1).normal(size=128)) * 3 + 1e-3
    compare(("float32",), [("float32", lambda a: Call(name, (a,), "float32"))], (x,), ulps=ULPS[name], cuda=False)


@pytest.mark.parametrize(("name", "args"), [("reinterpret", 1), ("shuffle_xor_1", 1)])
def test_intrinsics_not_available_in_device_code(name: str, args: int) -> None:
    func = program(("float32",), [("float32", lambda a: Call(name, (a,), "float32"))], 16, 1)
    with pytest.raises(BuildError) as caught:
        emit_source(func, TARGET)
    message = "the intrinsic reinterpret is not available in device code" if name == "reinterpret" else "opencl has no warp shuffles"
    assert message in str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int8", "float16"])
@pytest.mark.parametrize("op", ["add", "max", "min"])
def test_horizontal_reductions(dtype: str, op: str) -> None:
    """All lanes are folded into one element with the accumulator."""
    a, c, t, k = Buffer("A", (4, 8), dtype), Buffer("C", (4,), dtype), Var("t"), Var("k")
    into = BufferLoad(c, (poly(t),))
    fold = For(k, poly(8), store(c, (t,), Binary(op, into, a[t, k])), "vectorized")
    func = PrimFunc(
        "fold",
        (a, c),
        (),
        For(t, poly(4), seq([store(c, (t,), Const(1.0 if dt.is_float(dtype) else 1, dtype)), fold]), "thread", "threadIdx.x"),
    )
    x = (np.arange(32).reshape(4, 8) % 7 - 3).astype(dt.to_numpy(dtype))
    want = {"add": x.sum(1) + 1, "max": np.maximum(x.max(1), 1), "min": np.minimum(x.min(1), 1)}[op]
    np.testing.assert_array_equal(on_device(func, [x, np.zeros(4, x.dtype)])[1], want.astype(x.dtype))
    compiles(func)


@pytest.mark.parametrize(
    "value",
    [
        "T.lookup(I[i], 12, lambda q: X[q, j])",
        "T.lookup(I[i], 12, lambda q: X[q, j] / X[i, q])",
        "T.select(j < 5, T.lookup(I[i], 12, lambda q: X[q, j]), T.float32(0.0))",
        "T.select(j < 5 - i, T.lookup(I[i], 12, lambda q: X[q, 2]), X[i, j])",
        "T.lookup(I[i], 12, lambda q: T.select(j < i, X[q, j], X[q, j + 4]))",
    ],
)
def test_indirect_indices_in_vectors(value: str) -> None:
    """The loaded index is the same for all lanes."""
    text = f"""
@T.prim_func
def f(I: T.Buffer((4,), "int64"), X: T.Buffer((12, 12), "float32"), C: T.Buffer((4, 8), "float32")):
    for i in T.thread_binding(4, thread="threadIdx.x"):
        for j in T.KIND(8):
            C[i, j] = {value}
"""
    vectors, scalars = (parse(text.replace("KIND", k)) for k in ("vectorized", "serial"))
    assert isinstance(vectors, PrimFunc) and isinstance(scalars, PrimFunc)
    arrays = [np.array([3, 11, 0, 7]), np.arange(1, 145, dtype=np.float32).reshape(12, 12), np.zeros((4, 8), np.float32)]
    (want,) = run_threads(scalars, [x.copy() for x in arrays])[-1:]
    np.testing.assert_array_equal(on_device(vectors, arrays)[-1], want)
    build(vectors, Target("cuda -arch=sm_90"))
