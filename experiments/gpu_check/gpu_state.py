"""Read clock, power and temperature of an NVIDIA GPU, with the library NVML if it can be loaded, else with `nvidia-smi`."""

from __future__ import annotations

import ctypes
import os
import subprocess
from dataclasses import asdict, dataclass
from functools import cache

_SM_CLOCK, _GPU_TEMPERATURE = 1, 0
"""NVML constants."""


@dataclass(frozen=True, slots=True)
class GpuState:
    """State reported by the driver; None for unknown values.

    Attributes:
        clock_mhz: clock of the multiprocessors.
        power_w, temperature_c: power and temperature of the board.
        source: `nvml`, `nvidia-smi`, or empty.
    """

    clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    source: str = ""

    def to_json(self) -> dict[str, object]:
        """The state as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        shown = [(self.clock_mhz, "MHz"), (self.power_w, "W"), (self.temperature_c, "C")]
        return ", ".join(f"{value:.0f} {unit}" for value, unit in shown if value is not None) or "unknown"


def gpu_state() -> GpuState:
    """The state of CUDA's first GPU; takes a millisecond with NVML, and much longer with `nvidia-smi`."""
    return _by_nvml() or _by_command() or GpuState()


def quick_clock() -> float | None:
    """Clock of the multiprocessors in MHz; None if it cannot be read in a millisecond."""
    found = _by_nvml()
    return None if found is None else found.clock_mhz


def describe() -> list[str]:
    """Lines of `nvidia-smi` about the GPU; empty without it."""
    fields = "name,driver_version,pstate,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu,memory.used,memory.total"
    answer = _query(fields)
    return [f"{name.strip()}: {value.strip()}" for name, value in zip(fields.split(","), answer.split(","), strict=False)] if answer else []


@cache
def _handle() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        handle = ctypes.c_void_p()
        if nvml.nvmlInit_v2():
            return None
        first = _first()
        if first.isdecimal():
            failed = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(first)), ctypes.byref(handle))
        else:
            failed = nvml.nvmlDeviceGetHandleByUUID(first.encode(), ctypes.byref(handle))
        return None if failed else (nvml, handle)
    except (OSError, AttributeError):
        return None


def _first() -> str:
    """Index or UUID of CUDA's device 0."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"


def _by_nvml() -> GpuState | None:
    found = _handle()
    if found is None:
        return None
    nvml, handle = found

    def query(name: str, *options: int) -> float | None:
        value = ctypes.c_uint()
        try:
            failed = getattr(nvml, name)(handle, *[ctypes.c_int(x) for x in options], ctypes.byref(value))
        except AttributeError:
            return None
        return None if failed else float(value.value)

    power = query("nvmlDeviceGetPowerUsage")
    clock, temperature = query("nvmlDeviceGetClockInfo", _SM_CLOCK), query("nvmlDeviceGetTemperature", _GPU_TEMPERATURE)
    return GpuState(clock, None if power is None else power * 1e-3, temperature, "nvml")


def _by_command() -> GpuState | None:
    answer = _query("clocks.sm,power.draw,temperature.gpu", units=False)
    if not answer:
        return None
    values: list[float | None] = []
    for part in answer.split(","):
        try:
            values.append(float(part))
        except ValueError:
            values.append(None)
    return GpuState(*[*values, None, None, None][:3], "nvidia-smi")


def _query(fields: str, units: bool = True) -> str:
    """The first line of the answer of `nvidia-smi`; empty on failure."""
    command = ["nvidia-smi", f"--id={_first()}", f"--query-gpu={fields}", "--format=csv,noheader" + ("" if units else ",nounits")]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.strip().splitlines()[0] if answer.strip() else ""
