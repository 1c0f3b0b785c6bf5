"""Test structural equality, the path of the first difference, and the digest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Broadcast, Call, Cast, Const, IsNegative, Not, Ramp, Select, const
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.node import Node
from tunesmith.ir.poly import ONE, Param, Poly, Var, ceildiv, floordiv, maximum, minimum, mod, poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import Allocate, Block, BufferStore, Evaluate, For, If, Iter, Seq, Stmt, barrier, nest, seq, store
from tunesmith.ir.structural import difference, digest, equal
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import fresh_copy, transform
from tunesmith.ops.workload import workload
from tunesmith.support.errors import InternalError, ScriptError
from tunesmith.support.seeds import stream

NAMES = ("matmul", "matmul_bias_relu", "conv_relu", "conv_relu_strided", "softmax", "tiled_matmul")


def x(v: Var) -> Poly:
    return poly(v)


def _same(a: Any, b: Any) -> None:
    assert difference(a, b) is None
    assert equal(a, b) and equal(b, a)
    assert digest(a) == digest(b)


def _differ(a: Any, b: Any, message: str) -> None:
    assert difference(a, b) == message
    assert not equal(a, b) and not equal(b, a)
    assert digest(a) != digest(b)


@pytest.mark.parametrize("name", NAMES)
def test_programs_built_twice_are_equal(programs: ModuleType, name: str) -> None:
    a, b = programs.SMALL[name]().func, programs.SMALL[name]().func
    _same(a, b)
    _same(a, a)
    _same(a, a.with_(body=fresh_copy(a.body), name="another_name"))


def test_different_programs_differ(programs: ModuleType) -> None:
    funcs = [programs.SMALL[n]().func for n in NAMES] + [programs.matmul(5, 7, 7).func, programs.matmul(5, 7, 6, "float64").func]
    assert len({digest(f) for f in funcs}) == len(funcs)
    assert not any(equal(a, b) for a in funcs for b in funcs if a is not b)


# ---- structural and non-structural parts


def _simple(
    *,
    names: str = "ij",
    buffers: str = "AB",
    kind: str = "serial",
    block: str = "B",
    offset: int = 0,
    guard: int = 8,
    note: str | None = None,
    block_note: int | None = None,
    scope: str = "global",
    axis: str = "S",
    attr: str | None = None,
    scale: float = 2.0,
    extent: int = 4,
    rank: int = 8,
    pad: int = 0,
) -> PrimFunc:
    """B[v] = A[v] * 2 under two loops, with one thing changed."""
    i, j, v = Var(names[0]), Var(names[1]), Var("v")
    a, b = Buffer(buffers[0], (8,)), Buffer(buffers[1], (rank,), scope=scope, pad=pad)
    binding = x(i) * 2 + j + offset
    inner = Block(
        block,
        (Iter(v, poly(8), axis),),
        (binding,),
        (binding - guard,),
        None,
        store(b, (v,), Binary("mul", a[v], const(scale, "float32"))),
        () if block_note is None else (("size", poly(block_note)),),
    )
    loops: Stmt = For(i, poly(extent), For(j, poly(2), inner), kind, None, () if note is None else (("unroll", note),))
    return PrimFunc("simple", (a, b), (), loops, () if attr is None else (("target", attr),))


def test_names_of_loops_buffers_and_function_do_not_matter() -> None:
    _same(_simple(), _simple(names="xy", buffers="PQ").with_(name="other"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "parallel"}, "/i.kind: 'serial' != 'parallel'"),
        ({"extent": 5}, "/i.extent: 4 != 5"),
        ({"block": "C"}, "/i/j/B.name: 'B' != 'C'"),
        ({"offset": 1}, "/i/j/B.bindings[0]: 2*i + j != 1 + 2*i + j"),
        ({"guard": 7}, "/i/j/B.predicate[0]: -8 + 2*i + j != -7 + 2*i + j"),
        ({"note": "full"}, "/i.annotations: 0 items != 1 items"),
        ({"block_note": 3}, "/i/j/B.annotations: 0 items != 1 items"),
        ({"scope": "workspace"}, ".params[1]: B: float32[8] in global != B: float32[8] in workspace"),
        ({"rank": 9}, ".params[1].shape[0]: 8 != 9"),
        ({"pad": 2}, ".params[1].shape[1]: 0 != 2"),
        ({"axis": "R"}, "/i/j/B.iters: 'S' != 'R'"),
        ({"attr": "llvm"}, ".attrs: 0 items != 1 items"),
        ({"scale": 3.0}, "/i/j/B.value.b: 2.0 of float32 != 3.0 of float32"),
    ],
)
def test_each_part_matters_and_its_path_is_reported(change: dict[str, Any], message: str) -> None:
    _differ(_simple(), _simple(**change), message)


def test_values_of_annotations_and_attributes_matter() -> None:
    _differ(_simple(note="full"), _simple(note="some"), "/i.annotations[0][1]: 'full' != 'some'")
    _differ(_simple(block_note=3), _simple(block_note=4), "/i/j/B.annotations[0][1]: 3 != 4")
    _differ(_simple(attr="llvm"), _simple(attr="cuda"), ".attrs[0][1]: 'llvm' != 'cuda'")


def test_a_difference_is_shown_in_the_names_of_the_first_program() -> None:
    assert difference(_simple(), _simple(names="xy", offset=3)) == "/i/j/B.bindings[0]: 2*i + j != 3 + 2*i + j"


def test_parameters_and_allocations_are_matched_in_order(programs: ModuleType) -> None:
    f = programs.matmul_bias_relu(4, 4, 4).func
    a, b, bias, d = f.params
    assert difference(f, f.with_(params=(b, a, bias, d))) == "/[0]/i/j/k/C.value.b.a.buffer: A: float32[4, 4] != B: float32[4, 4]"
    assert difference(f, f.with_(params=(a, b, d))) == (
        ".params: (A: float32[4, 4], B: float32[4, 4], bias: float32[4], D: float32[4, 4])"
        " != (A: float32[4, 4], B: float32[4, 4], D: float32[4, 4])"
    )
    assert difference(f, f.with_(allocs=())) == ".allocs: 1 buffers != 0 buffers"


def test_scalar_parameters_are_binders() -> None:
    def made(name: str) -> PrimFunc:
        n, i = Var(name), Var("i")
        a = Buffer("A", (n,))
        return PrimFunc("f", (a, n), (), nest([(i, poly(n))], store(a, (i,), const(0, "float32"))))

    _same(made("n"), made("m"))


def test_params_are_the_same_when_name_and_domain_are(programs: ModuleType) -> None:
    _same(programs.tiled_matmul(5, 7, 6, *programs.tile_params()).func, programs.tiled_matmul(5, 7, 6, *programs.tile_params()).func)
    other = programs.tiled_matmul(5, 7, 6, *programs.tile_params(limit=10)).func
    message = "/i_0.extent: ceildiv(5, ti) with ti one of 8 values up to 8 != ceildiv(5, ti) with ti one of 9 values up to 9"
    _differ(programs.tiled_matmul(5, 7, 6, *programs.tile_params()).func, other, message)


def test_loops_are_matched_one_to_one() -> None:
    """for i: for j: A[i, j] against A[i, i] and A[j, i]: no variable may match two variables."""
    a = Buffer("A", (4, 4))

    def made(order: str) -> PrimFunc:
        loops = {n: Var(n) for n in "ij"}
        return PrimFunc("f", (a,), (), nest([(v, 4) for v in loops.values()], store(a, [loops[c] for c in order], const(0, "float32"))))

    digests = {order: digest(made(order)) for order in ("ij", "ji", "ii", "jj")}
    assert len(set(digests.values())) == 4
    assert difference(made("ij"), made("ii")) == "/i/j.indices[1]: j != i"
    assert not equal(made("ii"), made("ij"))


def test_a_shared_body_is_different_under_swapped_loops() -> None:
    """The same object is not equal to itself if its variables are bound to other loops."""
    a, i, j = Buffer("A", (4, 4)), Var("i"), Var("j")
    body = store(a, (i, j), const(0, "float32"))
    f, g = [PrimFunc("f", (a,), (), nest([(u, 4), (v, 4)], body)) for u, v in ((i, j), (j, i))]
    _differ(f, g, "/i/j.indices[0]: i != j")


def test_free_variables_and_buffers_are_equal_only_to_themselves() -> None:
    i, j, a, b = Var("i"), Var("j"), Buffer("A", (4,)), Buffer("B", (4,))
    _same(x(i) + 1, x(i) + 1)
    assert not equal(x(i) + 1, x(j) + 1)
    assert equal(a[i], a[i]) and not equal(a[i], b[i])
    assert difference(a[i], b[i]) == ".buffer: A: float32[4] != B: float32[4]"
    bound, free = For(i, poly(4), store(a, (i,), const(0, "float32"))), For(j, poly(4), store(a, (i,), const(0, "float32")))
    assert not equal(bound, free) and not equal(free, bound)


def test_the_order_in_which_variables_are_created_does_not_matter() -> None:
    def made(order: str) -> PrimFunc:
        v = {n: Var(n) for n in order}
        i, j, k = v["i"], v["j"], v["k"]
        a, b = Buffer("A", (4096,)), Buffer("B", (4096,))
        index = (
            x(i) * 64
            + x(j) * 8
            + x(k) * j
            + floordiv(x(i) + j + k, 3)
            + minimum(x(i) + k, x(j) * 2, maximum(x(k) + 3, i))
            + mod(x(j) + i, 4)
        )
        return PrimFunc("f", (a, b), (), nest([(i, 4), (j, 4), (k, 4)], store(a, (index,), b[ceildiv(x(k) + i, 2)])))

    first = made("ijk")
    for order in ("kji", "jik", "kij"):
        _same(first, made(order))


def test_sequence_order_and_length_matter(programs: ModuleType) -> None:
    f = programs.softmax(4, 5).func
    m, e, s, y = f.body.stmts
    _differ(f, f.with_(body=Seq((m, s, e, y))), "/[1]/i/j/E.name: 'E' != 'S'")
    _differ(f, f.with_(body=Seq((m, e, s))), "/: 4 statements != 3 statements")
    _differ(f, f.with_(body=m), "/: Seq != For")


_A, _B, _I = Buffer("A", (16,)), Buffer("B", (16,), "bool"), Var("i")
_ONE_F, _TWO_F = const(1.0, "float32"), const(2.0, "float32")
_YES, _NO = const(True, "bool"), const(False, "bool")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (const(1, "int32"), const(1, "int64")),
        (const(0.0, "float32"), const(-0.0, "float32")),
        (const(np.inf, "float32"), const(-np.inf, "float32")),
        (Binary("add", _ONE_F, _TWO_F), Binary("mul", _ONE_F, _TWO_F)),
        (Binary("sub", _ONE_F, _TWO_F), Binary("sub", _TWO_F, _ONE_F)),
        (Not(_YES), Not(_NO)),
        (IsNegative(x(_I)), IsNegative(x(_I) + 1)),
        (IsNegative(x(_I), 4), IsNegative(x(_I), 4, poly(2))),
        (Select(_YES, _ONE_F, _TWO_F), Select(_YES, _TWO_F, _ONE_F)),
        (Cast("int32", _ONE_F), Cast("int64", _ONE_F)),
        (Call("exp", (_ONE_F,), "float32"), Call("log", (_ONE_F,), "float32")),
        (Call("exp", (_ONE_F,), "float32"), Call("exp", (_TWO_F,), "float32")),
        (Broadcast(_ONE_F, 4), Broadcast(_ONE_F, 8)),
        (Ramp(x(_I), ONE, 4), Ramp(x(_I), poly(2), 4)),
        (BufferLoad(_A, (x(_I),), 4), BufferLoad(_A, (x(_I),), 8)),
        (BufferLoad(_A, (x(_I),), 4, poly(2)), BufferLoad(_A, (x(_I),), 4, poly(3))),
        (BufferLoad(_A, (x(_I),), 4, None, poly(2)), BufferLoad(_A, (x(_I),), 4)),
        (BufferStore(_A, (x(_I),), Broadcast(_ONE_F, 4), poly(2)), BufferStore(_A, (x(_I),), Broadcast(_ONE_F, 4))),
        (BufferStore(_A, (x(_I),), Broadcast(_ONE_F, 4), None, poly(2)), BufferStore(_A, (x(_I),), Broadcast(_ONE_F, 4), None, poly(3))),
        (If(_YES, Evaluate(_ONE_F)), If(_YES, Evaluate(_ONE_F), Evaluate(_TWO_F))),
        (If(_YES, Evaluate(_ONE_F)), If(_NO, Evaluate(_ONE_F))),
        (Evaluate(_ONE_F), Evaluate(_TWO_F)),
        (For(_I, poly(4), Evaluate(_ONE_F), "thread", "blockIdx.x"), For(_I, poly(4), Evaluate(_ONE_F), "thread", "blockIdx.y")),
        (Allocate(_A, Evaluate(_A[0])), Allocate(Buffer("A", (17,)), Evaluate(_A[0]))),
        (_ONE_F, x(_I)),
    ],
)
def test_every_field_of_every_node_matters(a: Node, b: Node) -> None:
    assert not equal(a, b) and not equal(b, a)
    assert difference(a, b) is not None
    assert digest(a) != digest(b)
    copy = transform(a, {Const: lambda n, _: n.with_()})
    _same(a, copy)


def test_nan_is_equal_to_nan() -> None:
    _same(const(float("nan"), "float32"), const(float("nan"), "float32"))


def test_allocated_buffers_are_binders() -> None:
    def made(name: str, scope: str = "workspace") -> Stmt:
        b, i = Buffer(name, (4,), scope=scope), Var("i")
        return nest([(i, 4)], Allocate(b, seq([store(b, (i,), const(0, "float32")), Evaluate(b[i])])))

    _same(made("A"), made("B"))
    assert difference(made("A"), made("A", "local")) == "/i.buffer: A: float32[4] in workspace != A: float32[4] in local"


def _doubled(times: int, *, shared: bool) -> PrimFunc:
    """B[i] = A[i] * 2**times, as sums of an expression with itself or with a copy."""
    a, b, i = Buffer("A", (4,)), Buffer("B", (4,)), Var("i")

    def grow(n: int) -> Any:
        if n == 0:
            return a[i]
        left = grow(n - 1)
        return Binary("add", left, left if shared else grow(n - 1))

    return PrimFunc("doubled", (a, b), (), nest([(i, 4)], store(b, (i,), grow(times))))


def test_shared_expressions_mean_the_same_as_copies() -> None:
    _same(_doubled(7, shared=True), _doubled(7, shared=False))
    assert digest(_doubled(7, shared=True)) != digest(_doubled(8, shared=True))


def test_shared_expressions_are_walked_once() -> None:
    """The expanded tree has 2**60 nodes."""
    _same(_doubled(60, shared=True), _doubled(60, shared=True))
    assert not equal(_doubled(60, shared=True), _doubled(61, shared=True))
    with pytest.raises(ScriptError, match="nodes, expanded as a tree"):
        verify(_doubled(60, shared=True))


def test_modules_compare_by_name(programs: ModuleType) -> None:
    f, g = programs.matmul(4, 4, 4).func, programs.softmax(4, 4).func
    _same(IRModule({"a": f, "b": g}), IRModule({"b": g, "a": f.with_(name="c")}))
    _differ(IRModule({"a": f}), IRModule({"c": f}), ".functions: ['a'] != ['c']")
    wide = programs.matmul(4, 5, 4).func
    _differ(IRModule({"a": f, "b": g}), IRModule({"a": wide, "b": g}), "/a.params[1].shape[1]: 4 != 5")


def test_a_field_with_its_default_changes_no_digest() -> None:
    """An explicit default is the same program, so that a new field with a default preserves every stored key."""
    loop = For(_I, poly(4), Evaluate(_ONE_F))
    _same(loop, For(_I, poly(4), Evaluate(_ONE_F), "serial", None, ()))
    _same(BufferLoad(_A, (x(_I),)), BufferLoad(_A, (x(_I),), 1, None, None))


def test_unpadded_rows_change_no_digest() -> None:
    """Padding was added after keys were stored; it may be an expression."""
    _same(_simple(), _simple(pad=0))
    i, p = Var("i"), Param("p", (1, 2))
    tiles = [Buffer("S", (4, 8), scope="shared", pad=n) for n in (poly(p), poly(p) + 1)]
    one, two = [Allocate(b, For(i, poly(4), BufferStore(b, (x(i), x(i)), _ONE_F))) for b in tiles]
    _differ(one, two, ".buffer.shape[2]: p != 1 + p")


def test_barriers_and_shuffles_matter() -> None:
    one, two = Call("shuffle_xor_1", (_ONE_F,), "float32"), Call("shuffle_xor_2", (_ONE_F,), "float32")
    _differ(one, two, ".name: 'shuffle_xor_1' != 'shuffle_xor_2'")
    _same(barrier(), barrier())
    _differ(barrier(), Evaluate(Call("prefetch", (), "int32")), ".value.name: 'barrier' != 'prefetch'")
    _differ(
        For(_I, poly(4), barrier(), "thread", "threadIdx.x"),
        For(_I, poly(4), barrier(), "thread", "threadIdx.y"),
        "/i.kind: 'threadIdx.x' != 'threadIdx.y'",
    )


def test_objects_without_digest_are_refused() -> None:
    with pytest.raises(InternalError, match="no digest is defined for int"):
        digest(3)  # type: ignore[arg-type]


# ---- equal programs have equal digests


def _mutations() -> dict[type, Callable[[Any, Any], Any]]:
    """One small change for each node type."""
    return {
        Const: lambda n, r: n.with_(value=7.5),
        Binary: lambda n, r: n.with_(op={"add": "sub", "mul": "add"}.get(n.op, n.op + "x")),
        BufferLoad: lambda n, r: n.with_(indices=(n.indices[0] + 1, *n.indices[1:])),
        BufferStore: lambda n, r: n.with_(indices=(n.indices[0] + 1, *n.indices[1:])),
        For: lambda n, r: n.with_(extent=n.extent + 1),
        Block: lambda n, r: n.with_(name=n.name + "_"),
        Call: lambda n, r: n.with_(name="log"),
        IsNegative: lambda n, r: n.with_(index=n.index - 1),
    }


@pytest.mark.parametrize("name", NAMES)
def test_fuzz_digests_agree_with_equality(programs: ModuleType, name: str) -> None:
    """Renamed copies are equal with equal digests; one mutated node makes programs and digests differ."""
    f = programs.SMALL[name]().func
    seen = {digest(f): f}
    for seed in range(25):
        rng = stream(seed, "fuzz", "structural", name)
        count = 0
        target = int(rng.integers(0, 30))
        kinds = _mutations()

        def change(n: Any, recurse: Any, target: int = target, kinds: Any = kinds) -> Any:
            nonlocal count
            count += 1
            return kinds[type(n)](n, recurse) if count - 1 == target else n.map_children(recurse)

        g = f.with_(body=transform(f.body, dict.fromkeys(kinds, change)))
        if g.body is f.body:
            continue
        h = g.with_(body=fresh_copy(g.body))
        _same(g, h)
        assert not equal(f, g) and difference(f, g) is not None
        known = seen.setdefault(digest(g), g)
        assert equal(known, g), "two programs share a digest and differ"
    assert len(seen) > 5


_PRINT_DIGESTS = """
import importlib.util, sys
from tunesmith.ir.poly import Var
from tunesmith.ir.visit import fresh_copy
from tunesmith.ir.structural import digest
held = [Var("x") for _ in range(1234)]
spec = importlib.util.spec_from_file_location("programs", sys.argv[1])
programs = sys.modules["programs"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(programs)
for name in sorted(programs.SMALL, reverse=True):
    f = programs.SMALL[name]().func
    print(name, digest(f.with_(body=fresh_copy(f.body))))
f = programs.tiled_matmul(5, 7, 6, *programs.tile_params()[::-1]).func
print("parametric", digest(f))
"""


def test_digests_are_the_same_in_another_process(programs: ModuleType) -> None:
    """With another hash seed, other serial numbers of variables, and Params created in reverse order."""
    path = [p for p in sys.path if p]
    out = subprocess.run(
        [sys.executable, "-c", _PRINT_DIGESTS, str(Path(programs.__file__ or ""))],
        env={**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = dict(line.split() for line in out.stdout.splitlines())
    ours = {n: digest(programs.SMALL[n]().func) for n in NAMES}
    ours["parametric"] = digest(programs.tiled_matmul(5, 7, 6, *programs.tile_params()[::-1]).func)
    assert theirs == ours
    assert all(len(d) == 32 and int(d, 16) >= 0 for d in ours.values())


def test_the_digest_of_a_known_program_is_fixed(programs: ModuleType) -> None:
    """Records are looked up by digest: a change here makes every stored log unreadable."""
    assert digest(programs.matmul(5, 7, 6).func) == "f0334e49e75ac20336efe365047905a4"
    assert digest(floordiv(poly(Param("p", (1, 2, 4))) + 3, 4)) == "717b9507b7b407b2794dc713fd931b9d"


def test_functions_with_different_constant_parameters_are_different() -> None:
    """The attribute contains parameter names, which are not structural: the positions are compared."""
    text = """
@T.prim_func
def f(A: T.Buffer((4, 4), "float32"), B: T.Buffer((4, 4), "float32"), C: T.Buffer((4, 4), "float32")):
    T.func_attr({"constants": "B"})
    for i, j in T.grid(4, 4):
        C[i, j] = A[i, j] - B[i, j]
"""
    f = parse(text)
    g = parse(text.replace("A", "X").replace("B:", "A:").replace("- B[", "- A[").replace("X:", "B:").replace("X[", "B["))
    assert f.constants == g.constants == ("B",)
    assert digest(f) != digest(g) and not equal(f, g)
    assert "constant parameters" in str(difference(f, g))
    assert equal(f, parse(text.replace("A", "X"))) and digest(f) == digest(parse(text.replace("A", "X")))


def test_digests_with_constants_after_the_first_parameter_match_old_logs() -> None:
    assert digest(workload("matmul(m=4,n=8,k=16)").func) == "fc371d4f8a16cc50bdac038f21afc946"
    assert digest(workload("dense(m=7,n=9,k=5,activation=relu)").func) == "0fd059efc0dab8160df5f7d570a8496d"
    assert digest(workload("layer_norm(m=3,n=11)").func) == "dcfd04f23530ed230c966d223ae53345"
