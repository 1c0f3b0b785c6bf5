"""Features of GPU programs, compared with lowering and enumeration of threads, on rows of every kind of sketch."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tunesmith.costmodel.analysis.gpu_access import requests
from tunesmith.costmodel.analysis.gpu_kernels import kernels, register_estimate
from tunesmith.costmodel.analysis.program_analysis import ProgramAnalysis
from tunesmith.costmodel.features.feature_program import FeatureProgram, vector_names
from tunesmith.costmodel.features.program_vector import program_vector
from tunesmith.costmodel.features.store_features import GPU
from tunesmith.costmodel.formulas.expr_graph import NumpyProgram
from tunesmith.ir.gpu import THREAD_AXES
from tunesmith.ir.target.target import Target

CPU = Target("llvm -mcpu=sapphirerapids -num-cores=2")
KINDS = tuple(range(8))


def column(f: FeatureProgram, table: np.ndarray, name: str) -> np.ndarray:
    """A feature, as a number."""
    logs = {c.name: c.log for c in GPU}
    x = table[..., f.names.index(f"gpu.{name}")].astype(np.float64)
    return np.exp2(x) - 1 if logs[f"gpu.{name}"] else x


@pytest.mark.parametrize("k", KINDS)
def test_kernels_equal_those_of_lowering(gpu: ModuleType, k: int) -> None:
    """Blocks, threads, shared memory to 16 bytes, and the estimated registers of code generation."""
    for target in (gpu.H200, gpu.OPENCL):
        for sketch in gpu.sketches(gpu.WORKLOADS[k], target):
            rows = gpu.rows_of(sketch, 5)
            f = FeatureProgram(sketch.func, sketch.params, sketch.constraints, target=target)
            table = f.features(rows)
            number = column(f, table, "kernel").round().astype(int)
            for i, row in enumerate(rows):
                low = gpu.lowered(sketch.concretize(tuple(row.tolist())), target)
                assert number.max() == len(low.blocks)
                at = number[i] - 1
                where = f"{sketch.name} {row.tolist()}"
                assert np.allclose(column(f, table[i], "blocks"), np.array(low.blocks)[at], rtol=1e-5), where
                assert np.allclose(column(f, table[i], "threads"), np.array(low.threads)[at], rtol=1e-5), where
                shared = column(f, table[i], "shared_bytes") - np.array(low.shared)[at]
                versions = column(f, table[i], "versions").max()
                assert ((shared > -0.5) & (shared < 16 * 3 + (versions - 1) * np.array(low.shared)[at])).all(), where
                # Buffers with disjoint lifetimes share registers; few of them are larger than a word.
                assert (np.abs(column(f, table[i], "registers") - np.array(low.registers)[at]) < 12).all(), where


def test_shared_memory_is_exact(gpu: ModuleType) -> None:
    """With padding, and the overhang of a large block beyond a small tile.  Lowering does not double-buffer some tiles."""
    for text in gpu.WORKLOADS[:3]:
        (sketch,) = [s for s in gpu.sketches(text) if "shared" in s.name]
        rows = gpu.rows_of(sketch, 12)
        a = ProgramAnalysis(sketch.func, sketch.params)
        found = NumpyProgram(a.dag, [kernels(a, gpu.H200)[0].shared])(rows)[0]
        low = [gpu.lowered(sketch.concretize(tuple(r.tolist())), gpu.H200).shared[0] for r in rows]
        versions = np.array([dict(zip([p.name for p in sketch.params], r, strict=True)).get("versions", 1) for r in rows.tolist()])
        exact = found == low
        assert exact.mean() >= 0.9 and exact[versions == 1].all(), list(zip(found, low, strict=True))


@pytest.mark.parametrize("k", KINDS)
def test_requests_equal_those_of_the_threads(gpu: ModuleType, k: int) -> None:
    """If all splits are powers of two, sectors and conflicts equal the enumeration of threads."""
    seen = 0
    for sketch in gpu.sketches(gpu.WORKLOADS[k]):
        for row in gpu.rows_of(sketch, 60):
            if any(n & (n - 1) for n in row.tolist()) or seen >= 60:
                continue
            func = sketch.concretize(tuple(row.tolist()))
            a = ProgramAnalysis(func, ())
            for kernel in kernels(a, gpu.H200):
                for s in kernel.stores:
                    seen += sum(check_request(gpu, a, kernel, s, r) for r in requests(a, kernel, s))
    assert seen


def check_request(gpu: ModuleType, a: ProgramAnalysis, kernel: Any, s: Any, r: Any) -> bool:
    own = {x.thread: x.var for x in s.loops}
    axes = [(own.get(tag), kernel.extents[tag].as_int() if tag in kernel.extents else 1) for tag in THREAD_AXES]
    if any(n & (n - 1) for _, n in axes):
        return False
    width, u = int(r.width.const), r.use
    if u.buffer.scope == "global":
        elements = gpu.addresses(u.at[0], u.buffer, axes)
        if any(e < 0 for e in elements) or any(u.buffer.shape[i].as_int() % 8 for i in range(len(u.buffer.shape))[-1:]):
            return False
        expected = gpu.count_sectors(elements, u.item, width)
        # A tile may end in the middle of a row, where the next thread starts another one.
        assert abs(r.parts.const - expected) <= max(1, 0.3 * expected), (s.block.name, u.buffer.name)
        return True
    tile = u.buffer.like(shape=[int(n.const) for n in a.allocated(u.buffer)])
    words = gpu.addresses(u.at[0], tile, axes)
    if width == 1:
        assert r.parts.const == pytest.approx(gpu.mean_conflicts(words)), (s.block.name, u.buffer.name)
    return width == 1


@pytest.mark.parametrize("k", KINDS)
def test_vectors_of_programs_and_both_backends(gpu: ModuleType, k: int) -> None:
    for sketch in gpu.sketches(gpu.WORKLOADS[k]):
        rows = gpu.rows_of(sketch, 20)
        f, other = [FeatureProgram(sketch.func, sketch.params, sketch.constraints, target=gpu.H200, backend=b) for b in ("auto", "numpy")]
        assert f.program_names == vector_names()
        table, vector = f.features(rows), f.program(rows)
        assert np.isfinite(table).all() and np.isfinite(vector).all()
        assert np.allclose(vector[:, :-8], program_vector(table), rtol=1e-5, atol=1e-5)
        assert np.allclose(other.features(rows), table, rtol=1e-5, atol=1e-5)
        assert np.allclose(other.program(rows), vector, rtol=1e-5, atol=1e-5)


def test_a_product_by_hand(gpu: ModuleType) -> None:
    """128 x 128 x 64 in blocks of 64 x 64 by 128 threads: 8 x 4 per thread, 8 steps at a time, double-buffered."""
    (sketch,) = [s for s in gpu.sketches(gpu.WORKLOADS[0]) if "shared" in s.name]
    values = {"i1": 1, "i2": 2, "i3": 4, "i4": 8, "j1": 1, "j2": 2, "j3": 8, "j4": 4, "k_1": 8, "A_vector": 4, "B_vector": 4, "versions": 2}
    f = FeatureProgram(sketch.func, sketch.params, target=gpu.H200)
    table = f.features(np.array([[values[p.name] for p in sketch.params]]))[0]

    def of(block: str, name: str) -> float:
        return float(f"{column(f, table[f.stores.index(block)], name):.5g}")

    assert (of("C", "blocks"), of("C", "threads"), of("C", "thread_x")) == (4, 128, 128)
    assert of("C", "shared_bytes") == 2 * 4 * (8 * 68 + 8 * 64), "A with padded rows, B without"
    assert of("C", "local_words") == 8 * 4 + 8 + 4 + 2 * 4, "accumulators, fragments, loads in flight for the next step"
    assert of("C", "registers") == of("C", "local_words") + 24 and of("C", "spilled") == 0
    assert of("C", "own") == 64 * 8 * 4 and of("C", "global_requests") == 0
    assert of("A_copy", "versions") == 2 and of("A_copy", "writes_shared") == 1 and of("C", "reads_shared") == 0
    assert of("A_copy", "global_vector") == of("B_copy", "global_vector") == 16
    assert of("A_copy", "own") == 8 * 4, "eight steps with a vector of four each"
    assert of("B_copy", "global_requests") == 4 * 4 * 8, "blocks, warps, steps"
    assert of("B_copy", "sectors") == 4 * 4 * 8 * 16 and of("B_copy", "global_excess") == 1
    assert of("A_copy", "global_excess") == 1, "two neighbouring vectors of a row are a sector"
    assert of("A_copy", "shared_vector") == 4 and of("A_copy", "wavefronts") == 4 * 4 * 8 * 4, "one pass per element of a vector"
    # 68 registers round to 72: seven blocks' worth of 512 for each of the four schedulers, and 16 KB of shared memory: 12.
    assert of("C", "resident") == gpu.resident(128, int(of("C", "registers")), int(of("C", "shared_bytes")), 1024, 233472)
    assert of("C", "occupancy") == pytest.approx(of("C", "resident") * 4 / 64, abs=1e-3)
    assert of("C", "waves") == 1 and of("C", "busy") == pytest.approx(4 / 132, abs=1e-3)


def test_gpu_features_are_0_for_cpus_and_without_a_target(gpu: ModuleType, make_case: Callable[[str], Any]) -> None:
    case = make_case("gemm ij packed")
    rows = case.rows(9)
    for target in (None, CPU):
        f = FeatureProgram(case.schedule.func, case.schedule.params, target=target)
        assert not f.features(rows)[..., -len(GPU) :].any()
    (sketch,) = gpu.sketches("relu(shape=64x256)")
    bare = FeatureProgram(sketch.func, sketch.params)
    assert not bare.features(gpu.rows_of(sketch, 9))[..., -len(GPU) :].any()


def test_registers_of_concrete_functions(gpu: ModuleType) -> None:
    for text in gpu.WORKLOADS:
        for sketch in gpu.sketches(text):
            (row,) = gpu.rows_of(sketch, 1).tolist()
            func = sketch.concretize(tuple(row))
            assert np.allclose(register_estimate(func, gpu.H200), gpu.lowered(func, gpu.H200).registers, atol=12)
