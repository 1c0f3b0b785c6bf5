"""Overflow of 32-bit integers: indices become 64 bits wide if they may overflow, and values wrap as in numpy."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.codegen.device.build import build, emit_source
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Binary, Call, Cast, Expr, IsNegative, Select, const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly, Var, ceildiv, floordiv, maximum, minimum, mod, poly
from tunesmith.ir.stmt import For, Stmt, seq, store
from tunesmith.ir.target.target import Target
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.device import opencl
from tunesmith.runtime.device.module import DeviceModule
from tunesmith.runtime.device.opencl import OPENCL as DRIVER
from tunesmith.runtime.device.program import DeviceProgram

needs_device = pytest.mark.skipif(DRIVER.count() == 0, reason="no OpenCL runtime here: pip install 'tunesmith[opencl]'")
N = 70_000
"""Its square exceeds 32 bits."""


def on_device(func: PrimFunc, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The buffers after a call."""
    memory = [DeviceArray.from_numpy(opencl(), x, b.dtype) for b, x in zip(func.params, arrays, strict=True)]  # type: ignore[union-attr]
    DeviceModule(DeviceProgram.from_bytes(build(func, Target("opencl")).data))[func.name](*memory)
    return [m.numpy() for m in memory]


def compiles(func: PrimFunc) -> None:
    """Compile the CUDA code, if the compiler is installed."""
    if importlib.util.find_spec("cuda") is not None:
        build(func, Target("cuda -arch=sm_90"))


def over(extent: int, make: Callable[[Poly], Expr], dtype: str, *inputs: Buffer, kind: str = "thread") -> PrimFunc:
    """C[i] = make(i), with i bound to blocks, or a serial loop."""
    c, i, t = Buffer("C", (extent,), dtype), Var("i"), Var("t")
    inner: Stmt = store(c, (i,), make(poly(i)))
    if kind == "thread":
        body = For(i, poly(extent), For(t, poly(1), inner, "thread", "threadIdx.x"), "thread", "blockIdx.x")
    else:
        body = For(t, poly(1), For(i, poly(extent), inner), "thread", "threadIdx.x")
    return PrimFunc("over", (*inputs, c), (), body)


AT = np.arange(N, dtype=np.int64)
INDICES: dict[str, tuple[Callable[[Poly], Poly], np.ndarray]] = {
    "product": (lambda i: i * 100_000, AT * 100_000),
    "square": (lambda i: i * i, AT * AT),
    "sum": (lambda i: i * 30_000 + 50_000_000 + mod(i * 7, 1000) * 10**6, AT * 30_000 + 50_000_000 + AT * 7 % 1000 * 10**6),
    "difference": (lambda i: 5 - i * 40_000, 5 - AT * 40_000),
    "quotient": (lambda i: floordiv(i * i + 1, 70_001), (AT * AT + 1) // 70_001),
    "negative quotient": (lambda i: floordiv(1 - i * i, 70_001), (1 - AT * AT) // 70_001),
    "rounded up": (lambda i: ceildiv(i * i, 70_001), -(-AT * AT // 70_001)),
    "remainder": (lambda i: mod(i * 65_537, 70_001), AT * 65_537 % 70_001),
    "negative remainder": (lambda i: mod(9 - i * 65_537, 70_001), (9 - AT * 65_537) % 70_001),
    "minimum": (lambda i: minimum(i * i, 12_345), np.minimum(AT * AT, 12_345)),
    "maximum": (lambda i: maximum(i * i, 12_345 * i), np.maximum(AT * AT, 12_345 * AT)),
    "cancelled": (lambda i: i * i - mod(i * i, 3), AT * AT - AT * AT % 3),
}


@needs_device
@pytest.mark.parametrize("kind", ["thread", "serial"])
@pytest.mark.parametrize("name", sorted(INDICES))
def test_indices_beyond_32_bits(name: str, kind: str) -> None:
    make, want = INDICES[name]
    func = over(N, make, "int64", kind=kind)
    (got,) = on_device(func, [np.zeros(N, np.int64)])
    np.testing.assert_array_equal(got, want)
    compiles(func)


@needs_device
def test_conditions_beyond_32_bits() -> None:
    a = Buffer("A", (N,), "float32")
    func = over(N, lambda i: Select(IsNegative(i * i - N), a[i], const(0.0, "float32")), "float32", a)
    x = np.ones(N, np.float32)
    np.testing.assert_array_equal(on_device(func, [x, np.zeros(N, np.float32)])[1], np.where(AT * AT < N, x, 0))


@needs_device
def test_addresses_with_intermediates_beyond_32_bits() -> None:
    a = Buffer("A", (N,), "float32")
    func = over(N, lambda i: a[mod(i * 65_537, N)], "float32", a)
    x = AT.astype(np.float32)
    np.testing.assert_array_equal(on_device(func, [x, np.zeros(N, np.float32)])[1], x[AT * 65_537 % N])


@pytest.mark.parametrize(("factor", "wide"), [(30_678, False), (30_679, True)])
def test_only_indices_that_may_overflow_are_wide(factor: int, wide: bool) -> None:
    """With 70000 blocks, 69999 * 30678 is the last product that fits."""
    func = over(N, lambda i: i * factor, "int64")
    assert (f"= (long)((long)i * {factor});" in emit_source(func, Target("opencl"))[0]) == wide
    assert (f"= (long long)((long long)i * {factor});" in emit_source(func, Target("cuda -arch=sm_90"))[0]) == wide
    assert (f"= (long)(i * {factor});" in emit_source(func, Target("opencl"))[0]) != wide


def test_a_variable_bound_again_with_another_range() -> None:
    """Cached spans of products are cleared for the new range."""
    c, i, t = Buffer("C", (N,), "int64"), Var("i"), Var("t")
    loops = [For(i, poly(n), store(c, (i,), poly(i) * 100_000)) for n in (100, N, 100)]
    func = PrimFunc("again", (c,), (), For(t, poly(1), seq(loops), "thread", "threadIdx.x"))
    lines = [x.split("= ", 1)[1] for x in emit_source(func, Target("opencl"))[0].splitlines() if "100000" in x]
    assert lines == ["(long)(i * 100000);", "(long)((long)i * 100000);", "(long)(i * 100000);"]


# ---- values


@needs_device
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint16"])
@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_values_wrap(dtype: str, op: str) -> None:
    """Also if a compiler could draw conclusions from undefined overflow in a comparison."""
    info = np.iinfo(dtype)
    x = np.array([info.min, info.min + 1, 1, 2, 7, info.max // 2, info.max - 1, info.max] * 8, dtype)
    y = np.repeat(x[:8], 8)
    a, b = Buffer("A", (64,), dtype), Buffer("B", (64,), dtype)
    with np.errstate(over="ignore"):
        want = {"add": x + y, "sub": x - y, "mul": x * y}[op]
        more = {"add": x + x.dtype.type(1) > x, "sub": x - x.dtype.type(1) < x, "mul": want < x}[op]
    got = on_device(over(64, lambda i: Binary(op, a[i], b[i]), dtype, a, b), [x, y, np.zeros(64, dtype)])[2]
    np.testing.assert_array_equal(got, want)

    def compared(i: Poly) -> Expr:
        made = Binary(op, a[i], b[i] if op == "mul" else const(1, dtype))
        return Cast("int32", Binary("gt" if op == "add" else "lt", made, a[i]))

    func = over(64, compared, "int32", a, b)
    np.testing.assert_array_equal(on_device(func, [x, y, np.zeros(64, np.int32)])[2], more)
    compiles(func)


@needs_device
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_minimum_integer_and_shifts_wrap(dtype: str) -> None:
    info = np.iinfo(dtype)
    x = np.array([info.min, -5, -1, 0, 1, 5, info.max - 1, info.max], dtype)
    a = Buffer("A", (8,), dtype)
    for make, want in (
        (lambda i: Call("abs", (a[i],), dtype), np.abs(x)),
        (lambda i: Binary("shl", a[i], const(3, dtype)), x << x.dtype.type(3)),
    ):
        np.testing.assert_array_equal(on_device(over(8, make, dtype, a), [x, np.zeros(8, dtype)])[1], want)
