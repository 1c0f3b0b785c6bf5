"""Test detection on fake /proc and /sys trees, so that the tests are independent of the machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tunesmith.ir.target.cpus import CPUS
from tunesmith.ir.target.detect import cpu_quota, detect_host, nvidia_gpus, parse_size

FLAGS = (
    "sse sse2 pni ssse3 sse4_1 sse4_2 popcnt cx16 avx f16c avx2 bmi1 bmi2 fma abm movbe avx512f avx512bw avx512cd avx512dq avx512vl "
    "avx512_vnni avx512vbmi avx512_vbmi2 avx512_bitalg avx512_vpopcntdq avx512ifma gfni vaes vpclmulqdq avx512_bf16 avx_vnni"
)


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text + "\n")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A Zen 5 of 4 cores with 2 threads each."""
    one = f"vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC 9575F\nflags\t\t: {FLAGS}"
    write(tmp_path, "proc/cpuinfo", "\n\n".join(f"processor\t: {cpu}\n{one}" for cpu in range(8)))
    for cpu in range(8):
        write(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{cpu % 4},{cpu % 4 + 4}")
        for index, (level, kind, size) in enumerate(
            [(1, "Data", "48K"), (1, "Instruction", "64K"), (2, "Unified", "1024K"), (3, "Unified", "32M")]
        ):
            folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            for name, text in (("level", str(level)), ("type", kind), ("size", size), ("coherency_line_size", "64")):
                write(tmp_path, f"{folder}/{name}", text)
    return tmp_path


def test_a_whole_machine(machine: Path) -> None:
    host = detect_host(machine, range(8), "x86_64")
    assert (host.mcpu, host.model_name, host.arch) == ("znver5", "AMD EPYC 9575F", "x86_64")
    assert (host.num_cores, host.cpus, host.quota) == (4, tuple(range(8)), None)
    assert (host.vector_bits, host.vector_registers) == (512, 32)
    assert (host.l1_bytes, host.l2_bytes, host.l3_bytes, host.cache_line) == (48 << 10, 1 << 20, 32 << 20, 64)
    assert host.features >= CPUS["znver5"].features


def test_affinity_counts_cores_not_threads(machine: Path) -> None:
    assert detect_host(machine, [1, 5], "x86_64").num_cores == 1
    assert detect_host(machine, [1, 2, 5], "x86_64").num_cores == 2


def test_hidden_instructions_change_the_name(machine: Path) -> None:
    text = (machine / "proc/cpuinfo").read_text().replace("avx512f ", "")
    (machine / "proc/cpuinfo").write_text(text)
    host = detect_host(machine, range(8), "x86_64")
    assert (host.mcpu, host.vector_bits) == ("znver3", 256)


def test_a_missing_third_level_is_reported_as_none(machine: Path) -> None:
    for cpu in range(8):
        (machine / f"sys/devices/system/cpu/cpu{cpu}/cache/index3/size").unlink()
    assert detect_host(machine, range(8), "x86_64").l3_bytes == 0


def test_arm_server(tmp_path: Path) -> None:
    features = "fp asimd evtstrm aes asimdhp asimddp sve bf16 i8mm"
    write(tmp_path, "proc/cpuinfo", f"processor\t: 0\nFeatures\t: {features}\nCPU implementer\t: 0x41\nCPU part\t: 0xd40")
    host = detect_host(tmp_path, [0], "aarch64")
    assert (host.mcpu, host.arch, host.vector_bits) == ("neoverse-v1", "aarch64", 128)
    assert host.l2_bytes == CPUS["neoverse-v1"].l2_bytes


def test_an_empty_system_still_gives_a_target(tmp_path: Path) -> None:
    host = detect_host(tmp_path, [], "x86_64")
    assert (host.mcpu, host.num_cores, host.vector_bits) == ("x86-64", 1, 128)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        # The tightest limit of all ancestors applies.
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "200000 100000", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, 2.0),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "400000 100000", "sys/fs/cgroup/a/b/cpu.max": "300000 100000"}, 3.0),
        (
            {
                "proc/self/cgroup": "4:memory:/m\n1:cpu,cpuacct:/x",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        (
            {"proc/self/cgroup": "1:cpu:/", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            None,
        ),
    ],
)
def test_quota(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    for path, text in files.items():
        write(tmp_path, path, text)
    assert cpu_quota(tmp_path) == quota


def test_quota_limits_threads(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "0::/")
    write(machine, "sys/fs/cgroup/cpu.max", "250000 100000")
    assert detect_host(machine, range(8), "x86_64").num_cores == 2
    write(machine, "sys/fs/cgroup/cpu.max", "50000 100000")
    assert detect_host(machine, range(8), "x86_64").num_cores == 1


def test_sizes() -> None:
    assert [parse_size(text) for text in ("48K", "32M", "1G", "64", "", "many")] == [49152, 32 << 20, 1 << 30, 64, 0, 0]


def test_gpus_from_the_drivers_answer() -> None:
    answer = "print('NVIDIA H200, 9.0, 143771, 580.95.05'); print('garbage')"
    (gpu,) = nvidia_gpus([sys.executable, "-c", answer])
    assert (gpu.name, gpu.compute_capability, gpu.memory_bytes, gpu.driver) == ("NVIDIA H200", "9.0", 143771 << 20, "580.95.05")


def test_no_driver_means_no_gpu() -> None:
    assert nvidia_gpus(["no-such-program-here"]) == []
    assert nvidia_gpus([sys.executable, "-c", "raise SystemExit(9)"]) == []


def test_amx_without_the_permission_of_the_kernel_is_not_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = f"{FLAGS} avx512_fp16 amx_tile amx_bf16 amx_int8"
    text = f"vendor_id: GenuineIntel\ncpu family: 6\nmodel: 143\nflags: {flags}"
    monkeypatch.setattr("tunesmith.ir.target.detect._cpuinfo", lambda root: dict(line.split(": ") for line in text.splitlines()))
    found = {}
    for permitted in (True, False):
        monkeypatch.setattr("tunesmith.ir.target.detect.request_tile_permission", lambda permitted=permitted: permitted)
        found[permitted] = detect_host()
    assert found[True].mcpu == "sapphirerapids" and "amx-tile" in found[True].features
    assert not any(f.startswith("amx-") for f in CPUS[found[False].mcpu].features | found[False].features)
