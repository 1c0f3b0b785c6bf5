"""Test CPU calibration: plausible rates, the cache, and the unchanged identity of the target."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from tunesmith.codegen.llvm import probe as llvm_probe
from tunesmith.ir.target.attributes import ATTRIBUTES
from tunesmith.ir.target.target import Target
from tunesmith.measure.calibration import cpu as module
from tunesmith.measure.calibration import worker
from tunesmith.measure.calibration.cpu import MachineRates, calibrated, machine_rates
from tunesmith.support.errors import BuildError, RecordError, RunError, UserError
from tunesmith.testing.amx_emulator import Counts

RATES = MachineRates(252.0, 501.0, 224.0, 386.0, 114.0, 211.0, 38.0, 43.0, 0.5, "vpdpbusd=1004")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tunesmith"


def test_measured_once_and_cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target.detect()
    rates = machine_rates(target, progress=lambda _: None)
    assert rates.peak_gflops_core > 1
    assert rates.peak_gflops > 1
    assert all(value > 0 for value in rates.to_json().values() if not isinstance(value, str))
    assert target.tensor_rate("vpdpbusd") is None
    assert ("avx512vnni" in target.features) == ("vpdpbusd" in rates.tensor_rates)
    monkeypatch.setattr(module, "_measure_in_worker", lambda *_: pytest.fail("measured again"))
    assert machine_rates(target) == rates
    (path,) = cache.iterdir()
    assert json.loads(path.read_text())["target"] == target.to_json()
    known = calibrated(target)
    assert known.key == target.key
    assert {name: getattr(known, name) for name in rates.to_json()} == rates.to_json()


def test_each_target_has_its_own_cache_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fake(target: Target, _: object) -> MachineRates:
        asked.append(target.key)
        return RATES

    monkeypatch.setattr(module, "_measure_in_worker", fake)
    one, narrow = Target("llvm -num-cores=1"), Target("llvm -num-cores=1 -vector-bits=128")
    machine_rates(one)
    machine_rates(narrow)
    machine_rates(one)
    machine_rates(one, refresh=True)
    assert asked == [one.key, narrow.key, one.key]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rates": {}}', '{"rates": {"peak_gflops": 1}}'])
def test_invalid_cache_is_measured_again(cache: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(module, "_measure_in_worker", lambda *_: RATES)
    machine_rates()
    (path,) = cache.iterdir()
    path.write_text(text)
    other = dataclasses.replace(RATES, dram_gbs=7.0)
    monkeypatch.setattr(module, "_measure_in_worker", lambda *_: other)
    assert machine_rates() == other
    monkeypatch.setattr(module, "_measure_in_worker", lambda *_: pytest.fail("measured again"))
    assert machine_rates() == other


def test_unwritable_cache_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(module, "_measure_in_worker", lambda *_: RATES)
    assert machine_rates() == RATES


def test_rates_are_named_like_target_attributes() -> None:
    assert all("llvm" in ATTRIBUTES[name].kinds and not ATTRIBUTES[name].identity for name in RATES.to_json())
    assert MachineRates.from_json(json.loads(json.dumps(RATES.to_json()))) == RATES


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "need exactly peak_gflops_core"),
        ({"peak_gflops": 1.0}, "need exactly"),
        ({**RATES.to_json(), "dram_gbs": 0}, "dram_gbs is 0, not a positive number"),
        ({**RATES.to_json(), "dram_gbs": "fast"}, "dram_gbs is 'fast'"),
        ({**RATES.to_json(), "l2_gbs": float("nan")}, "l2_gbs is nan"),
        ({**RATES.to_json(), "l2_gbs": True}, "l2_gbs is True"),
    ],
)
def test_invalid_rates_are_rejected(data: object, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        MachineRates.from_json(data)


def test_gpu_is_rejected() -> None:
    with pytest.raises(UserError, match="machine rates are measured for CPUs"):
        machine_rates(Target("nvidia/h200"))


def test_other_machine_is_rejected() -> None:
    name = "apple-m1" if "x86" in Target.detect().mtriple else "haswell"
    with pytest.raises(BuildError, match="cannot run here"):
        machine_rates(Target(f"llvm -mcpu={name} -num-cores=1"))


def test_failing_probe_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "pin_threads", lambda _: {"OMP_NUM_THREADS": "1"})
    monkeypatch.setattr(Target, "to_json", lambda self, **_: {"kind": "nonsense"})
    with pytest.raises(RunError, match=r"cannot measure the rates(.|\n)*unknown target kind 'nonsense'"):
        module._measure_in_worker(Target.detect(), lambda _: None)


def test_progress_is_reported_if_measuring_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_PATIENCE_S", 0.0)
    messages: list[str] = []
    monkeypatch.setattr(Target, "to_json", lambda self, **_: {"kind": "nonsense"})
    with pytest.raises(RunError):
        module._measure_in_worker(Target.detect(), messages.append)
    assert len(messages) == 1
    assert "calibrating this machine" in messages[0]


def _aligned(nbytes: int) -> np.ndarray:
    raw = np.zeros(nbytes + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip : skip + nbytes]


@pytest.mark.parametrize("bits", [128, 256, 512])
def test_probe_kernels_compute_as_documented(bits: int) -> None:
    if bits > Target.detect().vector_bits:
        pytest.skip("this machine has no such vectors")
    target = Target(f"llvm -num-cores=2 -vector-bits={bits}")
    kernels = llvm_probe.load_probe(target)
    lanes = target.vector_lanes("float32")
    assert kernels.flops_per_round == 2 * lanes * (target.vector_registers - 4)
    data, out = _aligned(4 * kernels.step_bytes), _aligned(2 * llvm_probe.OUT_BYTES)
    numbers = data.view(np.float32)
    kernels.fill(data.ctypes.data, data.nbytes // 2, out.ctypes.data, 2)
    assert (numbers == 1).all()
    numbers[numbers.size // 2 :] = 3
    kernels.read(data.ctypes.data, data.nbytes // 2, 5, out.ctypes.data, 2)
    sums = out.view(np.float32).reshape(2, -1)
    # Each thread sums its own half five times: thread 0 ones, thread 1 threes.
    assert [row.sum() for row in sums] == [5 * numbers.size // 2, 15 * numbers.size // 2]
    kernels.multiply_add(3, out.ctypes.data, 2)
    # x -> x/2 + 1/2 keeps 1.
    assert (sums[:, : kernels.flops_per_round // 2] == 1).all()
    kernels.fork_join(10, 2)


def test_slice_that_is_not_a_multiple_is_rejected() -> None:
    kernels = llvm_probe.load_probe(Target.detect())
    out = _aligned(llvm_probe.OUT_BYTES)
    with pytest.raises(UserError, match=f"positive multiple of {kernels.step_bytes}"):
        kernels.read(out.ctypes.data, kernels.step_bytes + 4, 1, out.ctypes.data, 1)
    with pytest.raises(UserError, match="a slice of 0 bytes"):
        kernels.fill(out.ctypes.data, 0, out.ctypes.data, 1)


def test_products_of_tiles_are_probed(amx: Counts, amx_target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round has a product in each of the six registers that the operands leave."""
    monkeypatch.setattr(llvm_probe, "request_tile_permission", lambda: True)
    monkeypatch.setattr(llvm_probe, "check_runs_here", lambda target: None)
    kernels = llvm_probe.load_probe(amx_target)
    assert {n: kernels.dot_operations[n] for n in ("tdpbf16ps", "tdpbssd", "tdpbusd")} == {
        "tdpbf16ps": 6 * 16 * 16 * 32 * 2,
        "tdpbssd": 6 * 16 * 16 * 64 * 2,
        "tdpbusd": 6 * 16 * 16 * 64 * 2,
    }
    out = np.full(llvm_probe.OUT_BYTES, 1, np.uint8)
    kernels.dot_product("tdpbusd", 3, out.ctypes.data, 1)
    if amx.emulated:
        assert amx()["tdpbusd"] == 3 * 6
    assert not out[:1024].any() and out[1024:].all()


def test_without_permission_no_product_of_tiles_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm_probe, "request_tile_permission", lambda: False)
    assert "tdp" not in llvm_probe.probe_text(Target("llvm -mcpu=sapphirerapids -num-cores=2"))
