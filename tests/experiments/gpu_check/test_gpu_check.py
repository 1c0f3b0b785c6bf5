"""The GPU check on OpenCL from the command line, and unit tests of its packages, marks and tables."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from tunesmith.experiments.gpu_check.gpu_state import GpuState, gpu_state
from tunesmith.experiments.gpu_check.shared_memory import PATTERNS, source
from tunesmith.experiments.gpu_check.table import marks, table
from tunesmith.runtime.device.device import DEVICES

ROOT = Path(__file__).parents[3]
RUN = ROOT / "experiments/gpu_check/run.py"

needs_opencl = pytest.mark.skipif(DEVICES.get("opencl").count() == 0, reason="no OpenCL device here: pip install 'tunesmith[opencl]'")

TASKS = {
    "matmul(m=1024,n=1024,k=1024)": {"times": {"ours": [50e-6], "cuBLAS": [45e-6]}, "differences": {"cuBLAS": 1e-6}, "registers": 122.0},
    "relu(shape=4096x4096)": {"times": {"ours": [31e-6], "eager": [31e-6], "torch.compile": [30e-6]}, "differences": {}},
}
TUNED = {
    "matmul(m=1024,n=1024,k=1024)": {"trials": 128, "errors": {"crash": 2}, "best_us": 51.0, "sketch": "gpu tile"},
    "sum(shape=67108864)": {"trials": 32, "errors": {}, "best_us": 70.0, "sketch": "gpu reduction of everything"},
}


def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}


@needs_opencl
def test_from_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--kind", "opencl", "--seconds", "100", "--trials", "4", "--out", str(out), "--only", "machine,calibration,tuning,peers"]
    command = [sys.executable, str(RUN), *options, "--workloads", "relu(shape=64x64)", "sum(shape=16x64,axis=1)"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "mark: at least 3 trials/s" in lines[-1] and any(line.startswith("| relu(shape=64x64)") for line in lines)
    found = json.loads((out / "results.json").read_text())
    assert found["failures"] == {} and set(found["calibration"]["rates"]) >= {"peak_gflops", "dram_gbs"}
    for text in ("relu(shape=64x64)", "sum(shape=16x64,axis=1)"):
        task = found["tuning"]["tasks"][text]
        assert task["trials"] == 4 and task["best_us"] > 0
        baselines = found["peers"]["tasks"][text]
        assert set(baselines["times"]) == {"ours", "eager"} and baselines["differences"]["eager"] < 1e-5 and baselines["left_out"] == {}
    assert (out / "table.md").read_text().splitlines()[-1] == lines[-1]
    assert (out / "records.jsonl").exists() and "== peers" in (out / "output.txt").read_text()


@needs_opencl
def test_an_interrupt_prints_the_table(tmp_path: Path) -> None:
    options = ["--kind", "opencl", "--trials", "100000", "--out", str(tmp_path / "out"), "--only", "tuning"]
    command = [sys.executable, str(RUN), *options, "--workloads", "relu(shape=64x64)"]
    with subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = []
        for line in process.stdout:
            shown.append(line)
            if " trials, best " in line:
                process.send_signal(signal.SIGINT)
                break
        shown += process.stdout.readlines()
        assert process.wait(60) == 130
    text = "".join(shown)
    assert "interrupted; results so far" in text and text.splitlines()[-1].startswith("mark: at least 3 trials/s: ")
    assert "| relu(shape=64x64)" in text


def test_a_failing_or_late_section_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tunesmith.experiments.gpu_check import session as module

    monkeypatch.setattr(module, "_GRACE_S", 0.1)
    s = module.Session("opencl", tmp_path, 10.0, 4)

    def wrong(_: object, found: dict[str, object]) -> None:
        found["before"] = 1
        raise ValueError("a wrong turn")

    s.section("first", wrong, 5.0)
    s.section("second", lambda *_: time.sleep(30), 0.0)
    s.section("third", lambda _, found: found.update(done=True), 5.0)
    assert s.failures == {"first": "ValueError: a wrong turn", "second": "OutOfTime: aborted after 0 s"}
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["first"]["before"] == 1 and found["third"]["done"] is True
    assert 'raise ValueError("a wrong turn")' in (tmp_path / "output.txt").read_text()


@pytest.fixture
def run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check_run", RUN)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_missing_packages_are_reported_first(run: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    absent = {"xgboost", "tvm_ffi", "cuda.bindings"}
    is_installed = run._is_installed
    monkeypatch.setattr(run, "_is_installed", lambda module: module not in absent and is_installed(module))
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "machine"])
    assert run.main() == 2
    assert "lacks required packages: xgboost apache-tvm-ffi cuda-bindings\n" in capsys.readouterr().err


def test_unknown_sections_are_refused(run: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "machine,coffee"])
    with pytest.raises(SystemExit):
        run.main()
    assert "sections are machine,calibration,conformance,models,tuning,peers" in capsys.readouterr().err


def test_the_table() -> None:
    results = {"tuning": {"tasks": TUNED, "trials_per_s": 4.2}, "peers": {"tasks": TASKS}}
    lines = table(results, {"peak_gflops": 60_000.0, "dram_gbs": 4_300.0}, {"conformance": "OutOfTime: late\nmore"}).splitlines()
    cells = {row[0]: row[1:] for row in [[c.strip() for c in line.strip("|").split("|")] for line in lines if line.startswith("| ")]}
    assert cells["matmul(m=1024,n=1024,k=1024)"] == (
        ["50.00", "cuBLAS 45.00", "0.90", "42.9 TFLOP/s", "72%", "gpu tile", "122", "-", "2 of 128"]
    )
    assert cells["sum(shape=67108864)"][:5] == ["70.00 (search)", "-", "-", "3835 GB/s", "89%"]
    assert cells["relu(shape=4096x4096)"][1:3] == ["eager 31.00, torch.compile 30.00", "1.00, 0.97"]
    assert "! conformance failed: OutOfTime: late" in lines


def test_the_marks() -> None:
    gemm, memory, rate = marks({"tuning": {"trials_per_s": 2.9}, "peers": {"tasks": TASKS}})
    assert "of cuBLAS: reached (0.90 .. 0.90" in gemm and "of torch.compile: reached (0.97" in memory
    assert rate.endswith("NOT reached (2.90)")
    assert all(line.endswith("not measured") for line in marks({}))
    slow = {"matmul(m=2048,n=2048,k=2048)": {"times": {"ours": [2.0], "cuBLAS": [1.0]}}, **TASKS}
    assert "NOT reached (0.50 .. 0.90" in marks({"peers": {"tasks": slow}})[0]
    partly = {"matmul(m=2048,n=2048,k=2048)": {"times": {"cuBLAS": [1.0]}}, **TASKS}
    assert "reached as far as measured (0.90 .. 0.90, geometric mean 0.90, 1 of 2 measured)" in marks({"peers": {"tasks": partly}})[0]


@pytest.mark.parametrize("difference", [2e-3, float("nan")])
def test_different_results_are_not_compared(difference: float) -> None:
    tasks = {"matmul(m=1024,n=1024,k=1024)": {**TASKS["matmul(m=1024,n=1024,k=1024)"], "differences": {"cuBLAS": difference}}}
    text = table({"peers": {"tasks": tasks}}, {}, {})
    assert "cuBLAS DIFFERS from ours" in text and "of cuBLAS: not measured" in text


def test_state_of_the_gpu() -> None:
    assert str(GpuState(1980.0, 312.4, 45.0, "nvml")) == "1980 MHz, 312 W, 45 C" and str(GpuState()) == "unknown"
    assert isinstance(gpu_state(), GpuState)


def test_loads_from_shared_memory_stay_vectorized() -> None:
    from tunesmith.codegen.cuda.nvrtc import compile_cuda, disassemble

    pytest.importorskip("cuda.bindings.nvrtc")
    compiled = compile_cuda(source(), "sm_90")
    assert len(compiled.resources) == len(PATTERNS) and all(r.spill_bytes == 0 for r in compiled.resources.values())
    text = disassemble(compiled.cubin)
    if text is not None:
        assert text.count("LDS.128") >= 32 * len(PATTERNS) and "LDS.64" not in text
