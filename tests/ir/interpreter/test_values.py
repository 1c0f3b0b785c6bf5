"""Test the interpreter's values: semantics of every expression, by type, for scalars and vectors, and undefined operations."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Broadcast, Call, Cast, Const, Expr, IsNegative, Not, Ramp, Select, call, cast, const, select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import InterpretError, run
from tunesmith.ir.intrinsics import INTRINSICS
from tunesmith.ir.poly import ONE, Param, Poly, Var, ceildiv, floordiv, less_than, maximum, minimum, mod, poly
from tunesmith.ir.stmt import BufferStore, Evaluate, For, Stmt, nest, seq, store
from tunesmith.ir.verify import verify
from tunesmith.support.seeds import stream


def x(v: Var) -> Poly:
    return poly(v)


def _run(body: Stmt, *arrays: Any, params: tuple[Any, ...], allocs: tuple[Buffer, ...] = (), **more: Any) -> list[np.ndarray]:
    func = PrimFunc("f", params, allocs, body)
    verify(func)
    return run(func, arrays, **more)


def _value(e: Expr, *inputs: tuple[Buffer, np.ndarray], shape: tuple[int, ...] = (1,)) -> np.ndarray:
    """The value of `e`, through a store to an output of its type."""
    lanes = int(e.dtype.partition("x")[2] or 1)
    out = Buffer("out", (max(lanes, shape[0]),), e.dtype.partition("x")[0])
    done = _run(BufferStore(out, (poly(0),), e), *[a for _, a in inputs], params=(*[b for b, _ in inputs], out))
    return done[-1]


# ---- expressions


def test_index_arithmetic_is_python_integer_arithmetic() -> None:
    i, j = Var("i"), Var("j")
    e = floordiv(x(i) * 7 + j, 4) * 3 + mod(x(j) * 5 - i, 6) + ceildiv(x(i) + j, 3) - minimum(i, j, 4) * maximum(x(i) * j, x(j) + 2)
    a = Buffer("A", (9, 9), "int64")
    done = _run(nest([(i, 9), (j, 9)], store(a, (i, j), e)), params=(a,))[0]
    for p in range(9):
        for q in range(9):
            assert done[p, q] == (p * 7 + q) // 4 * 3 + (q * 5 - p) % 6 + -(-(p + q) // 3) - min(p, q, 4) * max(p * q, q + 2)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_float_arithmetic_is_done_in_its_own_type(dtype: str) -> None:
    kind = np.dtype(dtype).type
    a, b = Buffer("A", (1,), dtype), Buffer("B", (1,), dtype)
    u, v = np.array([1 / 3], dtype), np.array([7.1], dtype)
    with np.errstate(all="ignore"):
        for op, wanted in {
            "add": u[0] + v[0],
            "sub": u[0] - v[0],
            "mul": u[0] * v[0],
            "div": u[0] / v[0],
            "min": u[0],
            "max": v[0],
            "pow": np.power(u[0], v[0]),
            "mod": np.mod(u[0], v[0]),
            "floordiv": kind(0),
        }.items():
            got = _value(Binary(op, a[0], b[0]), (a, u), (b, v))[0]
            assert got == wanted and got.dtype == np.dtype(dtype), op
    assert np.isinf(_value(Binary("div", a[0], const(0, dtype)), (a, u))[0])
    assert np.isnan(_value(Binary("max", a[0], const(math.nan, dtype)), (a, u))[0])


def test_bfloat16_is_rounded_after_every_operation() -> None:
    a, b = Buffer("A", (1,), "bfloat16"), Buffer("B", (1,), "bfloat16")
    one, tiny = np.array([1], np.float32), np.array([2.0**-8], np.float32)
    assert _value(Binary("add", a[0], b[0]), (a, one), (b, tiny))[0] == 1.0, "a tie goes to even"
    assert _value(Binary("add", a[0], b[0]), (a, one), (b, tiny * np.float32(1.5)))[0] == np.float32(1 + 2.0**-7)
    assert _value(cast("bfloat16", const(1 + 2.0**-8 + 2.0**-16, "float32")))[0] == np.float32(1 + 2.0**-7)
    assert _value(a[0] * const(1, "bfloat16"), (a, np.array([1.003], np.float32)))[0] == 1.0, "inputs are rounded too"
    assert np.isnan(_value(cast("bfloat16", const(math.nan, "float32")))[0])
    assert _value(Call("exp", (a[0],), "bfloat16"), (a, one))[0] == np.float32(2.71875)
    assert np.isinf(_value(cast("bfloat16", const(3.4e38, "float32")))[0])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integers_wrap_and_round_down(dtype: str) -> None:
    a, b = Buffer("A", (1,), dtype), Buffer("B", (1,), dtype)
    info = np.iinfo(dtype)
    top, three = np.array([info.max], dtype), np.array([3], dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _value(Binary("add", a[0], b[0]), (a, top), (b, three))[0] == info.min + 2
        assert _value(Binary("mul", a[0], b[0]), (a, top), (b, three))[0] == (top * three)[0]
    low = np.array([-7 % (info.max + 1) if info.min == 0 else -7], dtype)
    assert _value(Binary("floordiv", a[0], b[0]), (a, low), (b, three))[0] == int(low[0]) // 3
    assert _value(Binary("mod", a[0], b[0]), (a, low), (b, three))[0] == int(low[0]) % 3
    assert _value(Binary("shl", const(1, dtype), b[0]), (b, three))[0] == 8
    assert _value(Binary("shr", a[0], b[0]), (a, low), (b, three))[0] == int(low[0]) >> 3
    assert _value(Binary("bitxor", Binary("bitand", a[0], b[0]), Binary("bitor", a[0], b[0])), (a, low), (b, three))[0] == low[0] ^ three[0]


@pytest.mark.parametrize(
    ("e", "message"),
    [
        (Binary("pow", const(2, "int32"), const(-1, "int32")), "Integers to negative integer powers"),
    ],
)
def test_undefined_integer_operations_are_refused(e: Expr, message: str) -> None:
    with pytest.raises(InterpretError, match=f"function f computes something undefined: {message}"):
        _value(e)


def test_division_by_zero_is_zero_and_the_least_by_minus_one_is_itself() -> None:
    for dtype in ("int8", "int32", "int64", "uint8"):
        least = const(int(np.iinfo(dtype).min), dtype)
        for op in ("floordiv", "mod"):
            assert _value(Binary(op, const(7, dtype), const(0, dtype)))[0] == 0
        if least.value:
            assert _value(Binary("floordiv", least, const(-1, dtype)))[0] == least.value
            assert _value(Binary("mod", least, const(-1, dtype)))[0] == 0
    vector = Binary("mod", Broadcast(const(7, "int32"), 4), Cast("int32x4", Ramp(poly(4), poly(-2), 4)))
    np.testing.assert_array_equal(_value(vector), [3, 1, 0, -1])


def test_an_index_divisor_may_be_zero_or_negative() -> None:
    a, i = Buffer("A", (3, 4), "int64"), Var("i")
    stores = [store(a, (n, i), f(7, poly(i) - 1)) for n, f in enumerate((floordiv, mod, ceildiv))]
    assert _run(nest([(i, 4)], seq(stores)), params=(a,))[0].tolist() == [[-7, 0, 7, 3], [0, 0, 0, 1], [-7, 0, 7, 4]]


def test_comparisons_and_logic() -> None:
    a = Buffer("A", (3,))
    data = np.array([1.0, 2.0, math.nan], np.float32)
    for op, wanted in {"lt": [1, 0, 0], "le": [1, 1, 0], "gt": [0, 0, 0], "ge": [0, 1, 0], "eq": [0, 1, 0], "ne": [1, 0, 1]}.items():
        got = [_value(Binary(op, a[n], const(2, "float32")), (a, data))[0] for n in range(3)]
        assert got == [bool(w) for w in wanted], op
    yes, no = const(True, "bool"), const(False, "bool")
    assert _value(Binary("and", yes, Not(no)))[0] and not _value(Binary("or", no, Not(yes)))[0]


def test_logic_evaluates_both_sides() -> None:
    """Only Select guards: a load that lowered code executes must not be out of range here either."""
    a = Buffer("A", (2,), "bool")
    with pytest.raises(InterpretError, match=r"load of A\[2\] is out of range"):
        _value(Binary("and", const(False, "bool"), a[2]), (a, np.zeros(2, bool)))


def test_select_evaluates_only_the_chosen_side() -> None:
    a, b, i = Buffer("A", (3,)), Buffer("B", (5,)), Var("i")
    inside = Binary("and", less_than(0, i), less_than(i, 4))
    body = store(b, (i,), select(inside, a[x(i) - 1], -1.0))
    done = _run(nest([(i, 5)], body), np.array([5, 6, 7], np.float32), params=(a, b))
    np.testing.assert_array_equal(done[1], [-1, 5, 6, 7, -1])


def test_vector_select_evaluates_only_the_chosen_side_of_each_lane() -> None:
    """Lanes 0 and 5 of the load are out of range and not chosen; the scalar of the other side is out of range and never evaluated."""
    a, b = Buffer("A", (4,)), Buffer("B", (6,))
    outside = Binary("or", IsNegative(poly(-1), 6, ONE), IsNegative(poly(4), 6, poly(-1)))
    value = Select(outside, Broadcast(const(9, "float32"), 6), BufferLoad(a, (poly(-1),), 6))
    data = np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_array_equal(_run(BufferStore(b, (poly(0),), value), data, params=(a, b))[1], [9, 1, 2, 3, 4, 9])
    never = Select(IsNegative(poly(0), 6), Broadcast(a[77], 6), value)
    np.testing.assert_array_equal(_run(BufferStore(b, (poly(0),), never), data, params=(a, b))[1], [9, 1, 2, 3, 4, 9])
    swapped = Select(Not(outside), Broadcast(const(9, "float32"), 6), BufferLoad(a, (poly(-1),), 6))
    with pytest.raises(InterpretError, match=r"vector load of A\[-1\] is out of range"):
        _run(BufferStore(b, (poly(0),), swapped), data, params=(a, b))


def test_nested_vector_selects_narrow_the_lanes() -> None:
    a, b = Buffer("A", (2,)), Buffer("B", (4,))
    inner = Select(IsNegative(poly(-2), 4, ONE), BufferLoad(a, (poly(0),), 4), Broadcast(const(5, "float32"), 4))
    value = Select(IsNegative(poly(-3), 4, ONE), inner, Broadcast(const(8, "float32"), 4))
    np.testing.assert_array_equal(_run(BufferStore(b, (poly(0),), value), np.array([1, 2], np.float32), params=(a, b))[1], [1, 2, 5, 8])


def test_masked_and_strided_vectors() -> None:
    a, b, n = Buffer("A", (2, 8)), Buffer("B", (9,)), Var("n")
    loaded = BufferLoad(a, (ONE, poly(1)), 4, poly(2), x(n))
    body = BufferStore(b, (poly(8),), loaded, poly(-2), x(n) + 1)
    data = np.arange(16, dtype=np.float32).reshape(2, 8)
    done = _run(body, data, np.full(9, -1, np.float32), params=(a, b, n), values={n: 2})
    np.testing.assert_array_equal(done[1], [-1, -1, -1, -1, 0, -1, 11, -1, 9])


def test_ramp_broadcast_and_index_conditions() -> None:
    np.testing.assert_array_equal(_value(Ramp(poly(5), poly(-2), 4)), [5, 3, 1, -1])
    np.testing.assert_array_equal(_value(Broadcast(const(7, "int8"), 3)), [7, 7, 7])
    np.testing.assert_array_equal(_value(IsNegative(poly(-2), 4, ONE)), [True, True, False, False])
    np.testing.assert_array_equal(_value(IsNegative(poly(-2), 4)), [True, True, False, False])
    assert _value(IsNegative(poly(-1)))[0]


@pytest.mark.parametrize(
    ("to", "value", "dtype", "wanted"),
    [
        ("int32", -2.7, "float32", -2),
        ("int32", 2.7, "float64", 2),
        ("int8", 300, "int32", 44),
        ("uint8", -1, "int32", 255),
        ("float32", 16777217, "int64", 16777216.0),
        ("float16", 70000.0, "float32", math.inf),
        ("bool", 0.5, "float32", True),
        ("float32", True, "bool", 1.0),
        ("int64", True, "bool", 1),
    ],
)
def test_casts(to: str, value: Any, dtype: str, wanted: Any) -> None:
    assert _value(Cast(to, const(value, dtype)))[0] == wanted


def test_a_cast_of_nan_to_an_integer_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _value(Cast("int32", const(math.nan, "float32")))


@pytest.mark.parametrize(
    "name",
    [
        n
        for n, i in INTRINSICS.items()
        if not i.reduces and not i.effect and not i.operands and n not in ("reinterpret", "isnan", "concat16")
    ],
)
def test_intrinsics_agree_with_their_table(name: str) -> None:
    known = INTRINSICS[name]
    args = [np.float32(0.5), np.float32(2), np.float32(-0.75)][: known.arity]
    with np.errstate(all="ignore"):
        wanted = known.numpy(*args)
    got = _value(call(name, *[const(float(a), "float32") for a in args]))[0]
    assert got == np.float32(wanted)
    vector = _value(Call(name, tuple([Broadcast(const(float(a), "float32"), 2) for a in args]), "float32x2"))
    np.testing.assert_array_equal(vector, [got, got])


def test_vectors_are_concatenated() -> None:
    rows = Buffer("R", (48,), "int16")
    loads = tuple([BufferLoad(rows, (poly(3 * n),), 2, ONE) for n in range(16)])
    got = _value(Call("concat16", loads, "int16x32"), (rows, np.arange(48, dtype=np.int16)))
    np.testing.assert_array_equal(got, [x for n in range(16) for x in (3 * n, 3 * n + 1)])


def test_dot_products_of_lanes() -> None:
    total, bytes_, signed = Buffer("T", (2,), "int32"), Buffer("A", (8,), "uint8"), Buffer("B", (8,), "int8")
    given = [
        (total, np.array([10, 2**31 - 1], np.int32)),
        (bytes_, np.array([1, 2, 3, 255, 1, 0, 0, 0], np.uint8)),
        (signed, np.array([1, -1, 2, -128, 1, 9, 9, 9], np.int8)),
    ]
    loads = tuple([BufferLoad(b, (poly(0),), len(data)) for b, data in given])
    np.testing.assert_array_equal(_value(Call("vpdpbusd", loads, "int32x2"), *given), [10 + 1 - 2 + 6 - 255 * 128, -(2**31)])


def test_isnan_and_reductions() -> None:
    a = Buffer("A", (4,))
    data = np.array([1, 4, -2, 3], np.float32)
    vector = BufferLoad(a, (poly(0),), 4)
    for name, wanted in (("reduce_add", 6), ("reduce_max", 4), ("reduce_min", -2)):
        assert _value(Call(name, (vector,), "float32"), (a, data))[0] == wanted
    assert _value(Call("isnan", (const(math.nan, "float32"),), "bool"))[0]
    assert not _value(Call("isnan", (a[0],), "bool"), (a, data))[0]


@pytest.mark.parametrize(
    ("value", "dtype", "to", "wanted"),
    [
        (1.0, "float32", "int32", 0x3F800000),
        (0x3F800000, "int32", "float32", 1.0),
        (0x3F80, "uint16", "bfloat16", 1.0),
        (-2.0, "bfloat16", "uint16", 0xC000),
    ],
)
def test_reinterpret_keeps_the_bits(value: Any, dtype: str, to: str, wanted: Any) -> None:
    assert _value(Call("reinterpret", (const(value, dtype),), to))[0] == wanted


def test_reinterpret_of_vectors() -> None:
    e = Call("reinterpret", (Broadcast(const(1.0, "float32"), 3),), "uint32x3")
    np.testing.assert_array_equal(_value(e), [0x3F800000] * 3)


def test_prefetch_has_no_effect_even_out_of_range() -> None:
    a = Buffer("A", (2,))
    done = _run(
        seq([store(a, (0,), const(1, "float32")), Evaluate(Call("prefetch", (a[99],), "float32"))]), np.zeros(2, np.float32), params=(a,)
    )
    np.testing.assert_array_equal(done[0], [1, 0])


def test_an_evaluated_expression_is_checked() -> None:
    a = Buffer("A", (2,))
    with pytest.raises(InterpretError, match=r"load of A\[2\] is out of range"):
        _run(Evaluate(a[2]), params=(a,))


# ---- random expressions, lane by lane and as one vector


class _Random:
    """A random expression, either scalar at loop variable i or a vector of eight lanes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        rng = stream(seed, "fuzz", "interpret")
        self.dtype = ("float32", "int32", "uint8", "bfloat16", "float16")[int(rng.integers(5))]
        self.ops = ("add", "sub", "mul", "min", "max", *(("div",) if "float" in self.dtype else ("bitand", "bitxor")))
        self.buffers = (Buffer("A", (8,), self.dtype), Buffer("B", (8,), self.dtype))
        self.i = Var("i")
        held = "float32" if self.dtype == "bfloat16" else self.dtype
        self.data = [rng.integers(1, 9, 8).astype(held) for _ in range(2)]

    def grow(self, depth: int, lanes: int, path: str = "") -> Expr:
        draw = stream(self.seed, "node", path)
        if depth == 0:
            pick = int(draw.integers(3))
            if pick == 2:
                c = const(int(draw.integers(1, 5)), self.dtype)
                return Broadcast(c, lanes) if lanes > 1 else c
            return BufferLoad(self.buffers[pick], (poly(0) if lanes > 1 else x(self.i),), lanes)
        left, right = self.grow(depth - 1, lanes, path + "l"), self.grow(depth - 1, lanes, path + "r")
        if draw.random() < 0.25:
            cond = Binary(("lt", "ge", "eq")[int(draw.integers(3))], left, right)
            return Select(cond, self.grow(depth - 1, lanes, path + "s"), right)
        return Binary(self.ops[int(draw.integers(len(self.ops)))], left, right)


def test_fuzz_scalar_and_vector_evaluation_agree() -> None:
    for seed in range(150):
        made = _Random(seed)
        out = Buffer("O", (8,), made.dtype)
        params = (*made.buffers, out)
        scalar = run(PrimFunc("f", params, (), For(made.i, poly(8), store(out, (made.i,), made.grow(3, 1)))), made.data)[2]
        vector = run(PrimFunc("f", params, (), BufferStore(out, (poly(0),), made.grow(3, 8))), made.data)[2]
        np.testing.assert_array_equal(scalar, vector)


def test_shared_expressions_are_evaluated_once_in_each_statement() -> None:
    """2**60 additions as a tree; the sides of a Select do not share computed values."""
    a, b = Buffer("A", (2,), "int64"), Buffer("B", (2,), "int64")
    e: Expr = a[0]
    for _ in range(60):
        e = Binary("add", e, e)
    shared = Binary("add", a[0], a[1])
    body = seq(
        [store(b, (0,), e), store(a, (0,), poly(7)), store(b, (1,), select(const(False, "bool"), shared, Binary("mul", shared, shared)))]
    )
    done = run(PrimFunc("f", (a, b), (), body), [np.array([1, 2])])
    assert done[1].tolist() == [2**60, 81]


def test_a_param_may_be_an_index_value() -> None:
    p, a = Param("p", (2, 3)), Buffer("A", (1,), "int64")
    assert run(PrimFunc("f", (a,), (), store(a, (0,), x(p) * 5)), [], {p: 3})[0].tolist() == [15]


def test_constants_of_every_type() -> None:
    for dtype, value in (("int8", -3), ("uint64", 2**63), ("bool", True), ("float16", 0.5), ("bfloat16", 1.0), ("int64", -(2**63))):
        assert _value(Const(value, dtype))[0] == value
