"""Test tensorize: nests that are marked, results of the instructions, partial tiles, targets without the unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tunesmith import build
from tunesmith.codegen.llvm.build import assembly
from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Binary, Broadcast, Call, const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import BufferStore, For, Seq, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.tensor_intrinsics.intrinsic import TENSOR_INTRINSICS, Operand, TensorIntrinsic
from tunesmith.ir.visit import transform
from tunesmith.lower.pipelines import CPU
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import BuildError, UserError

Apply = Callable[..., Schedule]
Golden = Callable[..., None]

HERE = Target.detect()
ZEN5 = Target("llvm -mcpu=znver5 -num-cores=2")
ALDER = Target("llvm -mcpu=alderlake -num-cores=2")
OLD = Target("llvm -mcpu=x86-64-v4 -num-cores=2")
"""AVX-512 without VNNI."""


def product(m: int, n: int, k: int, lanes: int = 16) -> PrimFunc:
    """C = A @ B of bytes, where B is packed: [column / lanes][k / 4][column % lanes][k % 4]."""
    packed = (-(-n // lanes), -(-k // 4), lanes, 4)
    made = parse(f"""
@T.prim_func
def product(A: T.Buffer(({m}, {k}), "uint8"), B: T.Buffer({packed}, "int8"), C: T.Buffer(({m}, {n}), "int32")):
    for i, j, k in T.grid({m}, {n}, {k}):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + T.cast("int32", A[vi, vk]) * T.cast("int32", B[vj // {lanes}, vk // 4, vj % {lanes}, vk % 4])
""")
    assert isinstance(made, PrimFunc)
    return made


def tiled(s: Schedule, rows: int, vectors: int, lanes: int = 16) -> None:
    """A register tile of rows x vectors whose update is tensorized."""
    b = s.get_block("C")
    c = s.cache_write(b, "register")
    i, j, k = s.get_loops(b)
    i0, i1 = s.split(i, [None, s.sample_tile(i, 2, domains=[(rows,)], waste=9.0)[0]])
    j0, j1, j2 = s.split(j, [None, s.sample_tile(j, 2, domains=[(vectors,)], waste=9.0)[0], lanes])
    k0, k1 = s.split(k, [None, 4])
    s.reorder([i0, j0, k0, i1, j1, j2, k1])
    s.reverse_compute_at(c, j0)
    init = s.decompose_reduction(b, k0)
    s.tensorize(j2, f"x86.vpdpbusd.{32 * lanes}")
    for x in (i1, j1, *s.get_loops(init)[2:-1], *s.get_loops(c)[2:-1]):
        s.unroll(x)
    s.vectorize(s.get_loops(init)[-1])
    s.vectorize(s.get_loops(c)[-1])


def operands(func: PrimFunc, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, B and the expected C."""
    a_shape, b_shape, c_shape = ([e.as_int() for e in b.shape] for b in func.params)  # type: ignore[union-attr]
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 256, a_shape).astype("uint8"), rng.integers(-128, 128, b_shape).astype("int8")
    whole = b.transpose(1, 3, 0, 2).reshape(b_shape[1] * 4, -1)[: a_shape[1], : c_shape[1]]
    return a, b, a.astype("int32") @ whole.astype("int32")


def compiled(func: PrimFunc, target: Target, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
    c = np.full(out.shape, 77, "int32")
    build(func, target)[func.name](a, b, c)
    return c


def test_tensorize(apply: Apply, assert_golden: Golden) -> None:
    s = apply(product(8, 64, 32), lambda s: tiled(s, 4, 2), decisions=((4,), (2,)))
    assert_golden(str(s.func))


@pytest.mark.parametrize(("lanes", "register"), [(16, "zmm"), (8, "ymm"), (4, "xmm")])
def test_register_tiles(lanes: int, register: str) -> None:
    """The interpreter runs the loops, the lowered program and the compiled one the instruction; all agree with numpy."""
    func = product(8, 4 * lanes, 32, lanes)
    s = Schedule(func, decisions=((4,), (2,)))
    tiled(s, 4, 2, lanes)
    a, b, want = operands(func)
    np.testing.assert_array_equal(run(s.func, [a, b])[-1], want)
    lowered = CPU(s.func, ZEN5)
    np.testing.assert_array_equal(run(lowered, [a.ravel(), b.ravel()])[-1], want.ravel())
    text = assembly(s.func, ZEN5)
    assert sum("vpdpbusd" in line and f"%{register}" in line for line in text.splitlines()) == 8
    if {"avx512vnni", "avx512vl"} <= HERE.features:
        np.testing.assert_array_equal(compiled(s.func, HERE, a, b, want), want)
    if lanes < 16:
        assert "vpdpbusd" in assembly(s.func, ALDER), "AVX-VNNI has the same instruction"


@pytest.mark.parametrize(("m", "n", "k"), [(7, 64, 32), (8, 50, 32), (9, 33, 36), (8, 64, 30), (5, 40, 22)])
def test_partial_tiles_are_loops(m: int, n: int, k: int) -> None:
    func = product(m, n, k)
    s = Schedule(func, decisions=((4,), (1,)))
    tiled(s, 4, 1)
    a, b, want = operands(func)
    np.testing.assert_array_equal(run(s.func, [a, b])[-1], want)
    assert "vpdpbusd" in assembly(s.func, ZEN5)
    if "avx512vnni" in HERE.features:
        np.testing.assert_array_equal(compiled(s.func, HERE, a, b, want), want)


def test_leading_lanes_are_masked() -> None:
    """The last vector of 50 columns has two."""
    s = Schedule(product(8, 50, 32), decisions=((4,), (1,)))
    tiled(s, 4, 1)
    text = assembly(s.func, ZEN5)
    assert "imul" not in text and "vpmulld" not in text and "{%k1}" in text


def test_a_function_with_partial_tiles_only_is_refused() -> None:
    s = Schedule(product(8, 16, 3), decisions=((4,), (1,)))
    tiled(s, 4, 1)
    with pytest.raises(BuildError, match=r"product: every tile of the tensor intrinsic x86.vpdpbusd.512 is partial.*pad_einsum"):
        build(s.func, ZEN5)


@pytest.mark.parametrize("target", [OLD, ALDER, Target("llvm -mcpu=znver5 -mattr=-avx512vnni -num-cores=2")])
def test_targets_without_the_unit_are_refused(target: Target) -> None:
    s = Schedule(product(8, 64, 32), decisions=((4,), (2,)))
    tiled(s, 4, 2)
    with pytest.raises(
        BuildError, match=r"product: the tensor intrinsic x86.vpdpbusd.512 needs a target of kind llvm with the features avx512vnni"
    ):
        build(s.func, target)


def test_overflow_wraps_around() -> None:
    func = product(1, 16, 4)
    s = Schedule(func)
    s.decompose_reduction(s.get_block("C"), s.get_loops(s.get_block("C"))[0])
    s.tensorize(s.get_loops(s.get_block("C"))[1], "x86.vpdpbusd.512")
    start = np.full((1, 16), 2**31 - 1, "int32")
    text = str(s.func).replace("C[vi, vj] = T.int32(0)", f"C[vi, vj] = T.int32({2**31 - 1})")
    grown = parse(text)
    a, b = np.full((1, 4), 255, "uint8"), np.full((1, 1, 16, 4), 127, "int8")
    with np.errstate(over="ignore"):
        want = start + np.int32(4 * 255 * 127)
    np.testing.assert_array_equal(run(grown, [a, b])[-1], want)
    if "avx512vnni" in HERE.features:
        np.testing.assert_array_equal(compiled(grown, HERE, a, b, want), want)


HALVES = """
@T.prim_func
def halves(A: T.Buffer((2,), "bfloat16"), B: T.Buffer((16, 2), "bfloat16"), C: T.Buffer((16,), "float32")):
    for j, k in T.grid(16, 2):
        with T.block("C"):
            vj, vk = T.axis.remap("SR", [j, k])
            C[vj] = C[vj] + T.cast("float32", B[vj, vk]) * T.cast("float32", A[vk])
"""


def test_operands_of_a_product_in_either_order() -> None:
    s = Schedule(parse(HALVES))
    s.tensorize(s.get_loops(s.get_block("C"))[0], "x86.vdpbf16ps.512")
    assert "vdpbf16ps" in assembly(s.func, ZEN5)


def _added(operands: Mapping[str, Operand], active: Poly | None) -> For:
    """C[j] += A[j] for as many iterations as given."""
    a, c, j = operands["A"], operands["C"], Var("t")
    total = Binary("add", BufferLoad(c.buffer, (c.index + j,)), BufferLoad(a.buffer, (a.index + j,)))
    return For(j, poly(4) if active is None else active, BufferStore(c.buffer, (c.index + j,), total))


ADDITION = TensorIntrinsic(
    "test.add",
    """
@T.prim_func
def add(A: T.Buffer((4,), "int32"), C: T.Buffer((4,), "int32")):
    for j in T.serial(4):
        with T.block("C"):
            vj = T.axis.spatial(4, j)
            C[vj] = C[vj] + A[vj]
""",
    _added,
    (frozenset(),),
    masked=True,
)
if "test.add" not in TENSOR_INTRINSICS:
    TENSOR_INTRINSICS.register("test.add", ADDITION)


def accumulated(n: int, rows: int) -> tuple[Schedule, np.ndarray]:
    s = Schedule(
        parse(f"""
@T.prim_func
def accumulated(A: T.Buffer(({rows}, {n}), "int32"), C: T.Buffer(({rows}, {n}), "int32")):
    for i, j in T.grid({rows}, {n}):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = C[vi, vj] + A[vi, vj]
""")
    )
    return s, np.arange(rows * n, dtype="int32").reshape(rows, n)


def test_no_more_iterations_are_active_than_the_nest_has() -> None:
    """The unrolled loop over tiles is inside another one, so that whole and partial tiles keep one guard."""
    s, a = accumulated(9, 3)
    i, j = s.get_loops(s.get_block("C"))
    j0, j1, j2 = s.split(j, [None, 2, 4])
    s.reorder([j1, i, j0, j2])
    s.unroll(j0)
    s.tensorize(j2, "test.add")
    c = np.zeros_like(a)
    build(s)["accumulated"](a, c)
    np.testing.assert_array_equal(c, a)


def test_indices_that_guards_simplify_are_partial_tiles() -> None:
    """One column: the guard j < 1 makes every index that of the first lane."""
    s, _ = accumulated(1, 5)
    s.tensorize(s.split(s.get_loops(s.get_block("C"))[1], [None, 4])[1], "test.add")
    with pytest.raises(BuildError, match=r"every tile of the tensor intrinsic test.add is partial.*pad_einsum"):
        build(s)


@pytest.mark.parametrize("features", ["avx2", ("avx2",), [frozenset({"avx2"})], frozenset({"avx2"}), ()])
def test_features_are_sets(features: tuple[frozenset[str], ...]) -> None:
    with pytest.raises(UserError, match=r"test\.none: features=.* is not a tuple of frozensets.*Spell it \(frozenset\("):
        TensorIntrinsic("test.none", "", lambda operands, active: Seq(()), features=features)


def test_an_implementation_returns_a_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Schedule(product(8, 64, 32), decisions=((4,), (2,)))
    tiled(s, 4, 2)
    known = TENSOR_INTRINSICS.get("x86.vpdpbusd.512")
    monkeypatch.setitem(TENSOR_INTRINSICS._values, known.name, replace(known, implementation=lambda operands, active: None))
    with pytest.raises(BuildError, match=r"x86\.vpdpbusd\.512 returned an object of type NoneType, not a statement of tunesmith\.ir"):
        CPU(s.func, ZEN5)


def _broken(kind: str) -> Callable[..., Stmt]:
    """Implementations of vpdpbusd with a mistake."""
    right = TENSOR_INTRINSICS.get("x86.vpdpbusd.512").implementation

    def change(n: Call, recurse: Any) -> Any:
        if n.name != "vpdpbusd":
            return n.map_children(recurse)
        c, a, b = n.args
        return {
            "arity": Call("vpdpbusd", (c, a), n.dtype),
            "lanes": Call("vpdpbusd", (c, a, b), "int32x8"),
            "name": Call("vpdpbusd5", (c, a, b), n.dtype),
            "types": Binary("add", n, Broadcast(const(1.0, "float32"), 16)),
            "fma": Call("fma", (c, c, Broadcast(const(1, "int32"), 8)), n.dtype),
        }[kind]

    return lambda operands, active: transform(right(operands, active), {Call: change})


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("arity", "vpdpbusd takes 3 operands, got 2"),
        ("lanes", "the operands of vpdpbusd for a result of int32x8 are"),
        ("name", "unknown intrinsic 'vpdpbusd5'"),
        ("types", "the operands of add are int32x16 and float32x16"),
        ("fma", "the result of fma is int32x16, and its operands are .* of another number of lanes"),
    ],
)
def test_mistakes_of_an_implementation_are_named(kind: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = Schedule(product(8, 64, 32), decisions=((4,), (2,)))
    tiled(s, 4, 2)
    known = TENSOR_INTRINSICS.get("x86.vpdpbusd.512")
    monkeypatch.setitem(TENSOR_INTRINSICS._values, known.name, replace(known, implementation=_broken(kind)))
    with pytest.raises(BuildError, match=rf"product: the implementation of the tensor intrinsic x86\.vpdpbusd\.512: {message}"):
        CPU(s.func, ZEN5)


def test_an_unknown_operand_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Schedule(product(8, 64, 32), decisions=((4,), (2,)))
    tiled(s, 4, 2)
    known = TENSOR_INTRINSICS.get("x86.vpdpbusd.512")
    monkeypatch.setitem(TENSOR_INTRINSICS._values, known.name, replace(known, implementation=lambda operands, active: operands["X"]))
    with pytest.raises(BuildError, match=r"x86\.vpdpbusd\.512 asks for the operand 'X'; its description has the operands C, A, B"):
        CPU(s.func, ZEN5)
