"""Test the least times of functions by hand-computed numbers: their arithmetic, their data, targets without rates."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest

from tunesmith import te
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.passes.legalise import prim_func
from tunesmith.ir.analysis.least_time import Work, least_seconds
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Index, Var
from tunesmith.ir.target.target import Target

CPU = Target("llvm -mcpu=x86-64-v3 -num-cores=2 -peak_gflops=100 -l3_gbs=20 -dram_gbs=10 -l3_bytes=1000000")
GPU = Target({"kind": "cuda", "arch": "sm_90", "peak_gflops": 100.0, "tensor_gflops": 1000.0, "l2_gbs": 20.0, "dram_gbs": 10.0})


@dataclass(frozen=True)
class Rates:
    """100 GFLOP/s, 20 GB/s of the cache, 10 GB/s of the memory."""

    peak_gflops: float = 100.0
    l3_gbs: float = 20.0
    dram_gbs: float = 10.0


def product(m: Index, k: int, n: int, dtype: str = "float32", constants: str = "") -> PrimFunc:
    b = GraphBuilder("f")
    x, w = b.input("x", (m, k), dtype), b.input("w", (k, n), dtype)
    return prim_func(b.finish(b.matmul(x, w)).with_(attrs=(*[("constants", constants)] * bool(constants), ("primitive", "1"))))


def exponential(n: Index) -> PrimFunc:
    b = GraphBuilder("f")
    return prim_func(b.finish(b.exp(b.input("x", (n,)))).with_(attrs=(("primitive", "1"),)))


def test_the_work_of_a_product() -> None:
    assert Work.of(product(4, 16, 32, constants="1")) == Work(2 * 4 * 16 * 32, 16 * 32 * 4, (4 * 16 + 4 * 32) * 4)
    assert Work.of(product(4, 16, 32)) == Work(2 * 4 * 16 * 32, 0, (4 * 16 + 16 * 32 + 4 * 32) * 4)
    assert Work.of(product(4, 16, 32, "float16")) == Work(2 * 4 * 16 * 32, 0, (4 * 16 + 16 * 32 + 4 * 32) * 2)
    assert Work.of(exponential(Var("n"))) is None


def test_the_least_time_is_that_of_the_arithmetic_or_of_the_data() -> None:
    assert Work(200_000, 0, 0).seconds(Rates(), 10**6) == pytest.approx((2e-6, 0))
    assert Work(0, 20_000, 20_000).seconds(Rates(), 10**6) == pytest.approx((0, 3e-6))
    assert Work(None, 0, 10**6).seconds(Rates(), 10**6) == pytest.approx((0, 50e-6))
    assert Work(None, 0, 10**6 + 1).seconds(Rates(), 10**6) == pytest.approx((0, 100.0001e-6))


def test_a_product_is_bounded_by_its_arithmetic() -> None:
    """2 * 100^3 operations at 100 GFLOP/s; its 120 KB take 6 us."""
    assert least_seconds(product(100, 100, 100), CPU) == pytest.approx(20e-6)


def test_a_product_with_one_row_is_bounded_by_its_data() -> None:
    """The filter of 400 KB is read from memory if it is a constant, else from the cache; vectors have 400 + 4,000 bytes."""
    assert least_seconds(product(1, 100, 1000, constants="1"), CPU) == pytest.approx(400_000 / 10e9 + 4_400 / 20e9)
    assert least_seconds(product(1, 100, 1000), CPU) == pytest.approx(404_400 / 20e9)
    assert least_seconds(exponential(200_000), CPU) == pytest.approx(1_600_000 / 10e9)  # more than the cache holds


def test_dynamic_shapes_and_targets_without_rates_have_no_bound() -> None:
    assert least_seconds(product(Var("m"), 100, 100), CPU) == 0
    assert least_seconds(exponential(Var("n")), CPU) == 0
    for rates in ({}, {"peak_gflops": 100.0}, {"dram_gbs": 10.0}):
        assert least_seconds(product(100, 100, 100), cast(Target, SimpleNamespace(**rates))) == 0


def test_narrow_types_may_use_tensor_instructions() -> None:
    """The rate of the tensor cores is ten times that of float32."""
    wide, narrow = product(1000, 1000, 1000), product(1000, 1000, 1000, "float16")
    assert least_seconds(wide, GPU) == pytest.approx(2e9 / 100e9)
    assert least_seconds(narrow, GPU) == pytest.approx(2e9 / 1000e9)
    half = product(100, 100, 100, "float16")
    assert least_seconds(half, CPU) == pytest.approx(20e-6)  # which has no such rate


def test_the_cache_of_a_device_is_its_second_level() -> None:
    far = Target({**GPU.to_json(facts=True), "l2_bytes": 1000})
    assert least_seconds(exponential(1000), GPU) == pytest.approx(8000 / 20e9)
    assert least_seconds(exponential(1000), far) == pytest.approx(8000 / 10e9)


def test_operations_that_are_not_counted_leave_the_bound_of_the_data() -> None:
    x = te.placeholder((1000,), name="X")
    copied = te.create_prim_func([x, te.compute((1000,), lambda i: x[i], "Y")], "copy")
    assert least_seconds(copied, CPU) == pytest.approx(8000 / 20e9)
