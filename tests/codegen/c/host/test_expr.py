"""Values of C code: equal to those of LLVM in all bits, for all element types, scalars and vectors, with masks and choices."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tunesmith.codegen.build import build
from tunesmith.codegen.c.host.build import print_source
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule
from tunesmith.support import dtype as dt

N = 45
TARGETS = ("-mcpu=x86-64-v3 -num-cores=1", f"-mcpu={Target.detect().mcpu} -num-cores=1")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
ARITHMETIC = ("a + b", "a - b", "a * b", "T.max(a, b)", "T.min(a, b)", "T.if_then_else(a < b, a, b)", "T.if_then_else(a != b, b, c)")
ON_INTEGERS = ("a // b", "a % b", "a & b", "a | b", "a ^ b", "a << (b & {t}(15))", "a >> (b & {t}(15))", "a // {t}(3)", "T.abs(a)")
ON_FLOATS = (
    "a / (b + {t}(3))",
    "T.sqrt(T.abs(a))",
    "T.floor(a)",
    "T.ceil(a)",
    "T.trunc(a)",
    "T.round(a)",
    "T.abs(a)",
    "T.copysign(a, b)",
    "T.exp(b)",
    "T.tanh(b)",
    "T.if_then_else(T.isnan(a), b, a)",
)


def elementwise(dtype: str, value: str, out: str = "", vector: bool = False) -> PrimFunc:
    """`C[i]` from `A[i]`, `B[i]` and the first element of C; in vectors, the last of which is masked."""
    text = value.format(t=f"T.{dtype}")
    for name, load in (("a", "A[vi]"), ("b", "B[vi]"), ("c", "A[0]")):
        text = re.sub(rf"\b{name}\b", load, text)
    func = parse(f"""
@T.prim_func
def f(A: T.Buffer(({N},), "{dtype}"), B: T.Buffer(({N},), "{dtype}"), C: T.Buffer(({N},), "{out or dtype}")):
    for i in T.serial({N}):
        with T.block("C"):
            vi = T.axis.spatial({N}, i)
            C[vi] = {text}
""")
    assert isinstance(func, PrimFunc)
    if not vector:
        return func
    s = Schedule(func)
    s.vectorize(s.get_loops(s.get_block("C"))[0])
    return s.func


def values(dtype: str, seed: int) -> np.ndarray:
    """Numbers of all sizes, with extremes, zeros and infinities; bfloat16 as its bits."""
    rng = np.random.default_rng(seed)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        some = rng.integers(info.min, info.max, N, dtype=dtype, endpoint=True)
        some[:6] = [info.min, info.max, 0, 1, info.max // 2, 3]
        some[6:20] = rng.integers(0, 9, 14)
        return some
    bits = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}[dtype]
    if dtype == "bfloat16":
        whole = values("float32", seed)
        return (whole.view("uint32") >> 16).astype("uint16")
    wide = rng.standard_normal(N) * 10.0 ** rng.integers(-4, 4 if bits == 16 else 6, N)
    some = wide.astype(dtype)
    some[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.5, np.finfo(dtype).tiny / 2]
    return some


def passed(a: np.ndarray, dtype: str) -> np.ndarray:
    """The array as an argument of the dtype."""
    if dtype != "bfloat16":
        return a
    import ml_dtypes

    return a.view(ml_dtypes.bfloat16)


Case = tuple[PrimFunc, str, str]
"""A function with the dtypes of its inputs and of its result."""


def agree(cases: list[Case], attributes: str) -> None:
    """Compare the results of both backends, each of which compiles all functions into one object."""
    funcs = [func.with_(name=f"f{k}") for k, (func, _, _) in enumerate(cases)]
    of_c, of_llvm = [Module.from_object(build(funcs, Target(f"{kind} {attributes}")).data) for kind in ("c", "llvm")]
    for func, (_, dtype, out) in zip(funcs, cases, strict=True):
        results = []
        for module in (of_c, of_llvm):
            c = np.zeros(N, "uint16" if out == "bfloat16" else dt.to_numpy(out))
            module[func.name](passed(values(dtype, 0), dtype), passed(values(dtype, 1), dtype), passed(c, out))
            results.append(c)
        a, b = results
        if out == "bfloat16":
            a, b = [(x.astype("uint32") << 16).view("float32") for x in results]
        if a.dtype.kind == "f":
            nan = np.isnan(a) & np.isnan(b)
            a, b = np.where(nan, 0, a).astype(a.dtype), np.where(nan, 0, b).astype(a.dtype)
        assert a.tobytes() == b.tobytes(), (str(func), a, b)


@pytest.mark.parametrize("attributes", TARGETS)
@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_arithmetic(dtype: str, vector: bool, attributes: str) -> None:
    operators = [*ARITHMETIC, *(ON_INTEGERS if dtype in INTEGERS else ON_FLOATS)]
    if dtype.startswith("u"):
        operators.remove("T.abs(a)")
    agree([(elementwise(dtype, value, vector=vector), dtype, dtype) for value in operators], attributes)


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("dtype", ["int16", "bfloat16", "float32"])
def test_the_source_of_one_function_defines_all_helpers_it_calls(dtype: str, vector: bool) -> None:
    """In an object of several functions, one may call a helper that only another one defines."""
    target = Target(f"c {TARGETS[0]}")
    funcs = [elementwise(dtype, value, vector=vector) for value in (*ARITHMETIC, *(ON_INTEGERS if dtype in INTEGERS else ON_FLOATS))]
    helpers = re.compile(r"static inline [\w ]+?[ *](\w+)\(")
    every = {name for f in funcs for name in helpers.findall(print_source(f, target))}
    assert every
    for f in funcs:
        text = print_source(f, target)
        called = every & set(re.findall(r"(\w+)\(", text))
        assert called == set(helpers.findall(text)), (str(f), called)


CASTS = {
    "int8": ("int32", "float32", "uint8", "bool"),
    "uint8": ("int64", "float16", "float64", "bool"),
    "int32": ("int8", "float16", "bfloat16", "float32", "uint64", "bool"),
    "int64": ("int16", "float64", "float32", "bool"),
    "float16": ("float32", "float64", "bfloat16", "bool"),
    "bfloat16": ("float32", "float16", "float64", "bool"),
    "float32": ("float16", "bfloat16", "float64", "bool"),
    "float64": ("float16", "bfloat16", "float32", "bool"),
}


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("dtype", CASTS)
def test_casts(dtype: str, vector: bool) -> None:
    agree([(elementwise(dtype, f'T.cast(a, "{out}")', out, vector), dtype, out) for out in CASTS[dtype]], TARGETS[0])


def test_flags_of_different_widths_are_combined() -> None:
    """Masks of 8, 32 and 64 bits."""
    value = 'T.if_then_else((T.cast(a, "float64") < T.cast(b, "float64")) and (a != b), a, T.if_then_else(not (a < c), b, c))'
    agree([(elementwise("int8", value, vector=vector), "int8", "int8") for vector in (False, True)], TARGETS[0])


DIFFERENCES = (
    "-T.cast(a, {out})",
    "{zero} - T.abs(T.cast(a, {out}))",
    "({zero} + {zero}) - T.cast(a, {out})",
    "{zero} - T.if_then_else(a < b, {zero}, T.cast(b, {out}))",
    "T.if_then_else(a < b, {zero}, {zero}) - T.cast(a, {out})",
    "T.cast({zero}, {out}) - T.cast(a, {out})",
)
"""Differences with 0 on the left: the result is +0 if the right side is +0, which GCC 12 folds to -0."""


@pytest.mark.parametrize("out", ["float16", "float32", "float64"])
def test_zero_minus_zero_is_positive(out: str) -> None:
    cases: list[Case] = []
    for k, value in enumerate(DIFFERENCES):
        text = value.format(out=f'"{out}"', zero=f"T.{out}(0.0)")
        for vector in (False, True) if k < 2 else (False,):
            cases.append((elementwise("int32", text, out, vector), "int32", out))
    agree(cases, TARGETS[0])


CHOICES = (
    "T.if_then_else(c < {t}(3), a + b, {t}(1))",
    "T.if_then_else(c != {t}(3), T.max(a, b), a * b)",
    "T.if_then_else(c < {t}(3), {t}(1), T.if_then_else(a < b, a, b)) + a",
    "T.select(c < {t}(3), a - b, T.cast(T.cast(b, 'float32'), '{dtype}'))",
)
MASKS = (
    "T.if_then_else(c < {t}(3), a < b, T.cast(b, 'float64') < T.float64(2))",
    "T.if_then_else(c < {t}(3), T.cast(a, 'float64') < T.float64(5), b != a)",
    "T.if_then_else(c < {t}(3), T.cast(a, 'float64') < T.float64(5), c < {t}(2)) and (a < b)",
    "T.select(c < {t}(3), T.cast(a, 'bool'), T.isnan(T.cast(b, 'float32')))",
    "((a < {t}(3)) ^ (T.cast(b, 'float64') < T.float64(3))) | ((a < b) & (T.cast(b, 'float64') < T.float64(1)))",
)
"""Choices by a scalar condition, whose sides are vectors in a vectorized loop, and operators on masks of different widths."""


@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "float32"])
def test_choices_by_a_scalar(dtype: str) -> None:
    cases: list[Case] = []
    for k, value in enumerate([*CHOICES, *MASKS]):
        text = value.replace("{dtype}", dtype)
        out = dtype if k < len(CHOICES) else "bool"
        cases.append((elementwise(dtype, text, out, vector=True), dtype, out))
    agree(cases, TARGETS[0])


@pytest.mark.parametrize("bits", ["float16", "bfloat16"])
def test_all_16_bit_floats_are_converted_exactly(bits: str) -> None:
    """To float32 and back, with instructions and with integer arithmetic."""
    func = parse(f"""
@T.prim_func
def f(A: T.Buffer((65536,), "{bits}"), W: T.Buffer((65536,), "float32"), C: T.Buffer((65536,), "{bits}")):
    for i in T.serial(65536):
        with T.block("W"):
            vi = T.axis.spatial(65536, i)
            W[vi] = T.cast(A[vi], "float32")
    for i in T.serial(65536):
        with T.block("C"):
            vi = T.axis.spatial(65536, i)
            C[vi] = T.cast(W[vi], "{bits}")
""")
    every = np.arange(65536, dtype="uint16")
    for target in ("c -mcpu=x86-64 -num-cores=1", "c -mcpu=x86-64-v3 -num-cores=1"):
        wide, back = np.zeros(65536, "float32"), np.zeros(65536, "uint16")
        given = [passed(x, bits) if bits == "bfloat16" else x.view("float16") for x in (every, back)]
        Module.from_object(build(func, Target(target)).data)["f"](given[0], wide, given[1])
        want = every.view("float16").astype("float32") if bits == "float16" else (every.astype("uint32") << 16).view("float32")
        number = ~np.isnan(want)
        assert (wide[number] == want[number]).all() and np.isnan(wide[~number]).all()
        assert (back[number] == every[number]).all()
