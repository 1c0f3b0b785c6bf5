"""Vectors divided by a uniform divisor: all divisors, float types and vector widths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Binary, Broadcast, call, cast, const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import Allocate, For, If
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.vectorize_loops import vectorize_loops
from tunesmith.lower.pipelines import CPU, GPU
from tunesmith.lower.uniform_division import has_normal_reciprocal
from tunesmith.runtime.arrays import tensor
from tunesmith.runtime.module import Module

Lowered = Callable[..., PrimFunc]
NARROW = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=1")
TARGETS = (NARROW, Target("llvm -mcpu=x86-64-v3 -num-cores=1"), Target.detect())
ROWS = 211
COLUMNS = 40
FORMATS = {"float16": (11, 15), "bfloat16": (8, 127), "float32": (24, 127), "float64": (53, 1023)}
"""Digits of the significand, and largest exponent."""


def quotients(kind: str, body: str = "A[vi, vj] / B[vi]") -> PrimFunc:
    """C[i, j] = A[i, j] / B[i], vectors along j."""
    func = parse(
        f"""
@T.prim_func
def f(A: T.Buffer(({ROWS}, {COLUMNS}), "{kind}"), B: T.Buffer(({ROWS},), "{kind}"), C: T.Buffer(({ROWS}, {COLUMNS}), "{kind}")):
    for i in T.serial({ROWS}):
        for j in T.vectorized({COLUMNS}):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = {body}
"""
    )
    assert isinstance(func, PrimFunc)
    return func


def numbers(kind: str, count: int, seed: int) -> np.ndarray:
    """Numbers of all exponents, also denormal, then special values, in float64."""
    digits, top = FORMATS[kind]
    rng = np.random.default_rng(seed)
    bottom = 2 - top - digits
    exponent = rng.integers(bottom, top + 1, count)
    with np.errstate(all="ignore"):
        x = np.ldexp(rng.uniform(1, 2, count), exponent) * rng.choice([-1, 1], count)
        largest, tiniest = np.ldexp(2 - 2.0 ** (1 - digits), top), np.ldexp(1.0, bottom)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, largest, -largest, tiniest, -3 * tiniest, np.ldexp(1.0, 1 - top), 1.0, 3.0]
    special += [np.ldexp(1.0, n) for n in (-127, -126, 125, 126, 127, -1022, 1022) if bottom <= n <= top]
    x[: len(special)] = special
    return held(kind, x)


def held(kind: str, x: np.ndarray) -> np.ndarray:
    """The values rounded to a type, in float64."""
    with np.errstate(all="ignore"):
        if kind != "bfloat16":
            return x.astype(kind).astype(np.float64)
        bits = x.astype(np.float32).view(np.uint32)
        return np.where(np.isnan(x), x, (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64))


def compute(func: PrimFunc, target: Target, kind: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C of the compiled function, in float64."""
    f = Module.from_object(build(func, target).data)["f"]
    if kind != "bfloat16":
        c = np.zeros(a.shape, kind)
        f(a.astype(kind), b.astype(kind), c)
        return c.astype(np.float64)
    halves = [(x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for x in (a, b, np.zeros(a.shape))]
    f(*[tensor(x, kind) for x in halves])
    return (halves[2].astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def ulps_off(kind: str, got: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distance from the exact quotient in ulp; infinity counts as the number after the largest."""
    digits, top = FORMATS[kind]
    with np.errstate(all="ignore"):
        exact = a.astype(np.longdouble) / b
        unit = np.ldexp(np.longdouble(1), np.maximum(np.frexp(np.abs(exact))[1] - digits, 2 - top - digits))
        limit = np.ldexp(np.longdouble(1), top + 1)
        exact, got = (np.clip(x, -limit, limit) for x in (exact, got.astype(np.longdouble)))
        off = np.abs(got - exact) / np.where(np.isfinite(unit), unit, 1)
    same = np.isnan(got) & np.isnan(exact)
    off[np.signbit(got) != np.signbit(exact)] = np.inf
    return np.asarray(np.where(same, 0, np.where(np.isnan(off), np.inf, off)), np.float64)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_quotients_are_accurate_for_every_divisor(kind: str, target: Target) -> None:
    """Within 1.5 ulp, also for denormals; zeros, infinities and NaN with signs as in IEEE 754."""
    a = numbers(kind, ROWS * COLUMNS, 1)
    np.random.default_rng(2).shuffle(a)
    a, b = a.reshape(ROWS, COLUMNS), numbers(kind, ROWS, 3)
    got = compute(quotients(kind), target, kind, a, b)
    off = ulps_off(kind, got, a, b[:, None])
    i, j = np.unravel_index(np.argmax(off), off.shape)
    assert off[i, j] <= 1.51, f"{a[i, j]!r} / {b[i]!r} = {got[i, j]!r}, {off[i, j]} ulp off"


@T.prim_func
def softmax_like(A: T.Buffer((3, 40), "float32"), B: T.Buffer((3,), "float32"), C: T.Buffer((3, 40), "float32")):
    for i in T.serial(3):
        for j in T.serial(4):
            for k in T.vectorized(10):
                C[i, j * 10 + k] = A[i, j * 10 + k] / B[i]


def test_the_version_is_selected_before_the_loop(lowered: Lowered) -> None:
    """One division and one branch per row, outside the loop over its vectors."""
    func = CPU.without("unroll_loops")(softmax_like, NARROW)
    lowered(softmax_like, vectorize_loops)
    (outer,) = [n for n in walk(func.body) if type(n) is For and len([k for k in walk(n.body) if type(k) is For]) > 0]
    (choice,) = [n for n in walk(outer.body) if type(n) is If]
    assert type(choice.then) is For and type(choice.orelse) is For
    fast = [n for n in walk(choice.then) if type(n) is Binary]
    assert {n.op for n in fast} == {"mul"}
    exact = [n for n in walk(choice.orelse) if type(n) is Binary]
    assert {n.op for n in exact} == {"div"}


@pytest.mark.parametrize(
    "body", ["A[vi, vj] / T.sqrt(B[vi])", 'A[vi, vj] / T.cast("float32", vi + 1)', "A[vi, vj] / 3.0", "A[vi, vj] / 1e30"]
)
def test_divisors_with_a_normal_reciprocal_need_one_version(body: str) -> None:
    func = CPU(quotients("float32", body), NARROW)
    assert not any(type(n) in (If, Allocate) for n in walk(func.body))
    assert {n.op for n in walk(func.body) if type(n) is Binary and type(n.b) is Broadcast} == {"mul"}


def test_has_normal_reciprocal() -> None:
    x = Buffer("X", (1,))[0]
    half, double, brain = (Buffer("Y", (1,), t)[0] for t in ("float16", "float64", "bfloat16"))
    assert all(map(has_normal_reciprocal, (const(3.0, "float32"), const(0.0, "float32"), const(float("inf"), "float32"))))
    assert all(map(has_normal_reciprocal, (half, cast("float32", half), cast("float64", x), call("sqrt", x))))
    assert not any(map(has_normal_reciprocal, (x, double, brain, x * 2.0, cast("float32", double), cast("float32", brain))))
    assert not any(map(has_normal_reciprocal, (const(1e-39, "float32"), const(3e38, "float32"), const(1e-310, "float64"))))


SMALL = np.array([1e-39, 3.0, 2e38, -1e-40, 0.0, 7e-3, 1e-45, np.inf], np.float32)


def check(func: PrimFunc, *inputs: np.ndarray) -> None:
    """Compiled and interpreted results differ by no more than two units in the last place."""
    out = func.params[-1]
    assert isinstance(out, Buffer)
    c = np.full([e.as_int() for e in out.shape], 1, np.float32)
    with np.errstate(all="ignore"):
        want = run(func, [*inputs, c.copy()])[-1]
    for target in TARGETS:
        got = c.copy()
        Module.from_object(build(func, target).data)["f"](*inputs, got)
        np.testing.assert_allclose(got, want, 2.0**-22, 3e-45)


def body(text: str, parameters: str) -> PrimFunc:
    """A function of these parameters."""
    made: Any = parse(f"@T.prim_func\ndef f({parameters}):\n{text}")
    assert isinstance(made, PrimFunc)
    return made


A8, B8, C8 = (f'{n}: T.Buffer((8,), "float32")' for n in "ABC")
X = np.array([1e-39, 5.0, 3e38, 2e-40, -7.0, 1e-3, 3e-45, 1.0], np.float32)


def test_a_divisor_that_the_loop_writes_is_read_each_time() -> None:
    """The second vector is divided by a value that the first one wrote."""
    func = body(
        "    for j in T.vectorized(64):\n        C[j] = A[j] / C[0]\n", 'A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")'
    )
    lanes = CPU(func, NARROW)
    assert any(n.op == "div" for n in walk(lanes.body) if type(n) is Binary)
    assert not any(type(n) is Allocate for n in walk(lanes.body))


def test_a_divisor_under_a_condition_is_not_read_outside_it() -> None:
    """B[i - 3] is in range only where the condition holds."""
    text = """    for i in T.serial(8):
        for j in T.vectorized(8):
            C[i, j] = T.select(3 <= i, A[j] / B[i - 3], T.float32(9.0))
"""
    func = body(text, f'{A8}, B: T.Buffer((5,), "float32"), C: T.Buffer((8, 8), "float32")')
    check(func, X, SMALL[:5])
    lanes = CPU(func, NARROW)
    np.testing.assert_array_equal(run(lanes, [X, SMALL[:5], np.zeros(64, np.float32)])[-1][:24], 9)


def test_sums_of_quotients() -> None:
    """A horizontal reduction has two versions as well."""
    text = """    for i in T.serial(8):
        C[i] = 0.0
        for j in T.vectorized(8):
            C[i] = C[i] + T.max(A[j] / B[i], -1.0)
"""
    func = body(text, f"{A8}, {B8}, {C8}")
    check(func, np.where(np.arange(8) == 3, X, 0).astype(np.float32), SMALL)


def test_two_divisors_in_one_loop() -> None:
    text = "    for i in T.serial(8):\n        for j in T.vectorized(8):\n            C[i, j] = A[j] / B[i] + A[j] / B[7 - i]\n"
    check(body(text, f'{A8}, {B8}, C: T.Buffer((8, 8), "float32")'), np.abs(X), np.abs(SMALL))


def test_gpus_divide() -> None:
    """Vectors of four are divided element by element, unless the reciprocal is known to be normal."""
    func = body(
        """    for t in T.thread_binding(8, thread="threadIdx.x"):
        for j in T.vectorized(4):
            C[t, j] = A[t, j] / B[t]
""",
        'A: T.Buffer((8, 4), "float32"), B: T.Buffer((8,), "float32"), C: T.Buffer((8, 4), "float32")',
    )
    done = GPU(func, Target("opencl"))
    assert [n.op for n in walk(done.body) if type(n) is Binary] == ["div"]


STEPS = {
    "trunc": ("T.trunc(A[vi, vj] / B[vi])", np.trunc),
    "floor": ("T.floor(A[vi, vj] / B[vi] + B[vi] * 0)", np.floor),
    "round": ("T.select(vj < 30, T.round(A[vi, vj] / B[vi]), T.round(A[vi, vj] / B[vi]))", np.rint),
    "integer": ('T.cast("{kind}", T.cast("int32", A[vi, vj] / B[vi]))', np.trunc),
    "compared": ("T.select(A[vi, vj] / B[vi] < T.{kind}(7), T.{kind}(1), T.{kind}(0))", lambda q: (q < 7).astype(q.dtype)),
    "constant": ("T.ceil(A[vi, vj] / 41.0) + B[vi] * 0", None),
}


@pytest.mark.parametrize("target", TARGETS, ids=["narrow", "v3", "here"])
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("step", list(STEPS))
def test_quotients_that_are_rounded_or_compared_are_exact(step: str, kind: str, target: Target) -> None:
    """Multiples of the divisor, where the nearest neighbour of the quotient is another integer."""
    body, expected = STEPS[step]
    func = quotients(kind, body.format(kind=kind))
    b = (np.arange(ROWS) + 3).astype(kind) * np.dtype(kind).type(0.3)
    a = np.arange(COLUMNS).astype(kind)[None] * b[:, None]
    a[:, 30:] = np.arange(10).astype(kind) * 41
    artifact = build(func, target)
    c = np.full(a.shape, np.nan, kind)
    Module.from_object(artifact.data)["f"](a, b, c)
    q = a / b[:, None] if expected is not None else a / np.dtype(kind).type(41)
    np.testing.assert_array_equal(c, (expected or np.ceil)(q))


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_quotients_that_other_blocks_round_are_exact(kind: str) -> None:
    func = parse(f"""
@T.prim_func
def f(A: T.Buffer((40,), "{kind}"), B: T.Buffer((1,), "{kind}"), C: T.Buffer((40,), "{kind}")):
    Q = T.alloc_buffer((40,), "{kind}")
    R = T.alloc_buffer((40,), "{kind}")
    for i in T.vectorized(40):
        with T.block("Q"):
            vi = T.axis.spatial(40, i)
            Q[vi] = A[vi] / B[0]
    for i in T.vectorized(40):
        with T.block("R"):
            vi = T.axis.spatial(40, i)
            R[vi] = Q[vi] + T.{kind}(1)
    for i in T.vectorized(40):
        with T.block("C"):
            vi = T.axis.spatial(40, i)
            C[vi] = T.floor(R[vi])
""")
    lib = Module.from_object(build(func, Target.detect()).data)["f"]
    for divisor in (0.3, 41.0, 49.0, 107.0):
        b = np.array([divisor], kind)
        a, c = np.arange(40).astype(kind) * b, np.zeros(40, kind)
        lib(a, b, c)
        np.testing.assert_array_equal(c, np.floor(a / b + 1))
