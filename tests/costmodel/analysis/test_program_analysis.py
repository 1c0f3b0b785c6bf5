"""The program analysis compared with enumeration: instances, footprints, guards and dependences of small programs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.costmodel.analysis.operation_kinds import operation_counts
from tunesmith.costmodel.analysis.program_analysis import ProgramAnalysis, Store
from tunesmith.costmodel.formulas.expr_graph import Num, NumpyProgram
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import cast, const, equal, maximum, select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var, evaluate, less_than, poly
from tunesmith.ir.stmt import Block, For, Iter, nest, store
from tunesmith.ir.visit import path_to_block, walk
from tunesmith.support.errors import UserError


def numbers(a: ProgramAnalysis, nodes: list[Num], row: np.ndarray) -> list[float]:
    return NumpyProgram(a.dag, nodes)(row[None, :])[:, 0].tolist()


def instances(s: Store, program: PrimFunc) -> list[dict[Var, int]]:
    """Loop values, in execution order, of the instances of a block that pass its guards (of the concrete program)."""
    path = _path(program.body, s.block.name)
    block, loops = path[-1], [n for n in path if type(n) is For]
    out = []
    for values in itertools.product(*[range(x.extent.as_int()) for x in loops]):
        env = dict(zip([x.var for x in loops], values, strict=True))
        if all(evaluate(p, env) < 0 for p in block.predicate):
            out.append(env | {it.var: evaluate(b, env) for it, b in zip(block.iters, block.bindings, strict=True)})
    return out


def _path(root: Any, name: str) -> list[Any]:
    found = path_to_block(root, name)
    assert found is not None
    return found


MOST = 12_000
"""Maximum number of instances that are enumerated."""


@pytest.mark.parametrize("name", ["gemm ij packed", "gemm one row", "gelu", "softmax", "conv stride"])
def test_executed_instances_and_whole_footprints_are_exact(make_case: Callable[[str], Any], name: str) -> None:
    case = make_case(name)
    s = case.schedule
    a = ProgramAnalysis(s.func, tuple(s.params))
    checked = 0
    for row in case.rows(8, seed=3):
        program = case.program(row)
        for st in a.stores:
            total, executed, guarded = numbers(a, [st.total, st.executed, st.guarded], row)
            if total > MOST or (name == "conv stride" and st.block.name == "Pad"):
                continue  # overlapping windows: the pad's tiles at the border are an estimate
            runs = instances(st, program)
            assert executed == pytest.approx(len(runs), rel=1e-9), (row, st.block.name)
            assert bool(guarded) == (len(runs) < total)
            for u in st.uses.values():
                accessed = len({tuple(evaluate(e, env) for e in _concrete(program, st, u.buffer.name)) for env in runs})
                footprint = np.prod(numbers(a, list(st.extents(u, len(st.loops))), row))
                assert accessed <= footprint
                if u.writes:
                    assert accessed == footprint, (row, st.block.name, u.buffer.name)
            checked += 1
    assert checked >= 8


def _concrete(program: PrimFunc, st: Store, buffer: str) -> tuple[Any, ...]:
    block = _path(program.body, st.block.name)[-1]
    return next(n.indices for n in walk(block) if getattr(getattr(n, "buffer", None), "name", None) == buffer)


@pytest.mark.parametrize("name", ["gemm ij packed", "gelu", "softmax", "conv"])
def test_dependence_on_a_loop_equals_evaluation(make_case: Callable[[str], Any], name: str) -> None:
    case = make_case(name)
    s = case.schedule
    a = ProgramAnalysis(s.func, tuple(s.params))
    rng = np.random.default_rng(0)
    for row in case.rows(8, seed=5):
        values = dict(zip(s.params, row.tolist(), strict=True))
        for st in a.stores:
            sizes = numbers(a, [x.size for x in st.loops], row)
            for u in st.uses.values():
                answers = numbers(a, [x.non_trivial * st.indexed(u, x) for x in st.loops], row)
                for k, x in enumerate(st.loops):
                    seen = False
                    for _ in range(60):
                        env = values | {y.var: int(rng.integers(n)) for y, n in zip(st.loops, sizes, strict=True)}
                        here = [
                            [evaluate(e, env | {x.var: v}) for at in u.at for e in at]
                            for v in sorted({int(q * (sizes[k] - 1) / 40) for q in range(41)})
                        ]
                        seen |= any(h != here[0] for h in here)
                    assert seen == bool(answers[k]), (row, st.block.name, u.buffer.name, x.var)


def test_levels_and_rounding_of_a_packed_gemm(make_case: Callable[[str], Any]) -> None:
    case = make_case("gemm ij packed")
    s = case.schedule
    a = ProgramAnalysis(s.func, tuple(s.params))
    row = np.array([{"i1": 2, "i2": 2, "i3": 5, "j1": 1, "j2": 2, "j3": 16, "k1": 1}[p.name] for p in s.params])
    packed, accumulators = (next(b for b in s.func.allocs if b.name == n) for n in ("B_copy", "C_register"))
    assert numbers(a, list(a.allocated(packed)), row) == [2, 30, 16]
    assert numbers(a, list(a.allocated(accumulators)), row) == [5, 16]
    main = next(x for x in a.stores if x.block.name == "C")
    assert a.reuse_level(main, accumulators) == 4 and a.reuse_level(main, packed) == 6
    assert main.loops[0].kind == "vectorized" and numbers(a, [main.rounding(2), main.rounding(1)], row) == [80 / 70, 80 / 70]
    # A block in the nest of another: both are under their shared loops.
    assert [x.block.name for x in a.under(main.loops[-1])] == ["B_copy", "C_init", "C", "C_write"]
    assert a.others(main, main.loops[-1], accumulators) == 2 and a.others(main, main.loops[0], accumulators) == 0


def test_strides_are_taken_at_the_first_step(make_case: Callable[[str], Any]) -> None:
    case = make_case("gemm ij packed")
    s = case.schedule
    a = ProgramAnalysis(s.func, tuple(s.params))
    row = np.array([{"i1": 1, "i2": 2, "i3": 5, "j1": 1, "j2": 2, "j3": 16, "k1": 1}[p.name] for p in s.params])
    main = next(x for x in a.stores if x.block.name == "C")
    steps = {u.buffer.name: numbers(a, [main.stride(u, x) for x in main.loops[:4]], row) for u in main.uses.values()}
    assert steps["A"] == [0, 30, 0, 1] or steps["A"] == [0, 30, 1, 1]
    assert steps["B_copy"][0] == 1 and steps["B_copy"][1] == 0 and steps["B_copy"][3] == 16


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8, 12])
def test_linear_accesses_have_equal_steps(n: int) -> None:
    """Judged by three iterations: right for quotients and remainders, whose steps differ first at a multiple of the divisor."""
    v, i = Var("v"), Var("i")
    w = poly(v)
    indices = [w * 3, w // 2, w // 12, w // 4 * 8 + w % 4, w // 4 * 4 + w % 4, w % 3, (w + 1) // 2, (w + 8) // 12, w * 2 // 3]
    for index in indices:
        x, y = Buffer("X", (64,)), Buffer("Y", (n,))
        block = Block("Y", (Iter(v, poly(n), "S"),), (poly(i),), (), None, store(y, (v,), x[index]))
        a = ProgramAnalysis(PrimFunc("f", (x, y), (), nest([(i, n)], block)), ())
        (s,) = a.stores
        (use,) = [u for u in s.uses.values() if u.buffer is x]
        at = [evaluate(index, {v: k}) for k in range(n)]
        (found,) = numbers(a, [s.linear(use, use.at[0], s.loops[0])], np.zeros(0, np.int64))
        assert bool(found) == (len({b - a for a, b in itertools.pairwise(at)}) <= 1), (str(index), n)


@pytest.mark.parametrize(("n", "row", "pitch"), list(itertools.product([2, 4, 6], [4, 6, 12, 7], [12, 13])))
def test_linear_accesses_cross_no_row(n: int, row: int, pitch: int) -> None:
    """Iterations of an outer loop that begin elsewhere in a row count: 4 elements of a row of 6 cross its end in the second one."""
    v, f, i, g = Var("v"), Var("f"), Var("i"), Var("g")
    at = poly(f) * n + poly(v)
    index = at // row * pitch + at % row
    x, y = Buffer("X", (64,)), Buffer("Y", (4, n))
    iters = (Iter(f, poly(4), "S"), Iter(v, poly(n), "S"))
    block = Block("Y", iters, (poly(g), poly(i)), (), None, store(y, (f, v), x[index]))
    a = ProgramAnalysis(PrimFunc("f", (x, y), (), nest([(g, 4), (i, n)], block)), ())
    (s,) = a.stores
    (use,) = [u for u in s.uses.values() if u.buffer is x]
    rows = [[evaluate(index, {v: k, f: o}) for k in range(n)] for o in range(4)]
    (found,) = numbers(a, [s.linear(use, use.at[0], s.loops[0])], np.zeros(0, np.int64))
    assert bool(found) == (len({b - a for at in rows for a, b in itertools.pairwise(at)}) == 1)


def test_operations_by_kind() -> None:
    x, n, y = Buffer("X", (8,)), Buffer("N", (8,), "int32"), Buffer("Y", (8,))
    v, i = Var("v"), Var("i")
    inside = less_than(0, v)
    value = (
        select(inside, maximum(x[v] * x[v] + x[v], 0.0) / x[v], 0.0)
        + select(x[v] > 0.0, x[v], 1.0)
        + cast("float32", n[v] + const(1, "int32"))
    )
    value = select(equal(v, 3), value, 0.0)
    block = Block("Y", (Iter(v, poly(8), "S"),), (poly(i),), (), None, store(y, (v,), value))
    counts = operation_counts(block)
    assert counts == {"add": 3, "mul": 1, "div": 1, "max": 2, "call": 0, "select": 1, "mask": 2, "cast": 1, "integer": 1}
    assert ProgramAnalysis(PrimFunc("f", (x, n, y), (), nest([(i, 8)], block)), ()).stores[0].flops == 7


def test_a_param_that_is_not_a_column_is_named(make_case: Callable[[str], Any]) -> None:
    s = make_case("gelu").schedule
    with pytest.raises(
        UserError, match=r"which is not a column of this sketch \(columns: f1\); pass every Param of the program in `params`"
    ):
        ProgramAnalysis(s.func, (s.params[0],))
