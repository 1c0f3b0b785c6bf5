"""Test device calibration: rates recovered from a simulated device, measured on OpenCL, cached, and not part of a target's identity."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.cuda.nvrtc import compile_cuda
from tunesmith.codegen.device.host import detect_device
from tunesmith.driver.tune_options import target_here
from tunesmith.ir.target.attributes import ATTRIBUTES
from tunesmith.ir.target.target import Target
from tunesmith.measure.calibration import gpu as module
from tunesmith.measure.calibration import worker
from tunesmith.measure.calibration.gpu import RATES, DeviceRates, calibrated_device, device_rates, measure_device
from tunesmith.measure.calibration.gpu_probe import CHUNK, FMAS, THREADS, compiled, source
from tunesmith.runtime.device.cpu import CpuDeviceAPI
from tunesmith.runtime.device.device import DEVICES, Allocation, DeviceAttributes, DeviceLost
from tunesmith.support.errors import BuildError, RecordError, RunError, UserError

H200 = Target("nvidia/h200")
FOUND = DeviceRates(60_000.0, 4_300.0, 6_000.0, 2.5, 1.9, ((1 << 28, 4_300.0),), ("a note",))
FACTS = DeviceAttributes(
    name="Pretended", compute_units=132, memory_bytes=141 << 30, clock_hz=1_980_000_000, compute_version="9.0", driver_version="13.0"
)


class Pretended(CpuDeviceAPI):
    """A simulated CUDA device with known rates, which determine kernel times exactly; a launch takes 3 us on the host."""

    def __init__(self, rates: DeviceRates, broken: str = "", lost: bool = False) -> None:
        super().__init__()
        self.rates, self.broken, self.lost = rates, broken, lost
        self.host = self.device = 0.0
        self.marks: dict[int, float] = {}
        self.freed = 0

    def count(self) -> int:
        return 1

    def attributes(self, index: int) -> DeviceAttributes:
        return FACTS

    def load_code(self, index: int, code: bytes, options: str = "") -> int:
        return 1

    def unload_code(self, index: int, code: int) -> None:
        self.freed += 1

    def synchronise(self, index: int, stream: int = 0) -> None:
        self.host = max(self.host, self.device)

    def create_event(self, index: int) -> int:
        self.marks[len(self.marks)] = 0.0
        return len(self.marks) - 1

    def record_event(self, index: int, event: int, stream: int = 0) -> None:
        self.marks[event] = max(self.host, self.device)

    def elapsed(self, index: int, start: int, stop: int) -> float:
        self.host = max(self.host, self.device)
        return self.marks[stop] - self.marks[start]

    def free_event(self, index: int, event: int) -> None:
        self.freed += 1

    def launch(
        self,
        index: int,
        code: int,
        kernel: str,
        arguments: Sequence[Allocation],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int = 0,
        stream: int = 0,
    ) -> None:
        if kernel == self.broken:
            raise DeviceLost("an illegal memory access") if self.lost else RunError("it does not start")
        assert block == (THREADS, 1, 1)
        blocks, r = grid[0], self.rates
        rounds = int(_view(arguments[0], "int32")[0])
        assert r.peak_gflops and r.dram_gbs and r.l2_gbs and r.launch_us and r.clock_ghz
        seconds = {
            "multiply_add": 2 * FMAS * THREADS * blocks * rounds / r.peak_gflops * 1e-9,
            "copy": 2 * CHUNK * blocks / r.dram_gbs * 1e-9,
            "reread": CHUNK * blocks * rounds / r.l2_gbs * 1e-9,
            "nothing": r.launch_us * 1e-6,
        }[kernel]
        if kernel == "multiply_add":
            times = [1000, 5000, 1000 + int(seconds * 1e9 * r.clock_ghz), 5000 + int(seconds * 1e9)]
            _view(arguments[3], "int64")[:4] = times
        self.host += 3e-6
        self.device = max(self.device, self.host) + seconds


def _view(memory: Allocation, dtype: str) -> Any:
    return np.frombuffer((ctypes.c_char * memory.nbytes).from_address(memory.handle), dtype)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tunesmith"


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Pretended]:
    """Factory that installs a simulated device as the only CUDA device."""

    def install(rates: DeviceRates = FOUND, broken: str = "", lost: bool = False) -> Pretended:
        api = Pretended(rates, broken, lost)
        get = type(DEVICES).get
        monkeypatch.setattr(type(DEVICES), "get", lambda self, name: api if self is DEVICES and name == "cuda" else get(self, name))
        monkeypatch.setattr(module, "_COPY_BYTES", (1 << 26, 1 << 28))
        monkeypatch.setattr(module, "_BUDGET_S", 0.01)
        monkeypatch.setattr(module, "_measure_in_worker", lambda target, say: measure_device(target, b"code"))
        return api

    return install


def test_known_rates_are_recovered(pretend: Callable[..., Pretended]) -> None:
    api = pretend()
    found = measure_device(H200, b"code")
    assert found.notes == ()
    assert found.facts() == pytest.approx({name: getattr(FOUND, name) for name in RATES}, rel=0.01)
    assert [n for n, _ in found.copies] == [1 << 26, 1 << 28]
    assert api.freed == 3 and not api._live  # two events, the code, and all memory


def test_small_copies_are_excluded(pretend: Callable[..., Pretended], monkeypatch: pytest.MonkeyPatch) -> None:
    pretend()
    rates = iter([9_000.0, 4_000.0, 4_100.0])
    monkeypatch.setattr(module, "_COPY_BYTES", (1 << 20, 2 << 20, 4 << 20))
    monkeypatch.setattr(module, "_best_rate", lambda probe, start, work: next(rates))
    with module.Probe(module.Device("cuda"), b"code") as probe:
        found = module._copy(probe, H200.with_attributes(l2_bytes=1 << 19), replace(FACTS), copies := [])
    assert found == 4_100.0 and copies == [(1 << 20, 9_000.0), (2 << 20, 4_000.0), (4 << 20, 4_100.0)]


@pytest.mark.parametrize(
    ("rates", "name", "why"),
    [
        (replace(FOUND, peak_gflops=2e6), "peak_gflops", "more than 20 times the estimate"),
        (replace(FOUND, l2_gbs=1e9), "l2_gbs", "more than 20 times"),
        (replace(FOUND, clock_ghz=80.0), "clock_ghz", "more than 20 times the estimate, 1.98"),
    ],
)
def test_implausible_rates_are_omitted(pretend: Callable[..., Pretended], rates: DeviceRates, name: str, why: str) -> None:
    pretend(rates)
    found = measure_device(H200, b"code")
    assert getattr(found, name) is None and name not in found.facts()
    assert len(found.notes) == 1 and found.notes[0].startswith(f"{name} is omitted") and why in found.notes[0]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_invalid_values_are_omitted(value: float) -> None:
    assert module._doubt("dram_gbs", value, H200) == f"dram_gbs is omitted: {value} is not a rate"


def test_failing_probe_is_noted(pretend: Callable[..., Pretended]) -> None:
    pretend(broken="reread")
    found = measure_device(H200, b"code")
    assert found.notes == ("l2_gbs is not measured: it does not start",)
    assert sorted(found.facts()) == sorted(set(RATES) - {"l2_gbs"})


def test_measuring_stops_after_a_lost_device(pretend: Callable[..., Pretended]) -> None:
    pretend(broken="copy", lost=True)
    found = measure_device(H200, b"code")
    assert found.notes == ("dram_gbs and the rates after it are not measured: an illegal memory access",)
    assert list(found.facts()) == ["peak_gflops"]


def test_rates_are_cached_and_notes_reported(pretend: Callable[..., Pretended], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(replace(FOUND, l2_gbs=1e9))
    messages: list[str] = []
    rates = device_rates(H200, progress=messages.append)
    assert len(messages) == 1 and messages[0].startswith("rates of the cuda device: l2_gbs is omitted")
    monkeypatch.setattr(module, "_measure_in_worker", lambda *_: pytest.fail("measured again"))
    assert device_rates(H200) == rates
    (path,) = cache.iterdir()
    content = json.loads(path.read_text())
    assert (content["device"], content["driver"], content["target"]) == ("Pretended", "13.0", H200.to_json())
    path.write_text("{")
    monkeypatch.setattr(module, "_measure_in_worker", lambda *_: FOUND)
    assert device_rates(H200) == FOUND, "an invalid cache is measured again"


def test_rates_change_only_facts_of_the_target(pretend: Callable[..., Pretended]) -> None:
    pretend(replace(FOUND, l2_gbs=1e9))
    known = calibrated_device(H200, lambda _: None)
    assert known.key == H200.key
    assert known.l2_gbs == pytest.approx(H200.l2_gbs, rel=0.05)  # derived again from the clock
    assert known.dram_gbs == pytest.approx(4_300.0, rel=0.01) and known.launch_us == pytest.approx(2.5, rel=0.01)
    assert all("cuda" in ATTRIBUTES[name].kinds and not ATTRIBUTES[name].identity for name in RATES)


def test_estimates_are_kept_if_measuring_fails(pretend: Callable[..., Pretended], monkeypatch: pytest.MonkeyPatch) -> None:
    pretend()

    def fail(*_: object) -> DeviceRates:
        raise RunError("the process died")

    monkeypatch.setattr(module, "_measure_in_worker", fail)
    messages: list[str] = []
    assert calibrated_device(H200, messages.append) == H200
    assert messages == [f"the process died. The estimates of {H200} are kept"]
    with pytest.raises(RunError, match="the process died"):
        device_rates(H200)


def test_other_targets_are_rejected(pretend: Callable[..., Pretended]) -> None:
    with pytest.raises(UserError, match="is a CPU. Use machine_rates"):
        device_rates(Target.detect())
    pretend()
    with pytest.raises(BuildError, match="this Pretended is sm_90. Tune for -arch=sm_90"):
        calibrated_device(Target("nvidia/a100"))
    with pytest.raises(BuildError, match="devices of kind cpu cannot be calibrated"):
        compiled("cpu", "")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "need exactly peak_gflops, dram_gbs"),
        ({"peak_gflops": 1.0}, "need exactly"),
        ({**FOUND.to_json(), "dram_gbs": 0}, "dram_gbs is 0, neither a positive number nor null"),
        ({**FOUND.to_json(), "launch_us": "fast"}, "launch_us is 'fast'"),
        ({**FOUND.to_json(), "l2_gbs": True}, "l2_gbs is True"),
        ({**FOUND.to_json(), "copies": [1]}, "copies must be pairs of numbers"),
    ],
)
def test_invalid_rates_are_rejected(data: object, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        DeviceRates.from_json(data)


def test_json() -> None:
    assert DeviceRates.from_json(json.loads(json.dumps(FOUND.to_json()))) == FOUND
    assert DeviceRates.from_json(DeviceRates().to_json()) == DeviceRates()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_compile_without_spills(arch: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    resources = compile_cuda(source("cuda"), arch).resources
    assert set(resources) == {"multiply_add", "copy", "reread", "nothing"}
    # 65536 registers for 8 blocks of 256 threads.
    assert all(r.spill_bytes == 0 and (r.registers <= 32 or name == "reread") for name, r in resources.items())


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    found = measure_device(detect_device("cuda"))
    assert found.notes == () and set(found.facts()) == set(RATES)


def test_on_opencl(monkeypatch: pytest.MonkeyPatch) -> None:
    if not DEVICES.get("opencl").count():
        pytest.skip("no OpenCL device here: pip install 'tunesmith[opencl]'")
    monkeypatch.setattr(module, "_COPY_BYTES", (1 << 20,))
    monkeypatch.setattr(module, "_BUDGET_S", 0.02)
    found = measure_device(detect_device("opencl"))
    assert found.notes == () and {"peak_gflops", "dram_gbs", "l2_gbs", "launch_us"} <= set(found.facts())


def test_tune_uses_measured_rates_unless_given_a_target(monkeypatch: pytest.MonkeyPatch, pretend: Callable[..., Pretended]) -> None:
    pretend()
    assert target_here("nvidia/h200").dram_gbs == pytest.approx(4_300.0, rel=0.01)
    assert target_here(H200).dram_gbs == H200.dram_gbs


def test_measuring_in_a_worker_process(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    if not DEVICES.get("opencl").count():
        pytest.skip("no OpenCL device here: pip install 'tunesmith[opencl]'")
    monkeypatch.setattr(worker, "_PATIENCE_S", 0.0)
    messages: list[str] = []
    target = detect_device("opencl")
    rates = device_rates(target, progress=messages.append)
    assert rates.facts() and messages[0].startswith("calibrating the first opencl device")
    assert device_rates(target) == rates and len(messages) == 1 + len(rates.notes)
