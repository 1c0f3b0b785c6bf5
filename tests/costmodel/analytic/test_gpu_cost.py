"""The analytic cost of GPU programs: exact parts against tables and enumeration, order of good and bad programs."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from tunesmith.costmodel.analysis.gpu_access import sectors, wavefronts
from tunesmith.costmodel.analysis.program_analysis import ProgramAnalysis, Store
from tunesmith.costmodel.analytic.gpu_cost import gpu_cost
from tunesmith.costmodel.analytic.model import AnalyticModel
from tunesmith.costmodel.formulas.expr_graph import Dag, Num, NumpyProgram
from tunesmith.ir.poly import Param, Poly, poly
from tunesmith.ir.target.occupancy import INTEGERS, register_cap, resident_blocks
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.seeds import stream

H200 = Target("nvidia/h200")
KINDS = tuple(range(8))
THREE = (Param("T", range(1, 1025)), Param("R", range(1, 256)), Param("S", range(233473)))


@pytest.mark.parametrize(("arch", "memory"), [("sm_80", 164 * 1024), ("sm_90", 228 * 1024)])
def test_occupancy_equals_the_table(gpu: ModuleType, arch: str, memory: int) -> None:
    """20,000 random kernels; the formula on integers, and on graph nodes."""
    target = Target(f"cuda -arch={arch}")
    rng = stream(0, "occupancy", arch)
    rows = np.stack([rng.integers(1, 1025, 20000), rng.integers(16, 256, 20000), rng.integers(0, memory, 20000)], axis=1)
    rows[::3, 0] = rows[::3, 0] // 32 * 32 + 32 * (rows[::3, 0] < 32)
    rows[::2, 2] //= 16
    d = Dag(THREE)
    t, r, s = columns(d)
    found = NumpyProgram(d, [resident_blocks(d, target, t, r, s)])(rows)[0]
    assert found.tolist() == [gpu.resident(*row, 1024, memory) for row in rows.tolist()]
    legal = rows[:, 2] <= target.shared_memory_per_block
    assert found[legal].tolist() == [resident_blocks(INTEGERS, target, *row) for row in rows[legal].tolist()]
    assert len(set(found.tolist())) > 8 and (found == 0).any()


def columns(d: Dag) -> list[Num]:
    return [d._node("param", (float(i),)) for i in range(3)]


def test_register_caps() -> None:
    """Published pairs: 256 threads may have 128 registers with two blocks and 80 with three; one more register costs a block."""
    d = Dag(THREE)
    t, r, s = columns(d)
    rows = np.array([[256, 1, 0], [256, 2, 0], [256, 3, 0], [1024, 1, 0], [128, 4, 0]])
    assert NumpyProgram(d, [register_cap(d, H200, t, r)])(rows)[0].tolist() == [255, 128, 80, 64, 128]
    for threads, blocks in ((256, 2), (192, 3), (512, 1), (96, 5)):
        cap = NumpyProgram(d, [register_cap(d, H200, t, r)])(np.array([[threads, blocks, 0]]))[0][0]
        fit = NumpyProgram(d, [resident_blocks(d, H200, t, r, s)])(np.array([[threads, cap, 0], [threads, cap + 8, 0]]))[0]
        assert fit[0] >= blocks > fit[1] and cap == register_cap(INTEGERS, H200, threads, blocks)


def pieces(function: Callable[..., Num], steps: list[int], *rest: float) -> float:
    d = Dag(())
    found = function(d, [d.const(x) for x in steps], d.const(rest[0]), *rest[1:]).const
    assert found is not None
    return found


def powers(first: int) -> list[int]:
    return [first << b for b in range(5)]


def test_sectors_of_a_warp() -> None:
    assert pieces(sectors, powers(4), 4) == 4, "neighbours: 128 bytes"
    assert pieces(sectors, powers(16), 16) == 16, "vectors of 16 bytes: 512 bytes"
    assert pieces(sectors, [0] * 5, 4) == 1, "one address"
    assert pieces(sectors, powers(8), 4) == 8, "every second element"
    assert pieces(sectors, powers(4096), 4) == 32, "each in its own row"
    assert pieces(sectors, [4, 8, 16, 4096, 8192], 4) == 4, "four rows of 32 bytes"
    assert pieces(sectors, [4096, 8192, 4, 8, 16], 4) == 4, "the same, rows first"


def test_shared_memory_passes() -> None:
    """A tile As[k][m] filled by vectors along k: rows of 128, padded or not, are 528 or 512 bytes apart."""
    assert pieces(wavefronts, powers(1), 1, 1.0) == 1 and pieces(wavefronts, [0] * 5, 1, 1.0) == 1
    assert pieces(wavefronts, powers(32), 1, 1.0) == 32 and pieces(wavefronts, powers(33), 1, 1.0) == 1
    assert pieces(wavefronts, powers(2), 1, 1.0) == 2, "every second bank"
    assert pieces(wavefronts, powers(4), 4, 1.0) == 4, "16 bytes per thread: four passes, a quarter of the warp each"
    for padded, counts in ((132, (1, 2, 4)), (128, (2, 4, 8))):
        for vectors, expected in zip((1, 2, 3), counts, strict=True):  # 2, 4, 8 vectors along k: pieces of 8, 16, 32
            steps = [4 * padded << b for b in range(vectors)] + [1 << b for b in range(5 - vectors)]
            assert pieces(wavefronts, steps, 1, 1.0) == expected


@pytest.mark.parametrize("k", KINDS)
def test_the_cost_of_a_row_equals_that_of_its_program(gpu: ModuleType, k: int) -> None:
    """The formulas of a sketch at a row equal those of the concrete program, without unit loops and with divisions folded."""
    for target in (gpu.H200, gpu.OPENCL):
        for sketch in gpu.sketches(gpu.WORKLOADS[k], target):
            rows = gpu.rows_of(sketch, 6)
            model = AnalyticModel(sketch.func, sketch.params, target)
            slow = AnalyticModel(sketch.func, sketch.params, target, backend="numpy")
            seconds, terms = model.seconds(rows), model.terms(rows)
            assert np.allclose(slow.seconds(rows), seconds, rtol=1e-9) and np.allclose(slow.terms(rows), terms, rtol=1e-9)
            for row, found, parts in zip(rows, seconds, terms, strict=True):
                cost = gpu_cost(ProgramAnalysis(sketch.concretize(tuple(row.tolist())), ()), target)
                assert cost.seconds.const == pytest.approx(found, rel=1e-6), (sketch.name, row.tolist())
                assert [x.const for x in cost.terms.values()] == pytest.approx(parts.tolist(), rel=1e-6, abs=1e-15)


@pytest.mark.parametrize("k", KINDS)
def test_time_is_bounded_by_the_peak_and_its_parts(gpu: ModuleType, k: int) -> None:
    for sketch in gpu.sketches(gpu.WORKLOADS[k]):
        rows = gpu.rows_of(sketch, 200)
        model = AnalyticModel(sketch.func, sketch.params, H200)
        seconds, terms = model.seconds(rows), model.terms(rows)
        assert np.isfinite(seconds).all() and (seconds > H200.launch_us * 1e-6).all()
        assert (seconds >= terms.max(axis=1) * 0.999).all() and (seconds <= terms.sum(axis=1) * 1.001).all()
        work = [s.flops * float(np.prod([e.as_int() for e in extents(s)])) for s in model.analysis.stores if not s.counts["call"]]
        flops = max([0.0, *work])
        assert (seconds >= flops / (H200.peak_gflops * 1e9)).all()


def extents(s: Store) -> list[Poly]:
    """Extents of a block's iterations, if they are the same for all rows."""
    found = [it.extent for it in s.block.iters]
    return found if all(e.const is not None for e in found) else [poly(0)]


def one_kernel(text: str, schedule: Callable[[Schedule], None], target: Target = H200) -> Callable[..., float]:
    """Seconds of a schedule by its Params."""
    s = Schedule(workload(text).func, parametric=True)
    schedule(s)
    model = AnalyticModel(s.func, s.params, target)
    names = [p.name for p in s.params]
    return lambda **values: float(model.seconds(np.array([[values[n] for n in names]], np.int64).reshape(1, -1))[0])


def flat(s: Schedule) -> None:
    """Elements bound to threads in order."""
    loop = s.fuse(s.get_loops(s.get_output_blocks()[0]))
    outer, thread, lane = s.split(loop, [None, *s.sample_tile(loop, 3, "t", [(1, 32, 128, 256, 1024), (1, 2, 4)])])
    s.bind(outer, "blockIdx.x")
    s.bind(thread, "threadIdx.x")
    s.vectorize(lane)


def strided(s: Schedule) -> None:
    """Neighbouring threads bound to neighbouring rows."""
    i, j = s.get_loops(s.get_output_blocks()[0])
    outer, thread = s.split(i, [None, *s.sample_tile(i, 2, "t", [(32, 256)])])
    s.reorder([outer, j, thread])
    s.bind(s.fuse([outer, j]), "blockIdx.x")
    s.bind(thread, "threadIdx.x")


def test_coalesced_accesses_are_faster() -> None:
    near, far = one_kernel("relu(shape=4096x4096)", flat), one_kernel("relu(shape=4096x4096)", strided)
    assert far(t1=256) > 3 * near(t1=256, t2=1)


def test_a_large_copy_is_bound_by_memory() -> None:
    seconds = one_kernel("relu(shape=8192x8192)", flat)(t1=256, t2=4)
    assert 1.0 <= seconds / (2 * 4 * 8192**2 / (H200.dram_gbs * 1e9)) < 1.35


def test_few_threads_per_block_are_slow() -> None:
    for target in (H200, Target("opencl -num-cores=2")):
        seconds = one_kernel("gelu(shape=1024x1024)", flat, target)
        assert seconds(t1=1, t2=1) > 5 * seconds(t1=256, t2=1)
    seconds = one_kernel("gelu(shape=1024x1024)", flat)
    assert seconds(t1=256, t2=4) < seconds(t1=256, t2=1), "a quarter of the requests"


def tile(gpu: ModuleType, target: Target = H200, text: str = "matmul(m=1024,n=1024,k=1024)") -> Callable[..., float]:
    """Seconds of a product with shared-memory tiles: 8 x 8 for each of 256 threads by default."""
    (sketch,) = [s for s in gpu.sketches(text) if "shared" in s.name]
    model = AnalyticModel(sketch.func, sketch.params, target)
    usual = {"i1": 2, "i2": 4, "i3": 4, "i4": 4, "j1": 2, "j2": 2, "j3": 8, "j4": 4, "k_1": 8, "A_vector": 4, "B_vector": 4, "versions": 2}

    def seconds(term: str = "", **values: int) -> float:
        row = np.array([[{**usual, **values}[p.name] for p in sketch.params]])
        return float(model.terms(row)[0][model.term_names.index(term)] if term else model.seconds(row)[0])

    return seconds


def test_good_tiles_of_a_product(gpu: ModuleType) -> None:
    seconds = tile(gpu)
    good = seconds()
    flops = 2 * 1024**3
    assert 0.3 < flops / (good * 1e9) / H200.peak_gflops < 0.95
    assert seconds(i1=1, i4=1, j1=1, j4=1) > 2 * good, "one accumulator per thread"
    assert seconds(A_vector=1, B_vector=1) > good, "scalar copies"
    assert seconds("stalls", versions=1) > seconds("stalls") and seconds("overhead", versions=1) > seconds("overhead")
    assert seconds(i2=1, i3=2, j3=16, j2=1) > 1.3 * seconds(j1=1), "one warp per block"


def test_spilled_registers_cost(gpu: ModuleType) -> None:
    """1024 threads have 64 registers each, too few for 128 accumulators."""
    seconds = tile(gpu)
    assert seconds("shared", i2=16, i1=4, j1=2, j4=8) > 1.5 * seconds("shared", i2=2, i1=4, j1=2, j4=8)
    few = tile(gpu, H200.with_attributes(registers_per_thread=64))
    assert few() > 2 * seconds() and few(i1=1, j1=1) == pytest.approx(seconds(i1=1, j1=1), rel=0.3)


def test_fewer_resident_blocks_hide_less_latency(gpu: ModuleType) -> None:
    less = tile(gpu, H200.with_attributes(max_blocks_per_sm=1), "matmul(m=4096,n=4096,k=64)")
    assert less("stalls", i1=1, j1=1) > 2 * tile(gpu, H200, "matmul(m=4096,n=4096,k=64)")("stalls", i1=1, j1=1)


def test_padding_is_computed(gpu: ModuleType) -> None:
    """The rows of a product, in tiles of 128."""
    seconds = tile(gpu, H200, "matmul(m=12288,n=4096,k=64)")
    padded = tile(gpu, H200, "matmul(m=12240,n=4096,k=64)")
    assert padded("issue") == pytest.approx(seconds("issue"), rel=0.01), "the last tile is computed as a whole"


def test_a_grid_takes_as_long_as_the_fullest_multiprocessor(gpu: ModuleType) -> None:
    even = tile(gpu, H200.with_attributes(num_cores=128), "matmul(m=2048,n=1024,k=1024)")
    odd = tile(gpu, H200.with_attributes(num_cores=127), "matmul(m=2048,n=1024,k=1024)")
    assert odd("shared") == pytest.approx(2 * even("shared"), rel=1e-6), "128 blocks exceed the number of multiprocessors by one"


def test_each_kernel_has_a_launch_overhead(gpu: ModuleType) -> None:
    (sketch,) = gpu.sketches("sum(shape=40x5000)")
    slow = H200.with_attributes(launch_us=50.0)
    rows = gpu.rows_of(sketch, 5)
    apart = AnalyticModel(sketch.func, sketch.params, slow).seconds(rows) - AnalyticModel(sketch.func, sketch.params, H200).seconds(rows)
    assert np.allclose(apart, 2 * 46e-6)


def test_tiny_work_groups_on_an_opencl_cpu_are_slow(gpu: ModuleType) -> None:
    (sketch,) = [s for s in gpu.sketches("matmul(m=128,n=128,k=64)", gpu.OPENCL) if "shared" in s.name]
    model = AnalyticModel(sketch.func, sketch.params, gpu.OPENCL)

    def seconds(**values: int) -> float:
        usual = {"i1": 1, "i2": 1, "i3": 8, "j1": 2, "j2": 32, "j3": 1, "k_1": 16, "A_vector": 1, "B_vector": 1, "versions": 1}
        return float(model.seconds(np.array([[{**usual, **values}[p.name] for p in sketch.params]]))[0])

    assert seconds(i3=1, j1=1, j2=1) > 10 * seconds(), "one work-item"
    assert seconds(i3=2, j2=2) > 3 * seconds() and seconds(j2=8, j3=4) > seconds()
