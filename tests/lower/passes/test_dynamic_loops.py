"""Lowering of programs with dynamic shapes."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.ir.arith.linear import linear
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import IsNegative, Select, select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var, floordiv, less_than, poly
from tunesmith.ir.stmt import Allocate, Block, BufferStore, Iter, nest, seq, store
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.code_size import UNROLLED, code_size
from tunesmith.lower.passes.version_loops import version_loops
from tunesmith.lower.pipelines import CPU
from tunesmith.measure.evaluator.guard_pages import GuardedArray
from tunesmith.ops import tensor_expression as te
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule
from tunesmith.support import dtype as dt

TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=2")


def test_linear() -> None:
    vi, vj, vn, vm = (Var(x) for x in "ijnm")
    i, j, n, m = poly(vi), poly(vj), poly(vn), poly(vm)
    assert linear(i * 3 + j, vi, ()) == (poly(3), j)
    assert linear(i * n * 2 + i + j * n, vi, (vn,)) == (n * 2 + 1, j * n)
    assert linear(i * n * floordiv(m, 4), vi, (vn, vm)) == (n * floordiv(m, 4), poly(0))
    assert linear(i * n, vi, ()) is None
    assert linear(i * j, vi, (vn,)) is None
    assert linear(i * i * n, vi, (vn,)) is None
    assert linear(floordiv(i, n) + i * n, vi, (vn,)) is None


def doubled_rows() -> Schedule:
    n = te.var("n")
    x = te.placeholder((n, 8), name="x")
    func = te.create_prim_func([x, te.compute((n, 8), lambda i, j: x[i, j] + x[i, j], "Y")], "f")
    return Schedule(func)


def test_every_size_of_a_partial_tile_has_its_own_code() -> None:
    s = doubled_rows()
    i, j = s.get_loops(s.get_block("Y"))
    _, rows = s.split(i, [None, 4])
    s.reorder([j, rows])
    s.unroll(rows)
    out = CPU(s.func, TARGET)
    stores = [x for x in walk(out.body) if type(x) is BufferStore]
    assert len(stores) == 4 + 3 + 2 + 1
    assert sum(type(x) is IsNegative for x in walk(out.body)) == 3, "a tile has 4, 3, 2 or else 1 row; no branch inside a tile"


def test_large_tiles_have_fewer_partial_tiles() -> None:
    """Sixteen rows of exponentials: a tile for each rest would exceed the limit on unrolled code."""
    n = te.var("n")
    x = te.placeholder((n, 16), name="x")
    s = Schedule(te.create_prim_func([x, te.compute((n, 16), lambda i, j: te.exp(te.exp(x[i, j])), "Y")], "f"))
    i, j = s.get_loops(s.get_block("Y"))
    s.unroll(s.split(i, [None, 16])[1])
    s.vectorize(j)
    lanes = TARGET.vector_lanes("float32")
    one = code_size(s.func.body, lanes)
    assert 2 * one < UNROLLED // 2 < 8 * one
    assert code_size(version_loops(s.func, TARGET).body, lanes) < 4 * one


def test_a_long_partial_tile_is_masked() -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    s = Schedule(te.create_prim_func([x, te.compute((n,), lambda i: x[i] + x[i], "Y")], "f"))
    s.vectorize(s.split(s.get_loops(s.get_block("Y"))[0], [None, 16])[1])
    stores = [x for x in walk(CPU(s.func, TARGET).body) if type(x) is BufferStore]
    assert [x.mask is None for x in stores] == [True] * 4 + [False] * 4


def test_buffers_keep_symbolic_dimensions_and_compact_others() -> None:
    n, m = Var("n"), Var("m")
    x, y, t = Buffer("x", (n, m)), Buffer("y", (n, m)), Buffer("t", (n, m))
    i, j, k = Var("i"), Var("j"), Var("k")
    at, to = (Var("a"), Var("b")), (Var("c"), Var("d"))
    first = Block("t", tuple(map(spatial, at, (n, m))), (poly(i), poly(j)), (), None, store(t, at, x[at] + x[at]))
    second = Block("y", tuple(map(spatial, to, (n, m))), (poly(i), poly(k)), (), None, store(y, to, t[to] + x[to]))
    func = PrimFunc("f", (x, y, n, m), (t,), nest([(i, n)], seq([nest([(j, m)], first), nest([(k, m)], second)])))
    (made,) = [b.buffer for b in walk(CPU(func, TARGET).body) if type(b) is Allocate]
    assert str(made.shape[0]) == "m"


def spatial(v: Var, extent: Var) -> Iter:
    return Iter(v, poly(extent), "S")


def test_strides_may_be_dynamic() -> None:
    n, m = te.var("n"), te.var("m")
    x = te.placeholder((n, m), name="x")
    s = Schedule(te.create_prim_func([x, te.compute((m, n), lambda i, j: x[j, i], "Y")], "f"))
    s.vectorize(s.split(s.get_loops(s.get_block("Y"))[1], [None, 4])[1])
    loads = [x for x in walk(CPU(s.func, TARGET).body) if type(x) is BufferLoad]
    assert {str(x.stride) for x in loads} == {"m"}


@pytest.mark.parametrize("sizes", [(), (5, 6), (1, 10), (3, 4096)])
def test_the_unselected_side_is_not_read(sizes: tuple[int, ...]) -> None:
    """A vector with elements of both joined operands must not read before the start of the second one."""
    n, m = (te.var("n"), te.var("m")) if sizes else (poly(5), poly(6))
    a, b = te.placeholder((n,), name="a"), te.placeholder((m,), name="b")
    out = te.compute((n + m,), lambda i: select(less_than(i, n), a[i], b[i - n]), "Y")
    s = Schedule(te.create_prim_func([a, b, out], "f"))
    s.vectorize(s.split(s.get_loops(s.get_block("Y"))[0], [None, 4])[1])
    whole = [x for x in walk(CPU(s.func, TARGET).body) if type(x) is BufferStore and dt.lanes(x.value.dtype) > 1]
    assert whole and not any(type(x) is Select for st in whole for x in walk(st)), "each vector reads only one operand"
    p, q = sizes or (5, 6)
    given = [GuardedArray("float32", shape) for shape in ((p,), (q,), (p + q,))]
    given[0].data[...], given[1].data[...] = np.arange(p), np.arange(q) + 100
    Module.from_object(build(s.func, TARGET).data)["f"](*[g.data for g in given], *sizes)
    np.testing.assert_array_equal(given[2].data, np.concatenate([given[0].data, given[1].data]))
