"""The doctor's report is complete, plain data and readable, and shows failed sections."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from tunesmith.driver import doctor
from tunesmith.ir.target.detect import NvidiaGpu
from tunesmith.measure.calibration.cpu import MachineRates
from tunesmith.support.errors import RunError

RATES = MachineRates(252.0, 501.0, 224.0, 386.0, 114.0, 211.0, 38.0, 43.0, 0.5, "vpdpbusd=1004")


def shown(found: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(doctor.render(found))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return str(text)


def test_report_is_data_and_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "machine_rates", lambda: RATES)
    monkeypatch.setattr(doctor, "_NOISE_POLICY", doctor.TimingPolicy(repeats=3, quiet_fraction=float("inf"), window_s=0.05, limit_s=1.0))
    monkeypatch.setattr(doctor, "nvidia_gpus", lambda: [NvidiaGpu("NVIDIA H200", "9.0", 141 << 30, "580.1")])
    found = doctor.report()
    assert json.loads(json.dumps(found)) == found
    assert found["rates"] == RATES.to_json()
    assert found["noise"]["foreign_cores"] >= 0
    assert found["noise"]["samples"] >= 3
    assert found["packages"]["core"]["llvmlite"]
    text = shown(found)
    for part in ("NVIDIA H200", "sm_90, 141 GB", "252 GFLOP/s a core, 501 all", "0.50 us", found["cpu"]["mcpu"], found["target"]["text"]):
        assert part in text


def test_measurements_can_be_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "machine_rates", lambda: pytest.fail("measured"))
    found = doctor.report(measure=False)
    assert "noise" not in found
    assert "rates" not in found
    assert "Rates" not in shown(found)


def test_a_failing_section_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise RunError("no OpenMP runtime found")

    monkeypatch.setattr(doctor, "load_openmp", fail)
    monkeypatch.setattr(doctor, "machine_rates", fail)
    monkeypatch.setattr(doctor, "_noise", fail)
    found = doctor.report()
    assert found["openmp"] == found["rates"] == found["noise"] == {"error": "no OpenMP runtime found"}
    assert "openmp: no OpenMP runtime found" in found["advice"]
    assert "no OpenMP runtime found" in shown(found)


def test_advice_names_problems() -> None:
    well: dict[str, Any] = {
        "cpu": {"quota": None, "cpus": [0, 1], "num_cores": 2},
        "tools": {"ld": "/usr/bin/ld", "cc": None},
        "noise": {"foreign_cores": 0.01, "spread": 0.02},
    }
    assert doctor.advice(well) == []
    ill = {
        "cpu": {"quota": 1.5, "cpus": [0, 1], "num_cores": 1},
        "tools": {"ld": None, "cc": None},
        "noise": {"foreign_cores": 0.9, "spread": 0.4},
        "rates": {"error": "it broke"},
    }
    said = "\n".join(doctor.advice(ill))
    for part in ("1.5 of 2 processors", "90% of a core", "varies by 40%", "No linker", "rates: it broke"):
        assert part in said
