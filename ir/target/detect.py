"""Detect this machine: its processor from /proc and /sys, its GPUs from the driver's command.

Detection only reads and needs no third-party package.  It counts the resources available to the process (affinity, control-group quota),
not those of the whole machine.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunesmith.ir.target.cpus import CPUS, best_match, llvm_feature, vector_width
from tunesmith.support.tile_permission import request_tile_permission

_SIZE_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64", "riscv64": "riscv64"}


@dataclass(frozen=True, slots=True)
class HostCpu:
    """This machine's processor, as available to the process.

    Attributes:
        mcpu: LLVM's name, chosen so that code for it runs here.
        model_name: the vendor's text, for display.
        arch: `x86_64`, `aarch64` or `riscv64`.
        features: instruction sets present, spelled as LLVM does.
        cpus: logical processors in this process's affinity mask.
        num_cores: useful number of threads: physical cores in the mask, at most the control group's quota.
        quota: processor time that the control group allows, in processors; None if unlimited.
        vector_bits, vector_registers: the widest vectors.
        l1_bytes, l2_bytes, l3_bytes, cache_line: caches of the first usable core; values of the table if the system reports none.
    """

    mcpu: str
    model_name: str
    arch: str
    features: frozenset[str]
    cpus: tuple[int, ...]
    num_cores: int
    quota: float | None
    vector_bits: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cache_line: int


@dataclass(frozen=True, slots=True)
class NvidiaGpu:
    """One GPU as the driver reports it: `compute_capability` like `9.0`, memory in bytes."""

    name: str
    compute_capability: str
    memory_bytes: int
    driver: str


def detect_host(root: Path = Path("/"), cpus: Iterable[int] | None = None, machine: str | None = None) -> HostCpu:
    """Read this machine's processor.

    Args:
        root: folder of `proc` and `sys`; another folder in tests.
        cpus: logical processors to count; the affinity mask of this process by default.
        machine: `platform.machine()` by default.
    """
    arch = _MACHINES.get((machine or platform.machine()).lower(), "x86_64")
    usable = tuple(sorted(cpus if cpus is not None else _affinity()))
    fields = _cpuinfo(root)
    features = frozenset(llvm_feature(flag) for flag in (fields.get("flags") or fields.get("Features") or "").split())
    if root == Path("/") and "amx-tile" in features and not request_tile_permission():
        features = frozenset(
            f for f in features if not f.startswith("amx-")
        )  # a sandbox or an old kernel: code with AMX would end the process
    mcpu = _cpu_name(arch, features, fields)
    row = CPUS[mcpu]
    bits, registers = vector_width(arch, row.features)
    caches = _caches(root, usable[0]) if usable else {}
    quota = cpu_quota(root)
    cores = _physical_cores(root, usable)
    return HostCpu(
        mcpu=mcpu,
        model_name=fields.get("model name") or platform.processor() or mcpu,
        arch=arch,
        features=features or row.features,
        cpus=usable,
        num_cores=max(1, cores if quota is None else min(cores, int(quota))),
        quota=quota,
        vector_bits=bits,
        vector_registers=registers,
        l1_bytes=caches.get("l1", row.l1_bytes),
        l2_bytes=caches.get("l2", row.l2_bytes),
        # If the system describes caches but no third level, there is none.
        l3_bytes=caches.get("l3", 0 if caches else row.l3_bytes),
        cache_line=caches.get("line", row.cache_line),
    )


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _read(path: Path) -> str:
    """The text of a file without surrounding blanks; empty if it does not exist or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cpuinfo(root: Path) -> dict[str, str]:
    """Fields of the first processor in /proc/cpuinfo."""
    first = _read(root / "proc/cpuinfo").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _cpu_name(arch: str, features: frozenset[str], fields: dict[str, str]) -> str:
    if arch == "aarch64":
        if not fields and platform.system() == "Darwin":
            return "apple-m1"
        return best_match(arch, "arm", features, _number(fields.get("CPU implementer")), _number(fields.get("CPU part")))
    return best_match(arch, fields.get("vendor_id", ""), features, _number(fields.get("cpu family")), _number(fields.get("model")))


def _number(text: str | None) -> int:
    """The integer in a cpuinfo field (decimal or 0x...), -1 if there is none."""
    try:
        return int(text or "", 0)
    except ValueError:
        return -1


def parse_size(text: str) -> int:
    """Bytes of a size in the kernel's format: `48K`, `2048K`, `32M`; 0 if the text is not a size."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(match[1]) * _SIZE_UNITS[match[2]] if match else 0


def _caches(root: Path, cpu: int) -> dict[str, int]:
    """Data cache sizes of one processor (keys l1, l2, l3, line), as far as the system reports them."""
    found: dict[str, int] = {}
    for index in sorted((root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        size = parse_size(_read(index / "size"))
        if _read(index / "type") in ("Data", "Unified") and size:
            found[f"l{_read(index / 'level')}"] = size
            line = _number(_read(index / "coherency_line_size"))
            if line > 0:
                found["line"] = line
    return found


def _physical_cores(root: Path, cpus: Sequence[int]) -> int:
    """Number of physical cores of logical processors: hyperthreads share the vector units that tuned code saturates."""
    siblings = {_read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus}
    return len(siblings) or 1


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Processor time that this process's control group and its ancestors allow, in processors; None if unlimited.

    Reads version 2 (`cpu.max`) and version 1 (`cpu.cfs_quota_us`) hierarchies.
    """
    limits: list[float] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            limits += _limits(root / "sys/fs/cgroup", group, _quota_v2)
        elif "cpu" in controllers.split(","):
            limits += _limits(root / "sys/fs/cgroup" / controllers, group, _quota_v1)
            limits += _limits(root / "sys/fs/cgroup/cpu", group, _quota_v1)
    return min(limits, default=None)


def _limits(mount: Path, group: str, read: Callable[[Path], float | None]) -> list[float]:
    """Quotas of a group and its ancestors."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    folders = [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    return [quota for quota in map(read, folders) if quota is not None]


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    return _number(quota) / _number(period) if _number(quota) > 0 and _number(period) > 0 else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(_read(folder / "cpu.cfs_quota_us")), _number(_read(folder / "cpu.cfs_period_us"))
    return quota / period if quota > 0 and period > 0 else None


def nvidia_gpus(command: Sequence[str] = ("nvidia-smi",)) -> list[NvidiaGpu]:
    """The NVIDIA GPUs of this machine, in the driver's order; empty without a driver."""
    query = ["--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run([*command, *query], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines()]
    return [NvidiaGpu(row[0], row[1], max(0, _number(row[2])) * 1024**2, row[3]) for row in rows if len(row) == 4]
