"""The analytic cost reproduces the behaviour of CPUs: bounds, plateaus, cliffs, order of good and bad programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tunesmith.costmodel.analytic.cost import analytic_cost
from tunesmith.costmodel.analytic.model import AnalyticModel
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.ir.tensor_intrinsics.intrinsic import TENSOR_INTRINSICS, TensorIntrinsic
from tunesmith.ops.workload import workload
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules_table import generate
from tunesmith.support.errors import TargetError, UserError

ONE = Target("llvm -mcpu=sapphirerapids -num-cores=1 -l3-bytes=33554432")
TWO = ONE.with_attributes(num_cores=2)


def model(case: Any, target: Target = ONE, backend: str = "auto") -> AnalyticModel:
    return AnalyticModel(case.schedule.func, case.schedule.params, target, backend=backend)


def gemm(n: int, pack: bool) -> Callable[..., float]:
    """Seconds of an n x n x n product by register tile, L1 blocks of rows and panels, on a target."""
    func = workload(f"matmul(m={n},n={n},k={n})").func
    s = Schedule(func, parametric=True)
    b = s.get_block("C")
    i, j, k = s.get_loops(b)
    i0, i1, i2 = s.split(i, [None, *s.sample_tile(i, 3, "i", [range(1, 65), range(1, 65)])])
    fj = s.sample_tile(j, 3, "j", [range(1, 65), range(1, 97)])
    j0, j1, j2 = s.split(j, [None, *fj])
    s.reorder([j0, i0, i1, j1, k, i2, j2])
    w = s.cache_write(b, "register")
    s.reverse_compute_at(w, j1)
    if pack:
        p = s.cache_read(b, "B", "workspace", [[1, "/", fj[-1]], 0, [1, "%", fj[-1]]])
        s.compute_at(p, j0)
        s.vectorize(s.get_loops(p)[-1])
    s.vectorize(j2)
    s.unroll(i2)
    s.vectorize(s.get_loops(w)[-1])
    s.unroll(s.get_loops(w)[-2])
    s.decompose_reduction(b, k)
    s.parallel(j0)
    names = [p.name for p in s.params]
    models = {t: AnalyticModel(s.func, s.params, t) for t in (ONE, TWO)}

    def seconds(rows: int, lanes: int, i1: int = 4, j1: int = 4, target: Target = ONE) -> float:
        values = {"i1": i1, "i2": rows, "j1": j1, "j2": lanes}
        return float(models[target].seconds(np.array([[values[x] for x in names]]))[0])

    return seconds


def test_both_backends_agree(case: Any) -> None:
    rows = case.rows(50)
    a, b = model(case), model(case, backend="numpy")
    assert np.allclose(a.seconds(rows), b.seconds(rows), rtol=1e-9)
    assert np.allclose(a.terms(rows), b.terms(rows), rtol=1e-9, atol=1e-15)
    assert a.terms(rows).shape == (50, len(a.term_names)) and a.term_names[0] == "issue"


def test_time_is_bounded_by_the_peak_and_its_parts(case: Any) -> None:
    rows = case.rows(60)
    for target in (ONE, TWO):
        m = model(case, target)
        seconds, terms = m.seconds(rows), m.terms(rows)
        flops = sum(
            b.flops * float(np.prod([it.extent.as_int() for it in b.block.iters]))
            for b in m.analysis.stores
            if b.flops > 0 == b.counts["call"]
        )
        assert (seconds >= flops / (target.peak_gflops * 1e9) * 0.999).all()
        assert (seconds <= terms.sum(axis=1) * 1.001).all(), "the sum of the parts is an upper bound"
        assert (seconds >= terms.max(axis=1) * 0.999).all()


def test_the_register_tile_has_a_plateau_and_a_cliff() -> None:
    """Measured on one core: 6 x 64, 8 x 32, 12 x 32 and 14 x 32 alike, 15 x 32 (one register too many) 25 % slower, 10 x 48 2 x."""
    seconds = gemm(480, True)
    good = [seconds(r, n, i1=4, j1=2) for r, n in ((6, 64), (8, 32), (12, 32), (14, 32), (9, 48))]
    assert max(good) < 1.25 * min(good)
    best = seconds(14, 32)
    assert 1.15 * best < seconds(15, 32) < 1.8 * best
    assert seconds(10, 48) > 1.6 * seconds(9, 48)
    assert seconds(2, 16) > 1.8 * best and seconds(1, 16) > 1.5 * seconds(2, 16), "latency-bound: too few accumulators"


def test_partial_vectors_waste_lanes() -> None:
    seconds = gemm(480, False)
    assert seconds(8, 17) > 1.5 * seconds(8, 32) and seconds(8, 8) > 1.7 * seconds(8, 16)


def test_packing_pays_for_long_strides() -> None:
    """1024: rows of B are 4 KB apart; measured 24 % on good tiles.  Packing is done once for each task."""
    assert gemm(1024, False)(6, 64) > 1.1 * gemm(1024, True)(6, 64)


def test_threads_help_with_enough_tasks() -> None:
    seconds = gemm(512, False)
    both = [seconds(8, 32, j1=1, target=t) for t in (ONE, TWO)]
    assert 0.45 * both[0] < both[1] < 0.6 * both[0], "half the work each, and half the operands in each cache"
    three = [seconds(8, 32, j1=6, target=t) for t in (ONE, TWO)]  # 512 = 192 + 192 + 128: two tasks for one of the threads
    assert 0.72 * three[0] < three[1] < 0.8 * three[0]
    alone = [seconds(8, 32, j1=16, target=t) for t in (ONE, TWO)]
    assert alone[0] <= alone[1] < 1.01 * alone[0]


def test_small_work_has_thread_overhead(make_case: Callable[[str], Any]) -> None:
    case = make_case("gelu")
    row = np.array([[1, 24]])
    slow = TWO.with_attributes(fork_join_us=50.0)
    assert model(case, slow).seconds(row)[0] > model(case, TWO).seconds(row)[0] + 45e-6


def test_vectors_beat_scalars(make_case: Callable[[str], Any]) -> None:
    case = make_case("gelu")
    scalar, vector = model(case).seconds(np.array([[64, 1], [64, 16]]))
    assert scalar > 4 * vector


def test_memory_bounds_data_larger_than_the_caches() -> None:
    """16 M floats in and out: three times 64 MB of traffic (read, write-allocate, write) with a 32 MB cache."""
    s = Schedule(workload("relu(shape=4096x4096)").func, parametric=True)
    i, j = s.get_loops(s.get_output_blocks()[0])
    _, j1 = s.split(j, [None, *s.sample_tile(j, 2, "j", [(16, 64)])])
    s.vectorize(j1)
    s.parallel(i)
    m = AnalyticModel(s.func, s.params, ONE)
    at_rate = 3 * 64 * 2**20 / (ONE.dram_gbs_core * 1e9)
    seconds = m.seconds(np.array([[64]]))[0]
    assert at_rate <= seconds < 1.5 * at_rate
    dram = m.terms(np.array([[64]]))[0][m.term_names.index("dram")]
    assert dram == pytest.approx(at_rate, rel=1e-6)
    big = AnalyticModel(s.func, s.params, ONE.with_attributes(l3_bytes=1 << 30))
    assert big.terms(np.array([[64]]))[0][m.term_names.index("dram")] == 0, "data that stays in cache between runs is not loaded again"


def issue(text: str, target: Target) -> float:
    """Predicted seconds of the instructions of a program without parameters."""
    m = AnalyticModel(parse(text), (), target)
    return float(m.terms(np.zeros((1, 0), np.int64))[0][m.term_names.index("issue")])


AVX2 = Target("llvm -mcpu=x86-64-v3 -num-cores=1")
REGISTER_TILE = """
@T.prim_func
def tile(A: T.Buffer(({k}, {j}), "float32"), B: T.Buffer(({k}, {i}, 8), "float32"), C: T.Buffer(({i}, {j}, 8), "float32")):
    R = T.alloc_buffer(({i}, {j}, 8), "float32", scope="register")
    for i in T.unroll({i}):
        for j in T.unroll({j}):
            for v in T.vectorized(8):
                with T.block("zero"):
                    vi, vj, vv = T.axis.remap("SSS", [i, j, v])
                    R[vi, vj, vv] = 0.0
    for k in T.serial({k}):
        for {first} in T.unroll({n}):
            for {second} in T.unroll({m}):
                for v in T.vectorized(8):
                    with T.block("sum"):
                        vi, vj, vv, vk = T.axis.remap("SSSR", [i, j, v, k])
                        R[vi, vj, vv] = R[vi, vj, vv] + A[vk, vj] * B[vk, vi, vv]
    for i in T.unroll({i}):
        for j in T.unroll({j}):
            for v in T.vectorized(8):
                with T.block("write"):
                    vi, vj, vv = T.axis.remap("SSS", [i, j, v])
                    C[vi, vj, vv] = R[vi, vj, vv]
"""


def test_operands_of_a_register_tile_are_those_of_the_best_order_of_its_loops() -> None:
    """Lowering orders the loops (`order_unrolled_loops`): 2 x 6 vectors keep two vectors of B alive, and 6 x 2 two values of A."""

    def seconds(i: int, j: int, swapped: bool = False) -> float:
        first, second, n, m = ("j", "i", j, i) if swapped else ("i", "j", i, j)
        return issue(REGISTER_TILE.format(i=i, j=j, k=500, first=first, second=second, n=n, m=m), AVX2) / (i * j)

    assert seconds(2, 6) == pytest.approx(seconds(2, 6, swapped=True), rel=1e-9)
    assert seconds(3, 5) > 1.3 * seconds(2, 6), "15 accumulators and three operands exceed 16 registers"
    assert seconds(1, 14) < 1.2 * seconds(2, 6), "14 accumulators and one operand do not"


ROWS = """
@T.prim_func
def rows(A: T.Buffer((64, {n}), "float32"), C: T.Buffer((64, {n}), "float32")):
    for i in T.serial(64):
        for j in T.serial(12):
            for v in T.vectorized(8):
                with T.block("rows"):
                    vi = T.axis.spatial(64, i)
                    vj = T.axis.spatial({n}, j * 8 + v)
                    C[vi, vj] = A[vi, {index}]
"""


def test_vectors_that_cross_cache_lines_are_two_accesses() -> None:
    """Of rows of 97 elements few vectors begin at multiples of 8: on average each second one crosses a line of 16."""
    aligned, odd = [issue(ROWS.format(n=n, index="vj"), AVX2) for n in (96, 97)]
    assert 1.2 * aligned < odd < 1.8 * aligned


def test_accesses_without_equal_steps_are_scalar() -> None:
    """Lowering makes no vectors of `A[vj // 3]`: each lane is a load, a store and their addresses."""
    whole, thirds = [issue(ROWS.format(n=96, index=index), AVX2) for index in ("vj", "vj // 3")]
    assert thirds > 5 * whole
    shifted = issue(ROWS.format(n=96, index="vj // 8 * 8 + vj % 8"), AVX2)
    assert shifted == pytest.approx(whole, rel=1e-9), "the steps are equal"


def test_rows_read_again_in_the_same_iteration_come_from_cache(make_case: Callable[[str], Any]) -> None:
    """softmax reads its rows four times; only the first read is from memory."""
    case = make_case("softmax")
    small = ONE.with_attributes(l2_bytes=4096, l1_bytes=2048)
    m = AnalyticModel(case.schedule.func, case.schedule.params, small)
    terms = dict(zip(m.term_names, m.terms(np.array([[1, 16]]))[0].tolist(), strict=True))
    rows, columns = 20, 37
    once = rows * columns * 4
    # X once, Y twice (write-allocate and write), in whole lines, and at most the intermediate row in addition.
    assert 3 * once * 0.99 <= terms["l2"] * small.l2_gbs_core * 1e9 <= 4.6 * once


def test_gpus_and_missing_columns_are_refused(make_case: Callable[[str], Any]) -> None:
    case = make_case("gelu")
    with pytest.raises(TargetError, match="analytic_cost supports only CPUs; .* is a cuda target"):
        analytic_cost(model(case).analysis, Target("nvidia/h200"))
    with pytest.raises(UserError, match="is not a column of this sketch"):
        AnalyticModel(case.schedule.func, case.schedule.params[:1], ONE)


def doubled(shape: str, index: str) -> np.ndarray:
    """Terms of C[v] = A[index] * 2 for a vector C of 65,536 elements."""
    func = parse(
        "@T.prim_func\n"
        f'def f(A: T.Buffer({shape}, "float32"), C: T.Buffer((65536,), "float32")):\n'
        "    for i in range(65536):\n        with T.block('C'):\n            v = T.axis.spatial(65536, i)\n"
        f"            C[v] = A[{index}] * 2.0\n"
    )
    return AnalyticModel(func, (), ONE).terms(np.zeros((1, 0), np.int64))


def test_dimensions_of_one_element_do_not_separate_cache_lines() -> None:
    """A column of 64 K elements is as contiguous as a vector."""
    vector = doubled("(65536,)", "v")
    assert vector.max() > 0
    for shape, index in (("(65536, 1)", "v, 0"), ("(65536, 1, 1)", "v, 0, 0"), ("(1, 65536)", "0, v")):
        np.testing.assert_allclose(doubled(shape, index), vector)


def test_short_last_dimensions_share_cache_lines() -> None:
    """Pairs of a packed operand are as contiguous as the elements of a vector."""
    names = AnalyticModel(parse(ROWS.format(n=96, index="vj")), (), ONE).term_names
    caches = [names.index(name) for name in ("l2", "l3", "dram")]
    for shape, index in (("(32768, 2)", "v // 2, v % 2"), ("(2048, 16, 2)", "v // 32, v // 2 % 16, v % 2")):
        np.testing.assert_allclose(doubled(shape, index)[:, caches], doubled("(65536,)", "v")[:, caches])


def test_the_rate_of_an_instruction_is_that_of_the_target() -> None:
    """A slow instruction costs as many slots as its rate says."""
    w = workload("dense(m=64,n=256,k=512,bias=0,dtype=bfloat16,out_dtype=float32)")

    def issue_seconds(target: Target) -> float:
        sketch = next(s for s in generate(w.func, target).sketches if s.name.startswith("dot"))
        rows = sketch.space.sample(500, np.random.default_rng(0))
        m = AnalyticModel(sketch.timed, sketch.space.params, target)
        return float(m.terms(rows)[:, m.term_names.index("issue")].min())

    peak = ONE.peak_gflops_core
    full, half = (issue_seconds(ONE.with_attributes(tensor_rates=f"vdpbf16ps={rate * peak}")) for rate in (2.0, 0.5))
    assert issue_seconds(ONE) == pytest.approx(full), "an unknown rate is that of multiply-adds"
    assert 3.0 * full < half <= 4.0 * full


SCALED_SUM = """
@T.prim_func
def scaled_sum(A: T.Buffer((1,), "float32"), B: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
    for j in T.serial(16):
        with T.block("C"):
            vj = T.axis.spatial(16, j)
            C[vj] = C[vj] + A[0] * B[vj]
"""

ONE_LOOP = TensorIntrinsic("test.scaled_sum", SCALED_SUM, lambda operands, active: None, (frozenset(),))  # type: ignore[arg-type, return-value]
if ONE_LOOP.name not in TENSOR_INTRINSICS:
    TENSOR_INTRINSICS.register(ONE_LOOP.name, ONE_LOOP)


def test_an_instruction_of_one_loop_costs_what_its_intrinsic_says(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Schedule(workload("matmul(m=8,n=48,k=32)").func)
    block = s.get_block("C")
    i, j, k = s.get_loops(block)
    over, lanes = s.split(j, [None, 16])
    s.reorder([i, over, k, lanes])
    s.decompose_reduction(block, k)
    s.tensorize(lanes, ONE_LOOP.name)

    def issue_seconds(target: Target = ONE, **cost: Any) -> float:
        monkeypatch.setitem(TENSOR_INTRINSICS._values, ONE_LOOP.name, replace(ONE_LOOP, **cost))
        m = AnalyticModel(s.func, (), target)
        return float(m.terms(np.zeros((1, 0), np.int64))[0][m.term_names.index("issue")])

    plain = issue_seconds()
    assert issue_seconds(slots=1000.0) == pytest.approx(issue_seconds(slots=100.0) * 10.0, rel=0.05)
    assert issue_seconds(slots=100.0) > 10.0 * plain
    assert issue_seconds(latency=400.0) > 10.0 * plain
    slow = ONE.with_attributes(tensor_rates=f"test={ONE.peak_gflops_core / 1000.0}")
    assert issue_seconds(slow, instruction="test") > 10.0 * plain
