"""Test the parser: round trips of everything that prints, and other notations that users write."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tunesmith
from tunesmith.ir import structural
from tunesmith.ir.buffer import Buffer, BufferLoad, load
from tunesmith.ir.expr import ARITHMETIC, COMPARISONS, Binary, Broadcast, Call, Cast, Const, Expr, IsNegative, Not, Ramp, Select, select
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import MAKE, Param, Poly, Var, less_than, poly, substitute
from tunesmith.ir.script.diagnostics import SourceError
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.printer import script
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import Allocate, Block, BufferStore, Evaluate, For, If, Iter, Seq, Stmt, barrier, store
from tunesmith.ir.visit import blocks_under

N = 512
HALF = 0.5
DTYPE = "float32"


def assert_round_trip(f: PrimFunc | IRModule) -> None:
    """Assert that printing and parsing are inverse to each other."""
    text = script(f)
    again = parse(text)
    assert structural.difference(again, f) is None, text
    assert script(again) == text


def assert_means(text: str, other: str) -> None:
    """Assert that two bodies of a function of A: float32[8, 8], K: int64[8] and the size n are the same program."""
    assert structural.difference(parse(function(text)), parse(function(other))) is None


def function(body: str) -> str:
    lines = "\n".join("    " + line for line in body.split("\n"))
    return f'@T.prim_func\ndef f(A: T.Buffer((8, 8), "float32"), K: T.Buffer((8,), "int64"), n: T.int64):\n{lines}\n'


# ---- round trips -----------------------------------------------------------------------------------------------------


def test_programs_of_the_test_suite(programs: ModuleType) -> None:
    p = programs
    made = [
        p.matmul(4, 5, 6),
        p.matmul_bias_relu(4, 5, 6),
        p.conv_relu(1, 6, 6, 2, 3),
        p.softmax(3, 4),
        p.tiled_matmul(7, 5, 6, *p.tile_params()),
    ]
    funcs = [m.func for m in made]
    for f in funcs:
        assert_round_trip(f)
    assert_round_trip(IRModule({f"f{n}": f for n, f in enumerate(funcs)}))


def test_param_domains_and_names() -> None:
    p, q = Param("my tile", [1, 2, 4]), Param("q", range(3, 90, 3))
    a, i = Buffer("A", (poly(p),)), Var("i")
    f = PrimFunc("f", (a, q), (), For(i, poly(p) + q, store(a, (i,), Const(0.0, "float32"))))
    assert_round_trip(f)
    again = parse(script(f))
    assert isinstance(again, PrimFunc)
    found = again.params[1]
    assert isinstance(found, Param) and found.domain == q.domain


_V = {n: Var(n) for n in "ijkn"}
_P = [Param("t", [1, 2, 4]), Param("u", range(1, 20))]
_ATOMS: list[Var] = [*_V.values(), *_P]
_SIZES: list[Var] = [_V["n"], *_P]


@st.composite
def polys(draw: st.DrawFn, depth: int = 3) -> Poly:
    """Index expressions, built by the constructors."""
    if depth == 0 or draw(st.booleans()):
        return poly(draw(st.sampled_from(_ATOMS) | st.integers(-9, 300)))
    a: Poly = draw(polys(depth=depth - 1))
    op = draw(st.sampled_from(["add", "sub", "mul", *MAKE]))
    if op in ("floordiv", "mod", "ceildiv"):
        d: Poly = poly(draw(st.integers(1, 9))) * draw(st.sampled_from([poly(1), *map(poly, _SIZES)])) + draw(st.integers(0, 1))
        return MAKE[op](a, d)
    b: Poly = draw(polys(depth=depth - 1))
    return a + b if op == "add" else a - b if op == "sub" else a * b if op == "mul" else MAKE[op](a, b)


_SAME = {v: poly(v) for v in _ATOMS}


def stable(p: Poly) -> bool:
    """Whether the normal form of `p` is its own normal form: T.max(i + T.max(t, u), i + v) is not."""
    return substitute(p, _SAME) == p


_A = Buffer("A", (8, 8))
_B = {d: Buffer(d.upper(), (64,), d) for d in ("float32", "int64", "int32", "uint8", "bool")}
_F = st.floats(width=32)


def _consts(dtype: str) -> st.SearchStrategy[Any]:
    if dtype == "float32":
        return _F.map(lambda x: Const(x, "float32"))
    if dtype == "bool":
        return st.booleans().map(lambda x: Const(x, "bool"))
    return st.integers(0, 100).map(lambda x: Const(x, dtype))


@st.composite
def values(draw: st.DrawFn, dtype: str = "float32", depth: int = 3) -> Expr:
    """Value expressions of every node kind."""
    index = polys(depth=1).filter(stable)
    if depth == 0:
        kinds = [lambda: draw(_consts(dtype)), lambda: load(_B[dtype], draw(index))]
        if dtype == "int64":
            kinds.append(lambda: draw(index))
        return draw(st.sampled_from(kinds))()  # type: ignore[no-any-return]

    def sub(d: str = dtype) -> Any:
        return draw(values(d, depth - 1))

    if dtype == "bool":
        kind = draw(st.sampled_from(["below", "compare", "logic", "not", "select", "leaf"]))
        if kind == "below":
            return IsNegative(draw(index))
        if kind == "compare":
            d = draw(st.sampled_from(["float32", "int64", "int32", "bool"]))
            return Binary(draw(st.sampled_from(COMPARISONS)), sub(d), sub(d))
        if kind == "logic":
            return Binary(draw(st.sampled_from(["and", "or"])), sub(), sub())
        if kind == "not":
            return Not(sub())
    else:
        kind = draw(st.sampled_from(["binary", "binary", "select", "cast", "call", "leaf"]))
        if kind == "binary":
            ops = [
                o for o in ARITHMETIC if (o == "div") <= (dtype == "float32") and (dtype != "float32" or not o.startswith(("bit", "sh")))
            ]
            return Binary(draw(st.sampled_from(ops)), sub(), sub())
        if kind == "cast":
            return Cast(dtype, sub(draw(st.sampled_from(list(_B)))))
        if kind == "call":
            of_floats = [("exp", 1), ("fma", 3)] if dtype == "float32" else []
            name, arity = draw(st.sampled_from([*of_floats, ("abs", 1), ("reduce_add", 1)]))
            args = [Broadcast(sub(), 4)] if name == "reduce_add" else [sub() for _ in range(arity)]
            return Call(name, tuple(args), dtype)
    if kind == "select":
        return Select(sub("bool"), sub(), sub())
    return draw(values(dtype, 0))


def enclosed(body: Stmt) -> PrimFunc:
    """A function with `body`, in which all variables of these tests are bound."""
    for v in "kji":
        body = For(_V[v], poly(8), body)
    return PrimFunc("f", (_A, *_B.values(), *_SIZES), (), body)


@settings(max_examples=120)
@given(polys().filter(stable), polys().filter(stable))
def test_index_round_trip(p: Poly, q: Poly) -> None:
    body: Stmt = BufferStore(_A, (p, q), BufferLoad(_A, (q, p), 4, p, q))
    if stable(p - q):
        body = If(IsNegative(p - q), body)
    assert_round_trip(enclosed(body))


@settings(max_examples=120)
@given(st.sampled_from(list(_B)).flatmap(lambda d: st.tuples(st.just(d), values(d))))
def test_value_round_trip(case: tuple[str, Expr]) -> None:
    assert_round_trip(enclosed(BufferStore(_B[case[0]], (poly(_V["i"]),), case[1])))


@st.composite
def statements(draw: st.DrawFn, depth: int = 3) -> Stmt:
    """Statements of every kind, as in lowered programs."""
    kind = draw(st.sampled_from(["for", "if", "seq", "allocate", "vector", "evaluate", "barrier", "store"])) if depth else "store"
    index = polys(depth=1).filter(stable)

    def sub() -> Stmt:
        return draw(statements(depth=depth - 1))

    if kind == "for":
        how = draw(
            st.sampled_from([("serial", None), ("parallel", None), ("unrolled", None), ("vectorized", None), ("thread", "blockIdx.x")])
        )
        notes = draw(st.sampled_from([(), (("k", "text"), ("n", poly(_V["n"])))]))
        return For(Var("x"), poly(draw(st.sampled_from(_SIZES))), sub(), *how, notes)
    if kind == "if":
        return If(draw(values("bool", 1)), sub(), sub() if draw(st.booleans()) else None)
    if kind == "seq":
        return Seq(tuple([sub() for _ in range(draw(st.integers(1, 3)))]))
    if kind == "allocate":
        return Allocate(
            Buffer("x", (4,), draw(st.sampled_from(list(_B))), draw(st.sampled_from(["register", "workspace", "global"]))), sub()
        )
    if kind == "vector":
        ramp = Ramp(draw(index), draw(index), 4)
        chosen = Select(IsNegative(draw(index), 4, draw(index)), ramp, Const(3, "int64x4"))
        return BufferStore(_B["int64"], (draw(index),), chosen, draw(st.none() | index), draw(st.none() | index))
    if kind == "barrier":
        return barrier()
    if kind == "evaluate":
        return Evaluate(Call("prefetch", (load(_B["float32"], draw(index)),), "float32"))
    return BufferStore(_B["float32"], (draw(index),), draw(values("float32", 1)))


@settings(max_examples=80)
@given(statements())
def test_statement_round_trip(s: Stmt) -> None:
    assert_round_trip(enclosed(s))


@pytest.mark.parametrize("pad", [0, 3, poly(Param("p", (1, 2))) * 2])
def test_padded_rows_round_trip(pad: Poly | int) -> None:
    """For allocations of the function and of its body."""
    i = Var("i")
    tile, own = Buffer("S", (4, 8), scope="shared", pad=pad), Buffer("L", (2, 4), scope="local", pad=pad)
    body = Allocate(own, Seq((store(tile, (i, i), load(own, 0, 1)), store(own, (0, i), load(tile, i, 0)))))
    f = PrimFunc("f", (Buffer("A", (4,)),), (tile,), For(i, poly(4), body, "thread", "threadIdx.x"))
    assert_round_trip(f)
    assert (", pad=" in script(f)) == (pad != 0)
    found = parse(script(f))
    assert found.allocs[0].pad == tile.pad or isinstance(pad, Poly)
    assert found.allocs[0].strides == (8 + found.allocs[0].pad, poly(1))


@pytest.mark.parametrize("factor", [poly(16), poly(Param("p", (8, 16)))])
def test_aligned_strides_round_trip(factor: Poly) -> None:
    i = Var("i")
    tile = Buffer("S", (3, 4, 10), scope="shared", align=[(-2, factor, 5), (-3, 64, 0)])
    f = PrimFunc("f", (Buffer("A", (4,)),), (tile,), For(i, poly(4), store(tile, (0, i, i), load(tile, 1, i, 0)), "thread", "threadIdx.x"))
    assert_round_trip(f)
    (found,) = parse(script(f)).allocs
    assert [(a.axis, a.offset) for a in found.align] == [(-3, 0), (-2, 5)]
    assert structural.difference(f, f.with_(allocs=(tile.like(align=[]),))) is not None


@pytest.mark.parametrize("align", ["[(-2, 8)]", "[8]", "8", "[(n, 8, 0)]"])
def test_malformed_alignments(align: str) -> None:
    text = f"""
@T.prim_func
def f(A: T.Buffer((n,), "float32"), n: T.int64):
    S = T.alloc_buffer((4, 8), "float32", align={align})
    A[0] = S[0, 0]
"""
    with pytest.raises(SourceError, match=r"an alignment is \(axis, factor, offset\)"):
        parse(text)


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
def test_shuffles_and_barriers_round_trip(n: int) -> None:
    a, t = Buffer("A", (32,)), Var("t")
    body = Seq((store(a, (t,), Call(f"shuffle_xor_{n}", (load(a, t),), "float32")), barrier(), store(a, (31 - poly(t),), load(a, t))))
    f = PrimFunc("f", (a,), (), For(t, poly(32), body, "thread", "threadIdx.x"))
    assert_round_trip(f)
    assert f"T.shuffle_xor_{n}(A[t])" in script(f) and "T.barrier()" in script(f)


def test_block_in_a_block() -> None:
    i, j, vi, vo, wi = Var("i"), Var("j"), Var("vi"), Var("vo"), Var("vi")
    inner = Block(
        "inner",
        (Iter(wi, poly(64), "S"),),
        (poly(vo) * 8 + j,),
        (poly(vo) - 7, poly(j) - vi),
        None,
        store(_A, (0, wi), Const(0.0, "float32")),
    )
    outer = Block(
        "outer", (Iter(vo, poly(8), "S"), Iter(vi, poly(8), "R")), (poly(i), poly(i)), (), None, For(j, poly(8), inner), (("a", "b"),)
    )
    assert_round_trip(PrimFunc("f", (_A,), (), For(i, poly(8), outer)))


# ---- notations of users ----------------------------------------------------------------------------------------------


@T.prim_func
def matmul(A: T.Buffer((N, N), DTYPE), B: T.Buffer((N, N)), C: T.Buffer((N, N), dtype="float32")):
    """C = A B / 2."""
    for i, j, k in T.grid(N, N, N):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] += A[vi, vk] * B[vk, vj] * HALF


def test_the_decorator_reads_the_source() -> None:
    assert isinstance(matmul, PrimFunc) and matmul.name == "matmul"
    (block,) = blocks_under(matmul.body)
    assert [i.kind for i in block.iters] == ["S", "S", "R"] and block.iters[0].extent == N
    assert script(block.body) == "C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj] * T.float32(0.5)"
    assert_round_trip(matmul)


def test_the_decorator_sees_closures_and_locals() -> None:
    m = np.int64(6)
    rows = 4  # used in an annotation only, so Python creates no closure cell for it

    @T.prim_func(name="scale-rows")
    def f(A: T.Buffer((rows, m)), n: T.int64, B: "T.Buffer((n + 1,))"):  # noqa: UP037
        for i in range(m):
            A[0, i] = A[0, i] * 2
            B[n] = 0

    assert f.name == "scale-rows"
    assert script(f).splitlines()[1:3] == [
        'def scale_rows(A: T.Buffer((4, 6), "float32"), n: T.int64, B: T.Buffer((n + 1,), "float32")):',
        "    for i in T.serial(6):",
    ]


def test_a_module_class() -> None:
    @T.ir_module
    class Module:
        """Two functions."""

        @T.prim_func
        def first(A: T.Buffer((4,))):
            A[0] = 1.0

        @T.prim_func
        def second(A: T.Buffer((4,))):
            A[1] = 1.0

    assert isinstance(Module, IRModule) and list(Module) == ["first", "second"]
    assert_round_trip(Module)


def test_the_namespace_may_have_another_name() -> None:
    import tunesmith.ir.script.syntax as S

    @S.prim_func
    def f(A: S.Buffer((4,))):
        for i in S.parallel(4):
            A[i] = S.exp(A[i])

    assert "for i in T.parallel(4):" in script(f)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("A[0, 0] = 1", "A[0, 0] = T.float32(1.0)"),
        ("K[0] = 1", "K[0] = T.int64(1)"),
        ("A[0, 0] += 2", "A[0, 0] = A[0, 0] + T.float32(2.0)"),
        ("A[0, 0] -= 1 / 4", "A[0, 0] = A[0, 0] - T.float32(0.25)"),
        ("K[0] //= 2", "K[0] = K[0] // T.int64(2)"),
        ("K[0] <<= 2", "K[0] = K[0] << T.int64(2)"),
        ("for i in range(n):\n    A[i, 0] = 0", "for i in T.serial(n):\n    A[i, 0] = 0"),
        ("for i, j in T.grid(n, 8):\n    A[i, j] = 0", "for i in range(n):\n    for j in range(8):\n        A[i, j] = 0"),
        ("for i in T.serial(4, 68):\n    A[i, 0] = 0", "for i in range(64):\n    A[i + 4, 0] = 0"),
        ("for i in range(n, 2 * n + 1):\n    A[i, 0] = 0", "for i in range(n + 1):\n    A[i + n, 0] = 0"),
        (
            'for i in T.thread_binding(0, 8, thread="threadIdx.x"):\n    A[i, 0] = 0',
            'for i in T.thread_binding(8, "threadIdx.x"):\n    A[i, 0] = 0',
        ),
        ("for i in T.unrolled(4):\n    A[i, 0] = 0", "for i in T.unroll(4):\n    A[i, 0] = 0"),
        ("if 0 <= n < 5 and not n == 3:\n    A[0, 0] = 0", "if (0 < n + 1 and n < 5) and n != 3:\n    A[0, 0] = 0"),
        ("if n > 3 or n >= 9:\n    A[0, 0] = 0", "if 3 < n or 8 < n:\n    A[0, 0] = 0"),
        ("A[0, 0] = A[0, 1] if n < 3 else 0", "A[0, 0] = T.select(n < 3, A[0, 1], 0.0)"),
        ("A[0, 0] = T.if_then_else(n < 3, 1.0, A[0, 1])", "A[0, 0] = T.select(n < 3, T.float32(1), A[0, 1])"),
        ("A[0, 0] = T.float32(K[0])", 'A[0, 0] = T.cast("float32", K[0])'),
        ('A[0, 0] = T.Cast(K[0], "float32")', 'A[0, 0] = T.cast("float32", K[0])'),
        ("A[0, 0] = T.max(A[0, 1], A[0, 2], 0)", "A[0, 0] = T.max(T.max(A[0, 1], A[0, 2]), T.float32(0.0))"),
        ("A[0, 0] = A[0, 1] ** 2", "A[0, 0] = T.pow(A[0, 1], T.float32(2))"),
        ("A[0, 0] = T.fma(A[0, 1], 2, 1.5)", "A[0, 0] = T.fma(A[0, 1], T.float32(2), T.float32(1.5))"),
        ("A[0, 0] = -A[0, 1]", "A[0, 0] = T.float32(0.0) - A[0, 1]"),
        ("A[0, 0] = +A[0, 1]", "A[0, 0] = A[0, 1]"),
        ("A[T.int64(3), True + 1] = 0", "A[3, 2] = 0"),
        ("A[T.min(3, 4), T.ceildiv(9, 8)] = 0", "A[3, 2] = 0"),
        ("T.prefetch(A[0, 0])", "T.evaluate(T.prefetch(A[0, 0]))"),
        ('b = T.allocate(4, "float32")\nb[0] = 1', 'with T.allocate((4,), "float32") as b:\n    b[0] = 1'),
        ("K[0] = n ** 2", "K[0] = T.pow(n, T.int64(2))"),
    ],
)
def test_conveniences(typed: str, meant: str) -> None:
    assert_means(typed, meant)


def in_block(lines: str) -> str:
    body = "\n".join("        " + line for line in lines.split("\n"))
    return f'for i, j in T.grid(8, 8):\n    with T.block("b"):\n{body}'


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ('v, w = T.axis.remap("SR", [i, j])\nA[v, w] = 0', "v = T.axis.spatial(8, i)\nw = T.axis.reduce(8, j)\nA[v, w] = 0"),
        ("v = T.axis.S(8, i)\nw = T.axis.R(8, j)\nA[v, w] = 0", "v = T.axis.spatial(8, i)\nw = T.axis.reduce(8, j)\nA[v, w] = 0"),
        ("v = T.axis.scan(8, i)\nw = T.axis.opaque(8, j)\nA[v, w] = 0", "v = T.axis.spatial(8, i)\nw = T.axis.spatial(8, j)\nA[v, w] = 0"),
        ("v = T.axis.spatial((2, 10), i + 2)\nA[v, 0] = 0", "v = T.axis.spatial(8, i)\nA[v + 2, 0] = 0"),
        (
            "v = T.axis.spatial(8, i)\nT.where(0 <= i < 7 and j > 2)\nA[v, 0] = 0",
            "v = T.axis.spatial(8, i)\nT.where(0 < i + 1)\nT.where(i < 7)\nT.where(2 < j)\nA[v, 0] = 0",
        ),
        (
            "v = T.axis.spatial(8, i)\nT.where(i == n)\nA[v, 0] = 0",
            "v = T.axis.spatial(8, i)\nT.where(i <= n)\nT.where(n <= i)\nA[v, 0] = 0",
        ),
    ],
)
def test_block_conveniences(typed: str, meant: str) -> None:
    assert_means(in_block(typed), in_block(meant))


def test_remap_of_a_shifted_loop_keeps_the_block_zero_based() -> None:
    program = """for i in range({start}{stop}):
    with T.block("b"):
        v = {axis}
        with T.init():
            A[0, 0] = 0
        A[0, 0] += A[0, v{shift}]"""
    text = program.format(start="2, ", stop=6, axis='T.axis.remap("R", [i])', shift="")
    assert_means(text, program.format(start="", stop=4, axis="T.axis.reduce(4, i)", shift=" + 2"))


def test_literals_keep_their_value() -> None:
    f = parse(function('A[0, 0] = T.float32("nan")\nA[0, 1] = -T.float32("inf")\nA[0, 2] = -0.0\nA[0, 3] = 1e300 * 1e300'))
    assert isinstance(f, PrimFunc) and isinstance(f.body, Seq)
    texts = [repr(s.value.value) for s in f.body.stmts if isinstance(s, BufferStore) and isinstance(s.value, Const)]
    assert texts == ["nan", "-0.0", "inf"]


def test_an_allocation_reaches_to_the_end_of_its_body() -> None:
    f = parse(function('A[0, 0] = 0\nb = T.allocate((4,), "float32")\nb[0] = 1\nA[0, 1] = b[0]'))
    assert isinstance(f, PrimFunc) and isinstance(f.body, Seq) and len(f.body.stmts) == 2
    inner = f.body.stmts[1]
    assert isinstance(inner, Allocate) and isinstance(inner.body, Seq) and len(inner.body.stmts) == 2


def test_index_conditions_become_is_negative() -> None:
    f = parse(function("if n + 3 < 8:\n    A[0, 0] = 0"))
    assert isinstance(f, PrimFunc) and isinstance(f.body, If) and isinstance(f.body.cond, IsNegative)
    (n,) = [p for p in f.params if isinstance(p, Var)]
    assert f.body.cond.index == poly(n) - 5


def test_select_reads_back_with_its_guard() -> None:
    i = poly(_V["i"])
    f = enclosed(store(_A, (0, 0), select(Binary("and", less_than(0, i), less_than(i, 7)), load(_A, i - 1, 0), 0)))
    assert_round_trip(f)


def test_words_of_the_namespace_exist_and_raise_when_called() -> None:
    from tunesmith.ir.script import syntax
    from tunesmith.support.errors import ScriptError

    for name in syntax.__all__:
        assert getattr(T, name) is not None
    for name in ("grid", "block", "exp", "select"):
        with pytest.raises(ScriptError, match=rf"T\.{name} may be used only in functions decorated with @T.prim_func"):
            getattr(T, name)(1)
    for name in ("spatial", "S", "R"):
        with pytest.raises(ScriptError, match=rf"T\.axis\.{name} may be used only in functions"):
            getattr(T.axis, name)(8, 1)
    with pytest.raises(AttributeError, match=r"the script has no T\.nonsense"):
        _ = T.nonsense
    for module in (T, tunesmith.script):
        with pytest.raises(AttributeError, match=r"the script has no T\.match_buffer: declare the parameter itself as a buffer"):
            _ = module.match_buffer


def test_import_lines_around_a_function_are_left_out() -> None:
    text = "@T.prim_func\ndef f(A: T.Buffer((4,))):\n    for i in range(4):\n        A[i] = 1.0\n"
    assert str(parse("from tunesmith import script as T\nimport numpy\n\n" + text)) == str(parse(text))
