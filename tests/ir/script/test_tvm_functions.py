"""Test functions and buffer options with the names of TVMScript: their values, and refusals with a reason."""

from __future__ import annotations

import numpy as np
import pytest

import tunesmith
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.parser import parse
from tunesmith.ir.structural import equal
from tunesmith.support.errors import ScriptError

PROGRAM = """
@T.prim_func
def main(A: T.Buffer((6,), "float32"), B: T.Buffer((6,), "float32"), N: T.Buffer((6,), "int32"), Y: T.Buffer((6,), "{dtype}")):
    for i in range(6):
        with T.sblock("Y"):
            vi = T.axis.spatial(6, i)
            T.reads(A[vi], B[vi], N[vi])
            T.writes(Y[vi])
            Y[vi] = {value}
"""
A = np.float32([-1.75, -0.5, 0.0, 0.25, 0.75, 2.5])
B = np.float32([2.0, -0.75, 3.0, -0.5, 1.0, 0.4])
N = np.int32([-7, -2, 0, 3, 8, 5])
INDEX = np.arange(6)


def computed(value: str, dtype: str) -> np.ndarray:
    f = parse(PROGRAM.format(value=value, dtype=dtype))
    assert equal(parse(str(f)), f)
    wanted = run(f, [A, B, N])[3]
    out = np.zeros(6, dtype)
    tunesmith.build(f)(A, B, N, out)
    np.testing.assert_allclose(out, wanted, rtol=1e-6)
    return wanted


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("T.fabs(A[vi])", np.abs(A)),
        ("T.nearbyint(A[vi])", np.rint(A)),
        ("T.rint(A[vi])", np.rint(A)),
        ("T.power(T.fabs(A[vi]), B[vi])", np.abs(A) ** B),
        ("T.max(T.min_value('float32'), A[vi])", A),
        ("T.min(T.max_value('float32'), A[vi])", A),
        ("T.min_value('float32')", np.full(6, np.finfo(np.float32).min)),
        ("T.Cast('float32', T.max_value('bfloat16'))", np.full(6, np.float32(3.3895313892515355e38))),
        ("T.min(T.infinity('float32'), A[vi])", A),
        ("T.Div(A[vi], B[vi])", A / B),
        ("T.Add(A[vi], T.Mul(B[vi], T.Sub(A[vi], B[vi])))", A + B * (A - B)),
        ("T.Max(A[vi], T.Min(B[vi], T.float32(0.0)))", np.maximum(A, np.minimum(B, 0))),
        ("T.Select(T.And(T.LT(A[vi], B[vi]), T.Not(T.EQ(N[vi], 0))), A[vi], B[vi])", np.where((A < B) & (N != 0), A, B)),
        ("T.Select(T.Or(T.GE(A[vi], B[vi]), T.NE(N[vi], 0)), A[vi], B[vi])", np.where((A >= B) | (N != 0), A, B)),
        ("T.Select(T.likely(vi < 3), A[vi], B[vi])", np.where(INDEX < 3, A, B)),
        ("A[T.floordiv(vi, 2)]", A[INDEX // 2]),
        ("A[T.FloorMod(vi + 1, 4)]", A[(INDEX + 1) % 4]),
        ("A[T.truncdiv(vi, 2)]", A[INDEX // 2]),
        ("A[T.truncmod(vi * 3 + 1, 5)]", A[(INDEX * 3 + 1) % 5]),
        ("A[T.truncdiv(T.max(vi, 2) + (vi - 3) % 2, 2)]", A[(np.maximum(INDEX, 2) + (INDEX - 3) % 2) // 2]),
        ("A[T.bitwise_and(vi, 3)]", A[INDEX & 3]),
        ("A[T.shift_right(vi, 1)]", A[INDEX >> 1]),
        ("A[T.shift_right(T.shift_left(vi, 2), 2)]", A),
        ("T.fmod(A[vi], B[vi])", np.fmod(A, B)),
        ("T.log1p(T.fabs(A[vi]))", np.log1p(np.abs(A))),
        ("T.expm1(A[vi])", np.expm1(A)),
        ("T.atan(A[vi])", np.arctan(A)),
        ("T.atan2(A[vi], B[vi])", np.arctan2(A, B)),
        ("T.hypot(A[vi], B[vi])", np.hypot(A, B)),
        ("T.asin(A[vi] * T.float32(0.25))", np.arcsin(A / 4)),
        ("T.acos(A[vi] * T.float32(0.25))", np.arccos(A / 4)),
        ("T.tan(A[vi])", np.tan(A)),
        ("T.sinh(A[vi])", np.sinh(A)),
        ("T.cosh(A[vi])", np.cosh(A)),
        ("T.asinh(A[vi])", np.arcsinh(A)),
        ("T.acosh(T.fabs(A[vi]) + T.float32(1.0))", np.arccosh(np.abs(A) + 1)),
        ("T.atanh(A[vi] * T.float32(0.25))", np.arctanh(A / 4)),
        ("T.Cast('float32', T.atan(T.Cast('float16', A[vi])))", np.arctan(A).astype(np.float16)),
    ],
)
def test_values_of_floats(value: str, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(computed(value, "float32"), wanted, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("T.floordiv(N[vi], 2)", N // 2),
        ("T.floormod(N[vi], 3)", N % 3),
        ("T.truncdiv(N[vi], 2)", np.trunc(N / 2)),
        ("T.truncmod(N[vi], 3)", np.fmod(N, 3)),
        ("T.Div(N[vi], -2)", np.trunc(N / -2)),
        ("T.Mod(N[vi], -3)", np.fmod(N, -3)),
        ("T.bitwise_and(N[vi], 3)", N & 3),
        ("T.bitwise_or(N[vi], 3)", N | 3),
        ("T.bitwise_xor(N[vi], 3)", N ^ 3),
        ("T.bitwise_not(N[vi])", ~N),
        ("T.shift_left(N[vi], 2)", N << 2),
        ("T.shift_right(N[vi], 1)", N >> 1),
        ("T.max_value('int32')", np.full(6, 2**31 - 1)),
        ("T.min_value('int32')", np.full(6, -(2**31))),
        ("T.reinterpret('int32', A[vi])", A.view(np.int32)),
        ("T.truncdiv(7, 2)", np.full(6, 3)),
    ],
)
def test_values_of_integers(value: str, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(computed(value, "int32"), wanted)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "A[T.truncdiv(5 - vi, 2)]",
            r"T.truncdiv rounds to 0, and an operand of it may be negative.*\n.*\n.*\n.*T.floordiv\(a, b\) if both are",
        ),
        ("A[T.truncmod(vi - 1, 2)]", r"T.truncmod rounds to 0.*\n.*\n.*\n.*T.floormod\(a, b\)"),
        ("T.truncdiv(A[vi], B[vi])", r"T.truncdiv is for integers\n.*\n.*\n.*Write a / b or T.fmod\(a, b\) for floats"),
        ("T.Mod(A[vi], B[vi])", "T.Mod is for integers"),
        ("T.atan2(A[vi], N[vi])", "T.atan2 takes floats of one type, got float32 and int32"),
        ("T.log1p(N[vi])", "T.log1p takes floats of one type, got int32"),
        ("T.fmod(N[vi], A[vi])", "T.fmod takes numbers of one type, got int32 and float32"),
        ("T.atan(" * 9 + "A[vi]" + ")" * 9, "T.atan of this operand has .* nodes"),
        ("T.infinity('int32')", "int32 has no infinity"),
        ("T.bitwise_and(A[vi], 3)", "`&` is for integers and bools, not for floats"),
        ("T.clz(N[vi])", r"T.clz is not supported\n.*\n.*\n.*It counts bits"),
        ("T.log10(A[vi])", r"T.log10 is not supported\n.*\n.*\n.*T.log\(x\) \* 0.434"),
        ("T.exp10(A[vi])", r"T.exp10 is not supported\n.*\n.*\n.*T.pow"),
        ("T.call_extern('float32', 'f', A[vi])", r"the external function 'f' has no meaning.*\n.*\n.*\n.*A graph function calls"),
    ],
)
def test_refusals(value: str, message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        parse(PROGRAM.format(value=value, dtype="float32"))


HEAD = """
@T.prim_func
def main(a: T.handle, Y: T.Buffer((2, 4), "float32"{buffer})):
    n = T.int64()
    A = T.match_buffer(a, (n, 4), "float32"{match})
    T.func_attr({{"tir.noalias": True}})
    for i, j in T.grid(2, 4):
        with T.sblock("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(A[vi, vj])
            T.writes(Y[vi, vj])
            Y[vi, vj] = A[vi, vj]
"""


@pytest.mark.parametrize(
    "options",
    [
        ", strides=[]",
        ", strides=None",
        ", strides=(4, 1)",
        ", strides=[T.int64(4), 1]",
        ", offset_factor=1",
        ", elem_offset=T.int32(0), offset_factor=0",
        ", elem_offset=0, byte_offset=None, data_alignment=64",
        ', buffer_type="", axis_separators=[]',
        ', buffer_type="default", axis_separators=None, scope="global"',
    ],
)
def test_buffer_options_that_describe_dense_memory_are_left_out(options: str) -> None:
    plain = parse(HEAD.format(buffer="", match=""))
    assert equal(parse(HEAD.format(buffer=options, match="")), plain)
    assert equal(parse(HEAD.format(buffer="", match=options)), plain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (", strides=(8, 1)", r"buffer \w has the strides \[8, 1\]; those of its shape are \[4, 1\]\n(.*\n)*.*dense and row-major"),
        (", strides=(1,)", r"buffer \w has the strides \[1\]"),
        (', strides=("A_s0", "A_s1")', r"the strides of buffer \w are not known"),
        (", elem_offset=8", r"buffer \w begins at an offset\n(.*\n)*.*the array of the call is the whole buffer"),
        (', buffer_type="auto"', r"buffer \w has dimensions that may be broadcast"),
        (", axis_separators=[1]", r"the memory of buffer \w has several dimensions"),
        (", logical_scope=3", "got the unexpected argument `logical_scope`"),
    ],
)
def test_buffer_options_of_other_memory_are_refused(options: str, message: str) -> None:
    for place in ("buffer", "match"):
        with pytest.raises(ScriptError, match=message):
            parse(HEAD.format(**{"buffer": "", "match": "", place: options}))
