"""Test the comparison of a model's functions with the least times of the machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.driver import compile_model
from tunesmith.driver.roofline import roofline
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.passes.legalise import prim_func
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.calibration.cpu import MachineRates
from tunesmith.runtime.profile import Profile, ProfileRow
from tunesmith.runtime.timing import CpuClock
from tunesmith.support.errors import UserError

RATES = MachineRates(50.0, 100.0, 1.0, 1.0, 10.0, 20.0, 5.0, 10.0, 1.0)
TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


def product() -> PrimFunc:
    b = GraphBuilder("a")
    return prim_func(b.finish(b.matmul(b.input("x", (64, 64)), b.input("y", (64, 64)))).with_(attrs=(("primitive", "1"),)))


def exponential() -> PrimFunc:
    b = GraphBuilder("b")
    return prim_func(b.finish(b.exp(b.input("x", (20_000,)))).with_(attrs=(("primitive", "1"),)))


def test_rows_are_functions_with_the_longest_first() -> None:
    times = (("a__packed", 10.0), ("b", 80.0), ("a__packed", 30.0), ("(copy)", 5.0))
    profile = Profile([ProfileRow(i, name, us, 5) for i, (name, us) in enumerate(times)])
    found = roofline(profile, {"a": product(), "b": exponential()}, RATES, TARGET)
    b, a, copy = found.rows
    assert (b.function, b.calls, b.least, b.bound) == ("b", 1, pytest.approx(2 * 20_000 * 4 / 20e9), "data")
    assert (a.function, a.calls, a.gflops, a.bound) == ("a__packed", 2, pytest.approx(2 * 2 * 64**3 / 40e-6 / 1e9), "arithmetic")
    assert a.least == pytest.approx(2 * 2 * 64**3 / 100e9)
    assert (copy.function, copy.least, copy.bound) == ("(copy)", None, "")
    lines = str(found).splitlines()
    assert "float32 peak 100 GFLOP/s" in lines[0] and any("a__packed" in line and "26%" in line and "arithmetic" in line for line in lines)


def test_a_compiled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(compile_model, "machine_rates", lambda target, **options: asked.append(options) or RATES)
    b = GraphBuilder("main")
    w = np.ones((16, 32), np.float32)
    model = IRModule({"main": b.finish(b.relu(b.matmul(b.input("x", (4, 16)), b.constant(w, "w"))))})
    found = tunesmith.compile(model).roofline(np.ones((4, 16), np.float32))
    (row,) = found.rows
    assert asked == [{"refresh": True}] and row.function.startswith("fused_matmul_relu") and row.seconds > 0 and row.gflops is not None
    assert row.least == pytest.approx(max(2 * 4 * 16 * 32 / 100e9, 16 * 32 * 4 / 10e9 + (4 * 16 + 4 * 32) * 4 / 20e9))
    with pytest.raises(UserError, match="repeats"):
        tunesmith.compile(model).roofline(np.ones((4, 16), np.float32), repeats=0)


def test_a_busy_machine_is_mentioned() -> None:
    rows = [ProfileRow(0, "a", 10.0, 1)]
    busy = Profile(rows).during(CpuClock(0.0, 0.0, 0.0), CpuClock(1.0, 2.5, 1.0))
    assert busy.foreign == 1.5
    remark = "~ other processes used 1.5 cores meanwhile: the times may be too long"
    assert str(busy).endswith(remark) and remark in roofline(busy, {"a": product()}, RATES, TARGET).remark
    for begin, end in (
        (None, None),
        (CpuClock(0.0, 0.0, 0.0), CpuClock(0.01, 1.0, 0.0)),
        (CpuClock(0.0, 0.0, 0.0), CpuClock(1.0, 1.0, 1.0)),
    ):
        quiet = Profile(rows).during(begin, end)
        assert not quiet.remark and "other processes" not in str(quiet) and not roofline(quiet, {}, RATES, TARGET).remark
