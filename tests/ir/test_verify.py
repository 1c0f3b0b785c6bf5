"""Test the verifier: valid programs pass, every kind of malformed program is rejected with its path, no other exception is raised."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Broadcast, Call, Cast, Const, Expr, IsNegative, Not, Ramp, Select, const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import ONE, Param, Poly, Var, poly
from tunesmith.ir.stmt import Allocate, Block, BufferStore, Evaluate, For, If, Iter, Seq, Stmt, barrier
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import fresh_copy
from tunesmith.support.errors import ScriptError
from tunesmith.support.seeds import stream

NAMES = ("matmul", "matmul_bias_relu", "conv_relu", "conv_relu_strided", "softmax", "tiled_matmul")


def x(v: Var) -> Poly:
    return poly(v)


@pytest.mark.parametrize("name", NAMES)
def test_good_programs_pass(programs: ModuleType, name: str) -> None:
    verify(programs.SMALL[name]().func)


def test_parametric_programs_pass(programs: ModuleType) -> None:
    verify(programs.tiled_matmul(5, 7, 6, *programs.tile_params()).func)


def test_the_nodes_of_lowered_programs_pass() -> None:
    a, b, flags, scratch, n, i = (
        Buffer("A", (64,)),
        Buffer("B", (64,)),
        Buffer("F", (64,), "bool"),
        Buffer("S", (4, 16), scope="workspace"),
        Var("n"),
        Var("i"),
    )
    at = (x(i) * 16,)
    vector = BufferLoad(a, at, 16, poly(1), x(n))
    mask = Binary("and", IsNegative(x(i) - n, 16), BufferLoad(flags, at, 16))
    value = Select(mask, Call("exp", (vector,), "float32x16"), Broadcast(const(0, "float32"), 16))
    body = Seq(
        (
            BufferStore(scratch, (x(i), poly(0)), value, None, x(n)),
            Evaluate(Call("prefetch", (a[x(i) * 16],), "float32")),
            If(IsNegative(x(i) - 2), BufferStore(b, at, BufferLoad(scratch, (x(i), poly(0)), 16)), Evaluate(Cast("float32", x(i)))),
            BufferStore(a, at, Cast("float32x16", Ramp(x(i), ONE, 16)), poly(2)),
            BufferStore(b, (x(i),), Call("reduce_add", (vector,), "float32")),
            BufferStore(flags, (x(i),), Not(Call("isnan", (b[i],), "bool"))),
        )
    )
    verify(PrimFunc("main", (a, b, flags, n), (), For(i, poly(4), Allocate(scratch, body), "thread", "blockIdx.x")))


def test_blocks_inside_blocks_pass() -> None:
    """Inner bindings use the iteration variables of the outer block and loops inside it."""
    a = Buffer("A", (4, 4))
    i, vi, vj, k = (Var(n) for n in ("i", "vi", "vj", "k"))
    inner = Block("inner", (Iter(vj, poly(16), "S"),), (x(vi) * 4 + k,), (), None, BufferStore(a, (poly(0), x(vj)), const(0, "float32")))
    outer = Block("outer", (Iter(vi, poly(4), "S"),), (x(i),), (), None, For(k, poly(4), inner))
    verify(PrimFunc("f", (a,), (), For(i, poly(4), outer)))
    escaping = inner.with_(body=BufferStore(a, (poly(0), x(vi)), const(0, "float32")))
    with pytest.raises(ScriptError, match=r"uses the variable vi outside its binder\nin function f, at /i/outer/k/inner"):
        verify(PrimFunc("f", (a,), (), For(i, poly(4), outer.with_(body=For(k, poly(4), escaping)))))


@pytest.mark.parametrize("axis", ["threadIdx.x", "threadIdx.y", "threadIdx.z"])
def test_threads_inside_threads_share_their_work(axis: str) -> None:
    """Nested loops may be bound to the same threadIdx axis at any depth; block axes and virtual threads may not (see the refusals)."""
    a, s = Buffer("A", (4,)), Buffer("S", (4,), scope="shared", pad=2)
    i, j, k = Var("i"), Var("j"), Var("k")
    inner = For(j, poly(4), For(k, poly(4), BufferStore(s, (x(k),), a[j]), "thread", axis), "thread", axis)
    body = Seq((inner, barrier(), BufferStore(a, (x(i),), Call("shuffle_xor_2", (s[i],), "float32"))))
    verify(PrimFunc("f", (a,), (s,), For(i, poly(4), body, "thread", axis)))


# ---- refusals

_A, _B, _I8 = Buffer("A", (8, 8)), Buffer("B", (8,)), Buffer("D", (8,), "int8")
_ZERO, _TRUE = const(0, "float32"), const(True, "bool")
_V4 = Broadcast(_ZERO, 4)


def _func(body: Any, *params: Any, allocs: Any = (), **more: Any) -> PrimFunc:
    return PrimFunc("f", (_A, _B, _I8, *params), allocs, body, **more)


def _store(value: Expr) -> BufferStore:
    return BufferStore(_B, (poly(0),), value)


def _block(**changes: Any) -> Stmt:
    """for i, k: block C with a spatial and a reduction variable, an init and a body."""
    i, k, vi, vk = Var("i"), Var("k"), Var("vi"), Var("vk")
    made = Block(
        "C",
        (Iter(vi, poly(8), "S"), Iter(vk, poly(8), "R")),
        (x(i), x(k)),
        (x(i) - 8,),
        BufferStore(_B, (x(vi),), _ZERO),
        BufferStore(_B, (x(vi),), _B[vi] + _A[vi, vk]),
    )
    names = {"i": i, "k": k, "vi": vi, "vk": vk, "block": made}
    made = made.with_(**{f: c(**names) if callable(c) else c for f, c in changes.items()})
    return For(i, poly(8), For(k, poly(8), made))


def _twice() -> Stmt:
    loop = For(Var("i"), poly(8), _store(_ZERO))
    return Seq((loop, loop))


_LOOSE = Var("z")
_REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: _func(_block()).body, "verify takes a PrimFunc, got For"),
    (lambda: PrimFunc("", (), (), _store(_ZERO)), "the name of a function must be text and not empty, got ''"),
    (lambda: _func(_store(_ZERO), 3), "a parameter is a Buffer or a Var, got the int 3"),
    (lambda: _func(_store(_ZERO), Param("p", (1, 2))), "a scalar parameter must be a Var, got a Param"),
    (lambda: _func(_store(_ZERO), _LOOSE, _LOOSE), "the variable z is bound twice"),
    (lambda: _func(_store(_ZERO), _A), "the buffer A is declared twice"),
    (lambda: _func(_store(_ZERO), allocs=[_A]), "the allocations must be a tuple"),
    (lambda: _func(_store(_ZERO), allocs=(_B,)), "the buffer B is declared twice"),
    (lambda: _func(_store(_ZERO), Buffer("N", (_LOOSE,))), "the shape of N, z, uses the variable z, which nothing binds"),
    (lambda: _func(_store(_ZERO), Buffer("N", (-1,))), "the buffer N has the negative extent -1"),
    (lambda: _func(_store(_ZERO), attrs=(("b", "1"), ("a", "2"))), "annotations must be sorted by key, each key once, got b, a"),
    (lambda: _func(_store(_ZERO), attrs=(("a", 1),)), "the annotation a must be an index expression"),
    (lambda: _func(_store(_ZERO), attrs=("a",)), "an annotation is a pair"),
    (lambda: _func(None), "a statement was expected, got None"),
    (lambda: _func(_ZERO), "a statement was expected, got a Const"),
    (lambda: _func(Iter(_LOOSE, poly(4), "S")), "a statement was expected, got an Iter"),
    (lambda: _func(Seq(())), "a Seq must hold at least one statement"),
    (lambda: _func(Seq([_store(_ZERO)])), "the statements of a Seq must be a tuple"),  # type: ignore[arg-type]
    # loops
    (
        lambda: _func(_twice()),
        r"the variable i is bound twice; a copied loop or block needs new variables \(visit.fresh_copy\)\nin function f, at /i",
    ),
    (lambda: _func(For(Var("i"), 4, _store(_ZERO))), "the loop extent must be an index expression"),  # type: ignore[arg-type]
    (lambda: _func(For(Var("i"), x(_LOOSE), _store(_ZERO))), "the loop extent, z, uses the variable z, which nothing binds"),
    (lambda: _func(For(_LOOSE, x(_LOOSE), _store(_ZERO))), "the loop extent, z, uses the variable z"),
    (lambda: _func(For(Param("p", (1,)), poly(4), _store(_ZERO))), "a loop variable must be a Var, got a Param"),
    (lambda: _func(For(Var("i"), poly(4), _store(_ZERO), "fast")), "unknown loop kind 'fast'; kinds are serial, parallel"),
    (lambda: _func(For(Var("i"), poly(4), _store(_ZERO), "thread")), "unknown thread tag None; tags are blockIdx.x"),
    (lambda: _func(For(Var("i"), poly(4), _store(_ZERO), "thread", "warp")), "unknown thread tag 'warp'"),
    (lambda: _func(For(Var("i"), poly(4), _store(_ZERO), "serial", "blockIdx.x")), "a serial loop has the thread tag blockIdx.x"),
    (
        lambda: _func(For(Var("i"), poly(4), For(Var("j"), poly(4), _store(_ZERO), "thread", "blockIdx.x"), "thread", "blockIdx.x")),
        r"the thread tag blockIdx.x is bound by two nested loops\nin function f, at /i/j",
    ),
    # blocks
    (lambda: _func(_block(name="")), "the name of a block must be text and not empty"),
    (lambda: _func(Seq((_block(), fresh_copy(_block())))), "two blocks are named C"),
    (
        lambda: _func(For(Var("i"), poly(4), For(Var("j"), poly(4), _store(_ZERO), "thread", "vthread.x"), "thread", "vthread.x")),
        r"the thread tag vthread.x is bound by two nested loops\nin function f, at /i/j",
    ),
    (lambda: _func(Allocate(Buffer("S", (2, 4), pad=-1), _store(_ZERO))), "the buffer S has the negative extent -1"),
    (lambda: _func(Allocate(Buffer("S", (2, 4), align=[(-1, 8, 0)]), _store(_ZERO))), r"the buffer S has the alignment \(-1, 8, 0\)"),
    (lambda: _func(Allocate(Buffer("S", (2, 4), align=[(-3, 8, 0)]), _store(_ZERO))), r"the buffer S has the alignment \(-3, 8, 0\)"),
    (lambda: _func(Allocate(Buffer("S", (2, 4), align=[(-2, 0, 0)]), _store(_ZERO))), r"the buffer S has the alignment \(-2, 0, 0\)"),
    (lambda: _func(Allocate(Buffer("S", (2, 4), pad=x(_LOOSE)), _store(_ZERO))), "the shape of S, z, uses the variable z"),
    (lambda: _func(Evaluate(Call("barrier", (_ZERO,), "int32"))), "the intrinsic barrier takes 0 arguments and got 1"),
    (lambda: _func(Evaluate(Call("shuffle_xor_3", (_ZERO,), "float32"))), "unknown intrinsic 'shuffle_xor_3'"),
    (lambda: _func(Evaluate(Call("shuffle_xor_1", (_ZERO,), "int32"))), "the intrinsic shuffle_xor_1 does not take float32 to int32"),
    (lambda: _func(_block(bindings=lambda i, **_: (x(i),))), "2 iteration variables have 1 bindings\nin function f, at /i/k/C"),
    (lambda: _func(_block(bindings=lambda i, vi, **_: (x(i), x(vi)))), "a binding, vi, uses the variable vi, which nothing binds"),
    (lambda: _func(_block(predicate=(_TRUE,))), "the predicate must be an index expression"),
    (lambda: _func(_block(predicate=lambda vk, **_: (x(vk),))), "the predicate, vk, uses the variable vk, which nothing binds"),
    (
        lambda: _func(_block(iters=lambda vi, vk, **_: (Iter(vi, poly(8), "S"), Iter(vk, poly(8), "Q")))),
        "the kind of the iteration variable vk is S or R",
    ),
    (lambda: _func(_block(iters=lambda vi, vk, **_: (Iter(vi, poly(8), "S"), Iter(vi, poly(8), "R")))), "the variable vi is bound twice"),
    (lambda: _func(_block(iters=(_ZERO, _ZERO))), "an iteration variable is an Iter, got a Const"),
    (lambda: _func(_block(iters=lambda i, k, **_: (Iter(i, poly(8), "S"), Iter(k, poly(8), "R")))), "the variable i is bound twice"),
    (
        lambda: _func(_block(body=lambda i, **_: BufferStore(_B, (x(i),), _ZERO))),
        r"an index of the store to B, i, uses the variable i outside its binder\nin function f, at /i/k/C",
    ),
    (
        lambda: _func(_block(init=lambda vk, **_: BufferStore(_B, (x(vk),), _ZERO))),
        r"uses the reduction variable vk in the init, which runs before the reduction\nin function f, at /i/k/C/init",
    ),
    (
        lambda: _func(Seq((_block(), For(Var("i"), poly(4), BufferStore(_B, (x(_LOOSE),), _ZERO))))),
        "uses the variable z, which nothing binds",
    ),
    (
        lambda: (lambda i: _func(Seq((For(i, poly(4), _store(_ZERO)), BufferStore(_B, (x(i),), _ZERO)))))(Var("i")),
        "an index of the store to B, i, uses the variable i outside its binder\nin function f, at /",
    ),
    # memory
    (lambda: _func(BufferStore(_A, (poly(0),), _ZERO)), "the store to A has 1 indices and the buffer 2 dimensions"),
    (lambda: _func(_store(BufferLoad(_A, (poly(0),)))), "the load of A has 1 indices and the buffer 2 dimensions"),
    (
        lambda: _func(BufferStore(Buffer("X", (8,)), (poly(0),), _ZERO)),
        "the store to X uses a buffer that is neither a parameter nor allocated here",
    ),
    (lambda: _func(BufferStore(None, (poly(0),), _ZERO)), "the store to None uses a buffer"),  # type: ignore[arg-type]
    (lambda: _func(BufferStore(_B, (0,), _ZERO)), "an index of the store to B must be an index expression"),  # type: ignore[arg-type]
    (lambda: _func(BufferStore(_B, [poly(0)], _ZERO)), "the indices of the store to B must be a tuple"),  # type: ignore[arg-type]
    (lambda: _func(Allocate(_A, _store(_ZERO))), "the buffer A is declared twice"),
    (lambda: _func(Allocate(_ZERO, _store(_ZERO))), "a buffer was expected, got a Const"),  # type: ignore[arg-type]
    (
        lambda: (lambda b: _func(Seq((Allocate(b, _store(_ZERO)), BufferStore(b, (poly(0),), _ZERO)))))(Buffer("L", (4,))),
        "the store to L uses a buffer that is neither a parameter nor allocated here",
    ),
    (lambda: _func(_store(const(0, "float64"))), "a value of float64 is stored to B: float32"),
    (lambda: _func(BufferStore(_B, (poly(0),), _ZERO, ONE)), "the store to B is scalar and has a stride or a mask"),
    (lambda: _func(_store(BufferLoad(_B, (poly(0),), 1, None, ONE))), "the load of B is scalar and has a stride or a mask"),
    (lambda: _func(BufferStore(_B, (poly(0),), _V4, None, x(_LOOSE))), "the mask of the store to B, z, uses the variable z"),
    (lambda: _func(BufferStore(_B, (poly(0),), BufferLoad(_B, (poly(0),), 4, x(_LOOSE)))), "the stride of the load of B, z, uses"),
    (lambda: _func(_store(BufferLoad(_B, (poly(0),), 0))), "the load of B has 0 lanes"),
    (lambda: _func(BufferStore(_S, (), _V4), _S), "the store to S is a vector and the buffer has no dimension"),
    # values
    (lambda: _func(Evaluate(None)), "a value expression was expected, got None"),  # type: ignore[arg-type]
    (lambda: _func(Evaluate(1.5)), "a value expression was expected, got the float 1.5"),  # type: ignore[arg-type]
    (lambda: _func(Evaluate(_store(_ZERO))), "a value expression was expected, got a BufferStore"),  # type: ignore[arg-type]
    (lambda: _func(Evaluate(Const(300, "int8"))), "the literal 300 is not a value of int8"),
    (lambda: _func(Evaluate(Const(-1, "uint8"))), "the literal -1 is not a value of uint8"),
    (lambda: _func(Evaluate(Const(1, "float32"))), "the literal 1 is not a value of float32"),
    (lambda: _func(Evaluate(Const(1, "bool"))), "the literal 1 is not a value of bool"),
    (lambda: _func(Evaluate(Const(True, "int32"))), "the literal True is not a value of int32"),
    (lambda: _func(Evaluate(Const(1.0, "float32x4"))), "the literal 1.0 is not a value of float32x4"),
    (lambda: _func(Evaluate(Const(1, "int31"))), "unknown dtype 'int31'"),
    (lambda: _func(Evaluate(Cast(None, _ZERO))), "a dtype is text such as float32, got None"),  # type: ignore[arg-type]
    (lambda: _func(Evaluate(Cast("float32x0", _ZERO))), "the dtype float32x0 has no lanes"),
    (lambda: _func(Evaluate(Cast("float64x4", _ZERO))), "a Cast from float32 to float64x4 changes the number of lanes"),
    (lambda: _func(Evaluate(Binary("add", _ZERO, const(0, "int32")))), "the operands of add have different types float32 and int32"),
    (lambda: _func(Evaluate(Binary("add", _ZERO, _V4))), "the operands of add have different types float32 and float32x4"),
    (lambda: _func(Evaluate(Binary("plus", _ZERO, _ZERO))), "unknown operator 'plus'; operators are add"),
    (lambda: _func(Evaluate(Binary("and", _ZERO, _ZERO))), "the operator and is not defined for float32"),
    (lambda: _func(Evaluate(Binary("add", _TRUE, _TRUE))), "the operator add is not defined for bool"),
    (lambda: _func(Evaluate(Binary("div", poly(1), poly(1)))), "the operator div is not defined for int64"),
    (lambda: _func(Evaluate(Binary("shl", _ZERO, _ZERO))), "the operator shl is not defined for float32"),
    (lambda: _func(Evaluate(Not(_ZERO))), "Not needs a bool, got float32"),
    (lambda: _func(Evaluate(IsNegative(ONE, 1, ONE))), "a scalar index condition has a stride"),
    (lambda: _func(Evaluate(IsNegative(x(_LOOSE)))), "an index condition, z, uses the variable z"),
    (lambda: _func(Evaluate(Select(_ZERO, _ZERO, _ZERO))), "the condition of a Select must be a bool, got float32"),
    (lambda: _func(Evaluate(Select(_TRUE, _ZERO, _V4))), "the sides of a Select have different types float32 and float32x4"),
    (lambda: _func(Evaluate(Select(IsNegative(ONE, 8), _V4, _V4))), "a Select of float32x4 has a condition of 8 lanes"),
    (lambda: _func(Evaluate(Call("expp", (_ZERO,), "float32"))), "unknown intrinsic 'expp'; known are abs"),
    (lambda: _func(Evaluate(Call("exp", (_ZERO, _ZERO), "float32"))), "the intrinsic exp takes 1 arguments and got 2"),
    (lambda: _func(Evaluate(Call("exp", _ZERO, "float32"))), "the arguments of a Call must be a tuple"),  # type: ignore[arg-type]
    (lambda: _func(Evaluate(Call("exp", (_ZERO,), "float64"))), "the intrinsic exp does not take float32 to float64"),
    (lambda: _func(Evaluate(Call("fma", (_ZERO, _ZERO, _V4), "float32"))), "the arguments of fma have different types"),
    (lambda: _func(Evaluate(Call("reduce_add", (_ZERO,), "float32"))), "the intrinsic reduce_add does not take float32 to float32"),
    (lambda: _func(Evaluate(Call("isnan", (_ZERO,), "float32"))), "the intrinsic isnan does not take float32 to float32"),
    (lambda: _func(Evaluate(Call("reinterpret", (_ZERO,), "int64"))), "the intrinsic reinterpret does not take float32 to int64"),
    (lambda: _func(Evaluate(Call("prefetch", (_ZERO,), "float32"))), "the intrinsic prefetch does not take float32"),
    (lambda: _func(Evaluate(Broadcast(_V4, 4))), "Broadcast repeats a scalar, got float32x4"),
    (lambda: _func(Evaluate(Broadcast(_ZERO, -4))), "Broadcast has -4 lanes"),
    (lambda: _func(Evaluate(Ramp(ONE, x(_LOOSE), 4))), "the stride of a Ramp, z, uses the variable z"),
    (lambda: _func(If(_ZERO, _store(_ZERO))), "the condition of an If must be a bool, got float32"),
    (lambda: _func(If(_TRUE, _ZERO)), "a statement was expected, got a Const"),  # type: ignore[arg-type]
    # Params
    (
        lambda: _func(For(Var("i"), x(Param("p", (1, 2))), For(Var("j"), x(Param("p", (1, 2))), _store(_ZERO)))),
        "two different Params have the name p and one domain; rename one",
    ),
]
_S = Buffer("S", ())


@pytest.mark.parametrize("case", range(len(_REFUSED)))
def test_refusals_report_the_error_and_its_path(case: int) -> None:
    make, message = _REFUSED[case]
    made = make()
    with pytest.raises(ScriptError, match=message):
        verify(made)


def test_fuzz_any_mix_of_nodes_is_accepted_or_refused() -> None:
    """Random trees with misplaced children raise no exception other than ScriptError."""
    accepted = refused = 0
    for seed in range(3000):
        rng = stream(seed, "fuzz", "verify")
        try:
            verify(_Junk(rng).func())
            accepted += 1
        except ScriptError:
            refused += 1
    assert accepted > 5 and refused > 1000


class _Junk:
    """Mostly malformed programs."""

    def __init__(self, rng: Any) -> None:
        self.rng = rng
        self.vars = [Var("a"), Var("b"), Param("p", (1, 2))]
        self.buffers = [Buffer("A", (4,)), Buffer("B", (4, 4), "int32")]

    def pick(self, *xs: Any) -> Any:
        return xs[int(self.rng.integers(len(xs)))]

    def rarely(self, good: Any, *bad: Any) -> Any:
        return self.pick(*bad) if self.rng.random() < 0.08 else good

    def func(self) -> PrimFunc:
        params = self.rarely(tuple(self.buffers), (self.buffers[0], self.vars[0]), (1,), None)
        return PrimFunc(self.rarely("f", None), params, self.rarely((), (self.buffers[0],), 3), self.stmt(3))

    def index(self) -> Any:
        v = self.pick(*self.vars)
        return self.rarely(self.pick(poly(0), poly(v) + 1), 0, None, const(0, "float32"), v)

    def stmt(self, depth: int) -> Any:
        kind = self.pick("store", "store", "for", "block", "seq", "if", "alloc", "eval", "junk") if depth else "store"
        sub = depth - 1
        if kind == "for":
            return For(
                self.rarely(self.pick(*self.vars[:2]), None, 1), self.index(), self.stmt(sub), self.rarely("serial", "x", "thread", 1), None
            )
        if kind == "block":
            iters = self.rarely((Iter(Var("v"), poly(4), self.rarely("S", "R", 1)),), (), (1,), None)
            body = (
                BufferStore(self.buffers[0], (poly(iters[0].var),), const(0, "float32"))
                if iters and isinstance(iters[0], Iter)
                else self.stmt(sub)
            )
            return Block(
                self.rarely("C", 1),
                iters,
                self.rarely((self.index(),), (), None),
                self.rarely((), (1,), 2),
                self.rarely(None, self.stmt(0)),
                body,
            )
        if kind == "seq":
            return Seq(self.rarely((self.stmt(sub), self.stmt(sub)), (), [1]))
        if kind == "if":
            return If(self.value(1), self.stmt(sub), self.rarely(None, self.stmt(sub)))
        if kind == "alloc":
            return Allocate(self.rarely(Buffer("L", (4,)), None, *self.buffers), self.stmt(sub))
        if kind == "eval":
            return Evaluate(self.value(2))
        if kind == "junk":
            return self.pick(None, 1, "text", const(0, "float32"), Iter(Var("v"), poly(4), "S"), Evaluate(None))  # type: ignore[arg-type]
        b = self.pick(*self.buffers)
        indices = tuple(self.index() for _ in b.shape)
        return BufferStore(
            self.rarely(b, None, 1),
            self.rarely(indices, (), None),
            self.value(2),
            self.rarely(None, self.index()),
            self.rarely(None, self.index()),
        )

    def value(self, depth: int) -> Any:
        kind = self.pick("const", "const", "binary", "load", "select", "call", "vector", "junk") if depth else "const"
        sub = depth - 1
        if kind == "binary":
            return Binary(self.pick("add", "lt", "and", "div", "shl", 7), self.value(sub), self.value(sub))  # type: ignore[arg-type]
        if kind == "load":
            return BufferLoad(self.pick(*self.buffers, None), (self.index(),), self.rarely(1, 4, 0, None))
        if kind == "select":
            return Select(self.value(sub), self.value(sub), self.value(sub))
        if kind == "call":
            return Call(self.pick("exp", "fma", "nope", None), self.rarely((self.value(sub),), 3), self.pick("float32", "float32x4", 3))
        if kind == "vector":
            return self.pick(
                Broadcast(self.value(sub), self.pick(4, 0, "4")),
                Ramp(self.index(), self.index(), 4),
                Cast(self.pick("int8", "x", 0), self.value(sub)),
            )
        if kind == "junk":
            return self.pick(None, 1, self.index(), IsNegative(self.index(), self.pick(1, 4, -1)), Not(self.value(sub)))
        return self.pick(const(0, "float32"), const(1, "int32"), const(True, "bool"), Const("x", "float32"), Const(1, "?"))  # type: ignore[arg-type]
