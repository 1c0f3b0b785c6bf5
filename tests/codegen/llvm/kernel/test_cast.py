"""bfloat16 in compiled code: every cast and every operation equals the interpreter bit for bit, on every CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build, emit_text
from tunesmith.codegen.llvm.text import literal
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Binary, Call, Cast, Const, Expr, Select, const, maximum, minimum
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import Block, Iter, Stmt, nest, seq, store
from tunesmith.ir.target.target import Target
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule
from tunesmith.support import dtype as dt
from tunesmith.support.seeds import stream

BF16 = "bfloat16"
TARGETS = ("llvm -mcpu=x86-64-v3 -num-cores=1", "llvm -num-cores=1")
"""Without bfloat16 instructions, and with those of this machine."""
LANES = 8


def bits_of(x: Expr) -> Expr:
    return Call("reinterpret", (x,), f"uint{dt.bits(x.dtype)}") if dt.is_float(x.dtype) else x


def floats_of(x: Expr, dtype: str) -> Expr:
    return Call("reinterpret", (x,), dtype) if dt.is_float(dtype) else x


def elementwise(dtype: str, value: Callable[[Expr], Expr], count: int, vector: bool) -> PrimFunc:
    """C = value(A) on the bits of floats, because a caller has no arrays of bfloat16.  A NaN gives the number 0xFFFF."""
    held = f"uint{dt.bits(dtype)}" if dt.is_float(dtype) else dtype
    a, v, i = Buffer("A", (count,), held), Var("v"), Var("i")
    out = value(floats_of(a[v], dtype))
    shown = Select(Call("isnan", (out,), "bool"), const(0xFFFF, bits_of(out).dtype), bits_of(out)) if dt.is_float(out.dtype) else out
    c = Buffer("C", (count,), shown.dtype)
    func = PrimFunc(
        "f", (a, c), (), nest([(i, count)], Block("C", (Iter(v, poly(count), "S"),), (poly(i),), (), None, store(c, (v,), shown)))
    )
    s = Schedule(func)
    if vector:
        s.vectorize(s.split(s.get_loops(s.get_block("C"))[0], [None, LANES])[1])
    return s.func


def check(func: PrimFunc, data: np.ndarray, target: str) -> np.ndarray:
    """The result of the compiled function, after a comparison with the interpreter."""
    c = func.params[1]
    assert isinstance(c, Buffer)
    out = np.zeros([e.as_int() for e in c.shape], c.dtype)
    wanted = run(func, [data, out])[1]
    Module.from_object(build(func, Target(target)).data)["f"](data, out)
    np.testing.assert_array_equal(out, wanted)
    return out


def single_bits() -> np.ndarray:
    """float32: every exponent with both signs; halfway between two bfloat16, just below and above, after an even and an odd one."""
    upper = (np.arange(0, 65536, 128, dtype=np.uint32)[:, None] + np.array([0, 1, 127], np.uint32)).reshape(-1) << 16
    return (upper[:, None] | np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)).reshape(-1)


def samples(dtype: str) -> np.ndarray:
    """Numbers of every exponent, ties, infinities, NaN, denormals and overflows, padded to whole vectors."""
    if dtype == "float32":
        return single_bits()
    if dtype == "float64":
        with np.errstate(all="ignore"):
            near = single_bits().view(np.float32).astype(np.float64)
            return np.concatenate([near * (1 + e) for e in (0, 2.0**-40, -(2.0**-40))] + [near * 2.0**300]).view(np.uint64)
    if dt.bits(dtype) == 16:
        special = [s | n for s in (0, 0x8000) for n in (0, 1, 0x3C00, 0x7BFF, 0x7C00, 0x7F7F, 0x7F80, 0x7FFF)]
        every = np.concatenate([np.arange(0, 65520, 13), special]).astype(np.uint16)
        return every.view(np.int16 if dtype == "int16" else np.uint16)
    kind = np.iinfo(dtype)
    wide = stream(0, "bfloat16", dtype).integers(kind.min, kind.max, 4096, dtype, endpoint=True)
    return np.concatenate([wide, wide >> (kind.bits // 2), np.arange(64).astype(dtype), np.array([kind.min, kind.max] * LANES, dtype)])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
def test_rounding_to_bfloat16(dtype: str, vector: bool, target: str) -> None:
    data = samples(dtype)
    check(elementwise(dtype, lambda x: Cast(BF16, x), len(data), vector), data, target)


@pytest.mark.parametrize(
    ("bits", "wanted"),
    [
        (0x3F808000, 0x3F80),  # a tie, to the even neighbour below
        (0x3F818000, 0x3F82),  # a tie, to the even neighbour above
        (0x3F808001, 0x3F81),
        (0x7F7FFFFF, 0x7F80),  # the largest float32 rounds to infinity
        (0xFF800000, 0xFF80),
        (0x7F800001, 0x7FC0),  # a NaN whose upper half is that of infinity
        (0xFFFFFFFF, 0x7FC0),  # a NaN that would overflow by adding half a unit
        (0x00000001, 0x0000),
        (0x00018000, 0x0002),  # denormals are not flushed
        (0x80000000, 0x8000),
    ],
)
def test_bits_of_rounded_numbers(bits: int, wanted: int) -> None:
    a, c, i = Buffer("A", (LANES,), "uint32"), Buffer("C", (LANES,), "uint16"), Var("i")
    func = PrimFunc("f", (a, c), (), nest([(i, LANES)], store(c, (i,), bits_of(Cast(BF16, floats_of(a[i], "float32"))))))
    for target in TARGETS:
        assert (check(func, np.full(LANES, bits, np.uint32), target) == wanted).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bool"])
def test_casts_from_bfloat16(dtype: str, vector: bool, target: str) -> None:
    def value(x: Expr) -> Expr:
        return Cast("uint8", Cast("bool", x)) if dtype == "bool" else Cast(dtype, x)

    data = samples(BF16)
    check(elementwise(BF16, value, len(data), vector), data, target)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_integers_from_bfloat16(dtype: str) -> None:
    low = 0 if dt.is_unsigned(dtype) else -100
    data = (np.linspace(low, 100, 512).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    check(elementwise(BF16, lambda x: Cast(dtype, x), 512, True), data, TARGETS[0])


ONE, HALF = const(1.0, BF16), const(0.3, BF16)
OPERATIONS: dict[str, Callable[[Expr], Expr]] = {
    "add": lambda x: x + ONE,
    "sub": lambda x: HALF - x,
    "mul": lambda x: x * x,
    "div": lambda x: HALF / x,
    "min": lambda x: minimum(x, ONE),
    "max": lambda x: maximum(ONE, x),
    "lt": lambda x: Cast("uint8", Binary("lt", x, ONE)),
    "ne": lambda x: Cast("uint8", Binary("ne", x, x)),
    "select": lambda x: Select(Binary("gt", x, HALF), x, const(-0.0, BF16)),
    "keep": lambda x: Select(Binary("gt", x, HALF), ONE, x),
    "fma": lambda x: Call("fma", (x, HALF, ONE), BF16),
    "copysign": lambda x: Call("copysign", (HALF, x), BF16),
    "ldexp": lambda x: Call("ldexp", (HALF, x), BF16),
    "isnan": lambda x: Cast("uint8", Call("isnan", (x,), "bool")),
    **{name: lambda x, name=name: Call(name, (x,), BF16) for name in ("sqrt", "abs", "floor", "ceil", "trunc", "round")},
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_round_once(name: str, vector: bool, target: str) -> None:
    data = samples(BF16)
    check(elementwise(BF16, OPERATIONS[name], len(data), vector), data, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["add", "min", "max"])
def test_reductions(op: str, target: str) -> None:
    """Over lanes: the row is converted to bfloat16, folded there, and stored as bits."""
    a, b, r, c = Buffer("A", (3, 32), "uint16"), Buffer("B", (3, 32), BF16), Buffer("R", (3,), BF16), Buffer("C", (3,), "uint16")
    combine = {"add": lambda x, y: x + y, "min": minimum, "max": maximum}[op]

    def block(name: str, extents: list[int], kinds: str, body: Callable[..., Stmt], init: Callable[..., Stmt] | None = None) -> Stmt:
        at, loops = [Var("v") for _ in extents], [Var("i") for _ in extents]
        iters = tuple([Iter(v, poly(n), k) for v, n, k in zip(at, extents, kinds, strict=True)])
        made = None if init is None else init(*at)
        return nest(list(zip(loops, extents, strict=True)), Block(name, iters, tuple([poly(i) for i in loops]), (), made, body(*at)))

    start = const({"add": 0.0, "min": 100.0, "max": -100.0}[op], BF16)
    body = seq(
        [
            block("B", [3, 32], "SS", lambda i, k: store(b, (i, k), floats_of(a[i, k], BF16))),
            block("R", [3, 32], "SR", lambda i, k: store(r, (i,), combine(r[i], b[i, k])), lambda i, k: store(r, (i,), start)),
            block("C", [3], "S", lambda i: store(c, (i,), bits_of(r[i]))),
        ]
    )
    s = Schedule(PrimFunc("f", (a, c), (b, r), body))
    k = s.get_loops(s.get_block("R"))[1]
    s.decompose_reduction(s.get_block("R"), k)
    s.vectorize(k)
    values = stream(0, "bfloat16", op).integers(-3, 4, (3, 32)).astype(np.float32)
    check(s.func, (values.view(np.uint32) >> 16).astype(np.uint16), target)


@pytest.mark.parametrize("dtype", ["float16", "float32", BF16])
def test_literals_are_rounded_as_in_the_interpreter(dtype: str) -> None:
    """Ties, denormals, and numbers beyond the largest finite one."""
    c = Buffer("C", (1,), f"uint{dt.bits(dtype)}")
    for value in (
        0.1,
        -0.0,
        1 + 2.0**-8,
        1 + 3 * 2.0**-8,
        65519.9,
        65520.0,
        3.4028235677973366e38,
        -1e39,
        1e-40,
        1e-46,
        float("inf"),
        float("nan"),
    ):
        func = PrimFunc("f", (c,), (), store(c, (0,), bits_of(Const(value, dtype))))
        with np.errstate(over="ignore"):
            wanted = run(func, [np.zeros(1, c.dtype)])[0]
        out = np.zeros(1, c.dtype)
        Module.from_object(build(func, Target(TARGETS[0])).data)["f"](out)
        assert out[0] == wanted[0], f"{value!r} is {literal(value, dtype)}"


@pytest.mark.parametrize("source", ["int16", "int32", "int64"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
@pytest.mark.parametrize("cpu", ["x86-64-v4", "x86-64-v3"])
def test_the_last_lane_of_a_narrowed_vector_writes_one_element(source: str, dtype: str, cpu: str) -> None:
    """9 elements in vectors of 4: LLVM would store the last one before truncation."""
    func = parse(f"""
@T.prim_func
def f(A: T.Buffer((9,), "{source}"), C: T.Buffer((9,), "{dtype}")):
    for i in T.serial(9):
        with T.block("C"):
            v = T.axis.spatial(9, i)
            C[v] = T.cast("{dtype}", A[v])
""")
    s = Schedule(func)
    s.vectorize(s.split(s.get_loops(s.get_block("C"))[0], [None, 4])[1])
    text, *_ = emit_text(s.func, Target(f"llvm -mcpu={cpu} -num-cores=1"))
    assert not [line for line in text.splitlines() if "masked.store" in line and "<i1 true, i1 false" in line]
    memory = np.full(16, 99, dtype)
    target = Target("llvm -num-cores=1")
    Module.from_object(build(s.func, target).data)["f"](np.arange(-4, 5, dtype=source), memory[:9])
    assert memory.tolist() == [*np.arange(-4, 5).astype(dtype).tolist(), *[99] * 7]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_rounded_casts(source: str, dtype: str, target: str) -> None:
    """Casts of rounded numbers, half to even, as one instruction for integers of at most 32 bits, and as two for others."""
    low, high = (0, 255) if dt.is_unsigned(dtype) else (-128, 127)
    data = (np.arange(2 * low, 2 * high + 1) / 2).astype(source).view(f"uint{dt.bits(source)}")
    for vector in (False, True):
        func = elementwise(source, lambda x: Cast(dtype, Call("round", (x,), x.dtype)), len(data), vector)
        check(func, data, target)
        text, _ = emit_text([func], Target(target))
        assert ("lrint" in text) == (dt.bits(dtype) <= (16 if dt.is_unsigned(dtype) else 32))
