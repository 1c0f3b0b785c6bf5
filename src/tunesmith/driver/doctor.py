"""Report processor, GPUs, packages, noise and speed of this machine, with advice on problems."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Group, RenderableType

import tunesmith
from tunesmith.codegen.device.host import detect_device
from tunesmith.codegen.llvm.host import host_cpu_name
from tunesmith.codegen.llvm.probe import OUT_BYTES, load_probe
from tunesmith.display.tables import facts_table, printable
from tunesmith.ir.target.detect import detect_host, nvidia_gpus
from tunesmith.ir.target.target import Target
from tunesmith.measure.calibration.cpu import machine_rates
from tunesmith.measure.records.environment import package_version
from tunesmith.runtime.device.device import DEVICES
from tunesmith.runtime.threads import load_openmp, num_threads
from tunesmith.runtime.timing import CpuClock, TimingPolicy
from tunesmith.runtime.timing import measure as time_call
from tunesmith.support.errors import TunesmithError

PACKAGES: dict[str, tuple[str, ...]] = {
    "core": ("numpy", "scipy", "llvmlite", "pandas", "pyarrow", "apache-tvm-ffi", "rich", "xgboost-cpu", "xgboost"),
    "torch": ("torch",),
    "ray": ("ray",),
    "optuna": ("optuna",),
    "onnx": ("onnx",),
    "opencl": ("pyopencl",),
    "cuda": ("cuda-core", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime"),
    "pycuda": ("pycuda",),
    "plot": ("matplotlib", "jinja2"),
    "link": ("ziglang",),
    "baselines": ("onnxruntime", "jax", "openvino", "ncnn", "apache-tvm"),
}
"""Packages by the extra that installs them; "core" are the required ones."""

TOOLS = ("ld", "cc", "nvidia-smi")
"""External programs that are used if present."""

_NOISE_SECONDS = 1.0
_NOISE_POLICY = TimingPolicy(warmup=3, min_repeat_ms=1.0, repeats=3, quiet_fraction=float("inf"), window_s=_NOISE_SECONDS, limit_s=4.0)
_LOUD = 0.08
_UNSTEADY = 0.10


def report(*, measure: bool = True) -> dict[str, Any]:
    """Collect the report as plain data (JSON).

    Args:
        measure: False skips `noise` (1 s) and `rates` (about 2 s if not cached).

    Returns:
        `versions`, `cpu`, `target`, `openmp`, `gpus`, `opencl` (devices), `packages` (extra -> package -> version or None),
        `tools` (name -> path or None), `noise`, `rates`, `advice` (sentences).  A failed section is `{"error": text}`.
    """
    found: dict[str, Any] = {
        "versions": {"tunesmith": tunesmith.__version__, "python": platform.python_version(), "system": platform.platform()},
        "cpu": _cpu(),
        "target": _section(lambda: {"text": str(Target.detect()), "identity": Target.detect().to_json()}),
        "openmp": _section(_threads),
        "gpus": [asdict(gpu) for gpu in nvidia_gpus()],
        "opencl": _section(_opencl),
        "packages": {extra: {name: _version(name) for name in names} for extra, names in PACKAGES.items()},
        "tools": {name: shutil.which(name) for name in TOOLS},
    }
    if measure:
        found["noise"] = _section(_noise)
        found["rates"] = _section(lambda: machine_rates().to_json())
    return {**found, "advice": advice(found)}


def _threads() -> dict[str, object]:
    """The OpenMP runtime, and the maximum number of threads of parallel loops."""
    found: dict[str, object] = {"library": str(load_openmp()._name), "threads": num_threads()}
    return found | {name: os.environ[name] for name in ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT") if name in os.environ}


def _section(make: Callable[[], Mapping[str, object]]) -> dict[str, object]:
    try:
        return dict(make())
    except TunesmithError as error:
        return {"error": str(error)}


def _cpu() -> dict[str, object]:
    host = detect_host()
    return {**asdict(host), "features": sorted(host.features), "cpus": list(host.cpus), "llvm_name": host_cpu_name()}


def _opencl() -> dict[str, object]:
    """Names of the OpenCL devices in index order; the first with its target."""
    api = DEVICES.get("opencl")
    devices = [str(api.attributes(i).name) for i in range(api.count())]
    return {f"{i}: {name}": str(detect_device("opencl")) if i == 0 else "" for i, name in enumerate(devices)}


def _version(package: str) -> str | None:
    version = package_version(package)
    return None if version == "not installed" else version


def _noise() -> dict[str, object]:
    """Measure the load by other processes, and the variation of a fixed kernel on one core."""
    kernels = load_probe(Target.detect())
    out = np.zeros(OUT_BYTES, np.uint8)
    before = CpuClock.now()
    samples = time_call(lambda: kernels.multiply_add(20_000, out.ctypes.data, 1), _NOISE_POLICY)
    foreign = before.foreign(CpuClock.now())
    return {
        "foreign_cores": round(foreign, 4),
        "spread": round((samples.quantile(0.9) - samples.quantile(0.1)) / samples.median, 4),
        "worst": round(max(samples.seconds) / samples.median, 4),
        "samples": len(samples.seconds),
    }


def advice(found: Mapping[str, Any]) -> list[str]:
    """Advice on the problems in the report; empty if there are none."""
    said: list[str] = []
    cpu, noise = found["cpu"], found.get("noise", {})
    for section in ("target", "openmp", "noise", "rates"):
        if "error" in found.get(section, {}):
            said.append(f"{section}: {found[section]['error']}")
    if cpu["quota"] is not None and cpu["quota"] < len(cpu["cpus"]):
        said.append(
            f"The control group grants {cpu['quota']:g} of {len(cpu['cpus'])} processors, so {cpu['num_cores']} threads are used; "
            "kernels are throttled when more run. Raise the quota, or pin the process with taskset."
        )
    threads = found.get("openmp", {}).get("threads", cpu["num_cores"])
    if threads < cpu["num_cores"]:
        said.append(
            f"Parallel loops run on {threads} of {cpu['num_cores']} cores (OMP_NUM_THREADS). Also tune for that number: "
            f'target "llvm -num-cores={threads}".'
        )
    if noise.get("foreign_cores", 0) > _LOUD:
        said.append(
            f"Other processes use {noise['foreign_cores']:.0%} of a core: measurements wait for quiet windows. "
            "Stop them, or leave them a core with taskset."
        )
    if noise.get("spread", 0) > _UNSTEADY:
        said.append(
            f"A fixed kernel varies by {noise['spread']:.0%}: compare programs only within one interleaved run, never between runs."
        )
    if not found["tools"].get("ld") and not found["tools"].get("cc"):
        said.append(
            "No linker (ld or cc) was found: programs run in this process, but exporting a library needs one (apt install binutils)."
        )
    return said


def render(found: Mapping[str, Any]) -> RenderableType:
    """The report as tables for a terminal."""
    cpu = found["cpu"]
    parts: list[RenderableType] = [
        facts_table(
            "Machine",
            [
                *_words(found["versions"]),
                *_machine_rows(cpu),
                *_words(found["target"], prefix="target "),
                *_words(found["openmp"], prefix="openmp "),
            ],
        ),
        facts_table(
            "GPUs",
            [
                (gpu["name"], f"sm_{gpu['compute_capability'].replace('.', '')}, {_size(gpu['memory_bytes'])}, driver {gpu['driver']}")
                for gpu in found["gpus"]
            ]
            or [("none", "no NVIDIA driver found")],
        ),
        facts_table("OpenCL devices", _words(found["opencl"]) or [("none", "no OpenCL device found (pip install 'tunesmith[opencl]')")]),
        facts_table(
            "Packages",
            [
                (extra, ", ".join(f"{name} {version or '-'}" for name, version in names.items()))
                for extra, names in found["packages"].items()
            ],
        ),
        facts_table("Tools", [(name, path or "not found") for name, path in found["tools"].items()]),
    ]
    if "noise" in found:
        parts.append(facts_table("Noise", _noise_rows(found["noise"])))
    if "rates" in found:
        parts.append(facts_table("Rates", _rate_rows(found["rates"])))
    parts += [printable(f"! {sentence}", style="yellow") for sentence in found["advice"]]
    return Group(*parts)


def _words(section: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    return [(f"{prefix}{name}", str(value)) for name, value in section.items() if not isinstance(value, Mapping)]


def _machine_rows(cpu: Mapping[str, Any]) -> list[tuple[str, str]]:
    quota = "" if cpu["quota"] is None else f", quota {cpu['quota']:g}"
    return [
        ("cpu", f"{cpu['model_name']} ({cpu['mcpu']}; LLVM says {cpu['llvm_name']})"),
        ("cores", f"{cpu['num_cores']} for threads, {len(cpu['cpus'])} logical in the mask{quota}"),
        ("vectors", f"{cpu['vector_bits']} bits, {cpu['vector_registers']} registers"),
        ("caches", f"L1d {_size(cpu['l1_bytes'])}, L2 {_size(cpu['l2_bytes'])}, L3 {_size(cpu['l3_bytes'])}, line {cpu['cache_line']} B"),
    ]


def _noise_rows(noise: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "error" in noise:
        return [("error", noise["error"])]
    return [
        ("others", f"{noise['foreign_cores']:.1%} of a core"),
        ("fixed kernel", f"p10 to p90 {noise['spread']:.1%}, worst {noise['worst']:.2f} x median, {noise['samples']} samples"),
    ]


def _rate_rows(rates: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "error" in rates:
        return [("error", rates["error"])]
    rows = [("float32 FMA", f"{rates['peak_gflops_core']:.0f} GFLOP/s a core, {rates['peak_gflops']:.0f} all")]
    rows += [
        (f"{level} read", f"{rates[f'{key}_gbs_core']:.0f} GB/s a core, {rates[f'{key}_gbs']:.0f} all")
        for level, key in (("L2", "l2"), ("L3", "l3"), ("memory", "dram"))
    ]
    rows += [(name, f"{float(rate):.0f} G/s a core") for name, rate in (r.split("=") for r in rates["tensor_rates"].split(",") if r)]
    return [*rows, ("fork-join", f"{rates['fork_join_us']:.2f} us")]


def _size(nbytes: int) -> str:
    for unit, scale in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:g} {unit}"
    return f"{nbytes} B" if nbytes else "none"
