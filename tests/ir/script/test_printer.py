"""Test the printer: notation of every node, names, and independence of the creation order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.ir import structural
from tunesmith.ir.buffer import Buffer, BufferLoad, load
from tunesmith.ir.expr import Binary, Broadcast, Call, Cast, Const, Expr, IsNegative, Not, Ramp, Select, binary, const, equal
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.node import node
from tunesmith.ir.poly import Param, Poly, Var, ceildiv, floordiv, less_than, maximum, minimum, mod, poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.printer import script
from tunesmith.ir.stmt import Allocate, Block, BufferStore, Evaluate, For, If, Iter, Seq, Stmt, nest, store
from tunesmith.ir.visit import blocks_under, substitute
from tunesmith.ops import tensor_expression as te
from tunesmith.schedule.schedule import Schedule, replay
from tunesmith.support.errors import ScriptError

Golden = Callable[..., None]


def matmul(order: str = "ijk") -> PrimFunc:
    """A tiled matmul with a guard; `order` is the creation order of its variables."""
    v = {n: Var(n) for n in order}
    inner = {n: Var(n + "_1") for n in reversed(order)}
    blocks = {n: Var("v" + n) for n in order}
    a, b, c = (Buffer(n, (509, 509)) for n in "ABC")
    vi, vj, vk = (poly(blocks[n]) for n in "ijk")
    i = poly(v["i"]) * 8 + poly(inner["i"])
    block = Block(
        "C",
        tuple(Iter(blocks[n], poly(509), kind) for n, kind in zip("ijk", "SSR", strict=True)),
        (i, poly(v["j"]), poly(v["k"])),
        (i - 509,),
        store(c, (vi, vj), const(0, "float32")),
        store(c, (vi, vj), c[vi, vj] + a[vi, vk] * b[vk, vj]),
        (("tile", poly(8)), ("why", 'to "show" it')),
    )
    body = For(
        v["i"],
        poly(64),
        For(v["j"], poly(509), For(inner["i"], poly(8), For(v["k"], poly(509), block)), "parallel", None, (("grain", poly(2)),)),
    )
    return PrimFunc("matmul", (a, b, c), (), body, (("layout", "row"), ("level", poly(3))))


def test_schedulable_program(assert_golden: Golden) -> None:
    assert_golden(script(matmul()))


def test_creation_order_does_not_matter() -> None:
    assert script(matmul("ijk")) == script(matmul("kji")) == script(matmul("jik"))


def test_str_of_a_function_is_its_script() -> None:
    f = matmul()
    assert str(f) == script(f)


def test_every_kind_of_loop(assert_golden: Golden) -> None:
    a = Buffer("A", (4,))
    body: Stmt = store(a, (0,), const(1.5, "float32"))
    for kind, thread in [("serial", None), ("vectorized", None), ("unrolled", None), ("parallel", None), ("thread", "threadIdx.x")]:
        body = For(Var(kind[0]), poly(4), body, kind, thread)
    assert_golden(script(PrimFunc("loops", (a,), (), body)))


def test_triangular_loops_are_no_grid() -> None:
    a, i, j, k = Buffer("A", (8,)), Var("i"), Var("j"), Var("k")
    text = script(nest([(i, 8), (j, poly(i) + 1), (k, 8)], store(a, (j,), const(0, "float32"))))
    assert text.splitlines()[:2] == ["for i in T.serial(8):", "    for j, k in T.grid(i + 1, 8):"]


def test_lowered_program(assert_golden: Golden) -> None:
    n, i, p = Var("n"), Var("i"), Param("lanes", [4, 8])
    a, b = Buffer("A", (poly(n),)), Buffer("B", (poly(n), 2), "int64")
    x, y = Buffer("x", (4,), "float32", "register"), Buffer("y", (), "bool", "workspace")
    at = poly(i) * 4
    left = minimum(poly(n) - at, 4)
    vector = BufferLoad(a, (at,), 4, poly(1), left)
    stores: list[Stmt] = [
        BufferStore(x, (poly(0),), Call("fma", (vector, Broadcast(const(2.0, "float32"), 4), vector), "float32x4")),
        Allocate(y, store(y, (), equal(poly(i), poly(n)))),
        If(
            Not(Binary("and", BufferLoad(x, (poly(0),)) < 0.5, less_than(i, 3))),
            BufferStore(a, (at,), BufferLoad(x, (poly(0),), 4), poly(1), left),
            If(equal(poly(i), 5), Evaluate(Call("prefetch", (load(a, at),), "float32")), store(b, (i, 0), poly(i) + 1)),
        ),
        BufferStore(b, (at, poly(1)), Ramp(at, poly(p), 4), poly(2)),
        BufferStore(b, (poly(0), poly(0)), Select(IsNegative(at - n, 4, poly(1)), Cast("int64x4", vector), Broadcast(poly(7), 4))),
        store(b, (1, 1), Const(7, "int64")),
        store(b, (1, 0), poly(7)),
    ]
    body = For(i, ceildiv(n, 4), Allocate(x, Seq(tuple(stores))))
    assert_golden(script(PrimFunc("lowered", (a, b, n), (Buffer("unused", (poly(p),)),), body)))


def test_module(assert_golden: Golden) -> None:
    a = Buffer("A", ())
    f = PrimFunc("f", (a,), (), store(a, (), const(1, "float32")))
    assert_golden(script(IRModule([f, f.with_(name="a-b")])))


def test_module_of_something_else_is_refused() -> None:
    with pytest.raises(ScriptError, match=r"function 'g' of the module is a str, which has no script form"):
        script(IRModule({"g": "not TIR"}))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda i, j, n: poly(i) * 8 + j, "i * 8 + j"),
        (lambda i, j, n: poly(j) + poly(i) * 8 - 3, "i * 8 + j - 3"),
        (lambda i, j, n: poly(n) - i - 1, "n - i - 1"),
        (lambda i, j, n: -poly(i) - 2, "-i - 2"),
        (lambda i, j, n: poly(n) * i * 2, "i * n * 2"),
        (lambda i, j, n: poly(i) * i, "i * i"),
        (lambda i, j, n: floordiv(poly(i) + 3, 4), "(i + 3) // 4"),
        (lambda i, j, n: floordiv(i, 4) * 4 + mod(i, 4), "i // 4 * 4 + i % 4"),
        (lambda i, j, n: -floordiv(i, 4), "-(i // 4)"),
        (lambda i, j, n: poly(i) * floordiv(j, n), "i * (j // n)"),
        (lambda i, j, n: mod(floordiv(i, 4), 8), "i // 4 % 8"),
        (lambda i, j, n: floordiv(i, poly(n) + 1), "i // (n + 1)"),
        (lambda i, j, n: floordiv(i, poly(n) * 2), "i // (n * 2)"),
        (lambda i, j, n: ceildiv(n, 4) * 4 + minimum(i, j, n), "T.min(i, j, n) + T.ceildiv(n, 4) * 4"),
        (lambda i, j, n: maximum(j, i), "T.max(i, j)"),
        (lambda i, j, n: poly(0), "0"),
        (lambda i, j, n: poly(-5), "-5"),
    ],
)
def test_index_spelling(make: Callable[[Var, Var, Var], Poly], text: str) -> None:
    for order in ("ijn", "nji"):
        v = {name: Var(name) for name in order}
        a = Buffer("A", (4,))
        f = PrimFunc("f", (a, v["n"]), (), nest([(v["i"], 4), (v["j"], 4)], store(a, (make(v["i"], v["j"], v["n"]),), const(0, "float32"))))
        assert script(f).splitlines()[-1].strip() == f"A[{text}] = T.float32(0.0)"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda i, n: less_than(i * 8 + 3, n), "i * 8 + 3 < n"),
        (lambda i, n: less_than(i, n + 1), "i <= n"),
        (lambda i, n: less_than(0, i), "0 < i"),
        (lambda i, n: less_than(-1, i), "0 <= i"),
        (lambda i, n: less_than(i, 1), "i < 1"),
        (lambda i, n: equal(i, n), "i == n"),
        (lambda i, n: Not(equal(i, 3)), "i != 3"),
        (lambda i, n: Not(less_than(i, 3)), "not i < 3"),
        (lambda i, n: IsNegative(poly(-1)), "T.lt0(-1)"),
        (lambda i, n: IsNegative(i - n, 8, poly(2)), "T.lt0(i - n, lanes=8, stride=2)"),
        (lambda i, n: Binary("or", less_than(i, 3), Binary("and", less_than(n, 4), less_than(i, n))), "i < 3 or n < 4 and i < n"),
        (lambda i, n: Binary("and", less_than(i, 3), Binary("or", less_than(n, 4), less_than(i, n))), "i < 3 and (n < 4 or i < n)"),
        (lambda i, n: Binary("eq", less_than(i, 3), less_than(n, 4)), "(i < 3) == (n < 4)"),
        (lambda i, n: Const(True, "bool"), "T.bool(True)"),
    ],
)
def test_condition_spelling(make: Callable[[Poly, Poly], Expr], text: str) -> None:
    assert script(make(poly(Var("i")), poly(Var("n")))) == text


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x, k: (x + x) * x, "(A[0] + A[0]) * A[0]"),
        (lambda x, k: x + x * x, "A[0] + A[0] * A[0]"),
        (lambda x, k: x - (x - x), "A[0] - (A[0] - A[0])"),
        (lambda x, k: x - x - x, "A[0] - A[0] - A[0]"),
        (lambda x, k: -x, "T.float32(0.0) - A[0]"),
        (lambda x, k: x / const(float("-inf"), "float32"), 'A[0] / T.float32("-inf")'),
        (lambda x, k: x + float("nan"), 'A[0] + T.float32("nan")'),
        (lambda x, k: x * -0.0, "A[0] * T.float32(-0.0)"),
        (lambda x, k: x * 1e-45, "A[0] * T.float32(1e-45)"),
        (lambda x, k: Const(1, "float32x4"), 'T.const(1.0, "float32x4")'),
        (lambda x, k: binary("max", binary("pow", x, 2), 0), "T.max(T.pow(A[0], T.float32(2.0)), T.float32(0.0))"),
        (lambda x, k: Call("isnan", (x,), "bool"), "T.isnan(A[0])"),
        (lambda x, k: Call("reinterpret", (x,), "int32"), 'T.reinterpret(A[0], dtype="int32")'),
        (lambda x, k: Call("reduce_add", (Broadcast(x, 8),), "float32"), "T.reduce_add(T.Broadcast(A[0], 8))"),
        (lambda x, k: binary("shl", binary("bitand", k, 3), 1) + k, "((K[0] & T.int64(3)) << T.int64(1)) + K[0]"),
        (lambda x, k: k + poly(3), "K[0] + T.index(3)"),
        (lambda x, k: Binary("add", poly(Var("i")), Const(1, "int64")), 'T.binary("add", i, T.int64(1))'),
        (lambda x, k: Select(x < 0, x, Cast("float32", poly(Var("i")))), 'T.select(A[0] < T.float32(0.0), A[0], T.cast("float32", i))'),
    ],
)
def test_value_spelling(make: Callable[[Expr, Expr], Expr], text: str) -> None:
    assert script(make(load(Buffer("A", (1,)), 0), load(Buffer("K", (1,), "int64"), 0))) == text


def test_names_are_unique_in_their_scope_and_used_again_after_it() -> None:
    a, b = Buffer("A", (4, 4)), Buffer("A", (4, 4))

    def loops() -> Stmt:
        i, j = Var("i"), Var("i")
        return nest([(i, 4), (j, 4)], store(b, (i, j), load(a, j, i)))

    lines = script(PrimFunc("f", (a, b), (), Seq((loops(), loops())))).splitlines()
    assert lines[2:4] == lines[4:6] == ["    for i, i_1 in T.grid(4, 4):", "        A_1[i, i_1] = A[i_1, i]"]


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("for", "for_"),
        ("T", "T_"),
        ("range", "range_"),
        ("x.y-z", "x_y_z"),
        ("0", "_0"),
        ("", "_"),
        ("ﬁ", "_"),
        ("A", "A_1"),
        ("q" * 1000, "q" * 128),
    ],
)
def test_names_become_identifiers(name: str, printed: str) -> None:
    a, v = Buffer("A", (4,)), Var(name)
    f = PrimFunc("f", (a,), (), For(v, poly(4), store(a, (v,), const(0, "float32"))))
    assert script(f).splitlines()[2] == f"    for {printed} in T.serial(4):"
    assert script(parse(script(f))) == script(f)


def test_params_are_declared_in_order_of_use() -> None:
    def program(first: str) -> str:
        made = {n: Param(n, range(1, 20)) for n in (first, *({"s", "t", "u"} - {first}))}
        a, i = Buffer("A", (poly(made["u"]),)), Var("i")
        return script(PrimFunc("f", (a,), (), For(i, poly(made["t"]) * made_poly(made["s"]), store(a, (i,), const(0, "float32")))))

    def made_poly(p: Param) -> Poly:
        return poly(p)

    assert program("s") == program("t") == program("u")
    declared = [line.split()[0] for line in program("s").splitlines() if "T.param" in line]
    assert declared == ["u", "s", "t"]


def test_equal_names_are_distinguished_by_their_cofactors() -> None:
    def program(swap: bool) -> str:
        p, q = Param("t", [1, 2]), Param("t", [1, 2])
        if swap:
            p, q = q, p
        a, i = Buffer("A", (8,)), Var("i")
        return script(PrimFunc("f", (a,), (), For(i, poly(8), store(a, (poly(p) * 3 + poly(q) * 5 + i,), const(0, "float32")))))

    assert program(False) == program(True)
    assert "A[i + t * 3 + t_1 * 5]" in program(False)


def test_a_size_that_is_not_a_parameter_is_declared() -> None:
    n = Var("n")
    a = Buffer("A", (poly(n),))
    text = script(PrimFunc("f", (a,), (), store(a, (poly(n) - 1,), const(0, "float32"))))
    assert text.splitlines()[2:] == ["    n = T.int64()", "    A[n - 1] = T.float32(0.0)"]


def test_domains_of_params() -> None:
    def domain(values: list[int]) -> str:
        p = Param("t", values)
        a = Buffer("A", (poly(p),))
        return script(PrimFunc("f", (a,), (), store(a, (0,), const(0, "float32")))).splitlines()[2].strip()

    assert domain([4, 1, 2]) == 't = T.param("t", [1, 2, 4])'
    assert domain(list(range(1, 65))) == 't = T.param("t", range(1, 65))'
    assert domain(list(range(0, 129, 8))) == 't = T.param("t", range(0, 129, 8))'
    assert domain([*range(1, 12), 64]) == 't = T.param("t", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 64])'


def test_underline(assert_golden: Golden) -> None:
    f = matmul()
    outer = f.body
    assert isinstance(outer, For) and isinstance(outer.body, For)
    inner = outer.body.body
    assert isinstance(inner, For) and isinstance(inner.body, For) and isinstance(inner.body.body, Block)
    block = inner.body.body
    assert isinstance(block.body, BufferStore) and isinstance(block.body.value, Binary)
    assert_golden(script(f, [inner.body, block.iters[1], block.body.value.b, block.init]))


def test_underline_of_something_absent_changes_nothing() -> None:
    assert script(matmul(), [Var("i")]) == script(matmul())


def test_a_name_used_outside_its_scope_is_printed() -> None:
    a, i = Buffer("A", (4,)), Var("i")
    loop = For(i, poly(4), store(a, (i,), const(0, "float32")))
    assert script(Seq((loop, store(a, (i,), const(0, "float32"))))).splitlines()[-1] == "A[i] = T.float32(0.0)"


def test_sequences_that_seq_does_not_create() -> None:
    a = Buffer("A", (4,))
    s = [store(a, (n,), const(0, "float32")) for n in range(3)]
    text = script(Seq((Seq((s[0], s[1])), s[2])))
    assert text.splitlines() == ["with T.seq():", "    A[0] = T.float32(0.0)", "    A[1] = T.float32(0.0)", "A[2] = T.float32(0.0)"]


def test_a_long_signature_has_a_line_for_each_parameter() -> None:
    bs = [Buffer(f"buffer_{n}", (128, 128)) for n in range(4)]
    lines = script(PrimFunc("f", tuple(bs), (), store(bs[0], (0, 0), const(0, "float32")))).splitlines()
    assert lines[1:3] == ["def f(", '    buffer_0: T.Buffer((128, 128), "float32"),'] and lines[6] == "):"


def test_objects_without_script_form_are_refused() -> None:
    @node
    class Strange(Stmt):
        n: int

    @node
    class Odd(Expr):
        n: int
        dtype: str

    with pytest.raises(ScriptError, match="the statement Strange has no script form"):
        script(Strange(1))
    with pytest.raises(ScriptError, match="the expression Odd has no script form"):
        script(Odd(1, "float32"))
    with pytest.raises(ScriptError, match="int has no script form; expected a PrimFunc, IRModule, statement or expression"):
        script(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["T", "range", "class", "a.b", "0", "", "naïve", "A"])
def test_buffer_names_and_names_derived_from_them_survive_parsing(name: str) -> None:
    """Traces derive names from the buffers of the program, and the program of a record has been printed and parsed."""
    x, y = te.placeholder((6, 4), name="x"), te.placeholder((6, 4), name="A")
    plain = te.create_prim_func([x, y, te.compute((6, 4), lambda i, j: x[i, j] + y[i, j], "out")], "f")
    renamed = {b: b.like() for b in plain.buffers if b.name != "A"}
    for b in renamed.values():
        b.name = name
    params = tuple([renamed.get(p, p) for p in plain.buffers])
    f = PrimFunc("f", params, (), substitute(plain.body, {}, renamed), (("constants", name),) if name.isalpha() else ())
    again = parse(script(f))
    assert [b.name for b in again.buffers] == [b.name for b in f.buffers]
    assert script(again) == script(f) and structural.digest(again) == structural.digest(f)
    s = Schedule(f)
    (block,) = [b.name for b in blocks_under(f.body)]
    s.cache_write(s.get_block(block), "global")
    s.cache_read(s.get_block(block), name, "global")
    played = replay(s.trace, again)
    assert structural.equal(played.func, s.func)
    assert [b.name for b in played.func.buffers] == [b.name for b in s.func.buffers]
    assert [b.name for b in blocks_under(played.func.body)] == [b.name for b in blocks_under(s.func.body)]
