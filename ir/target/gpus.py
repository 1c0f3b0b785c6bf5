"""Tabulate GPUs by architecture and by card, so that a GPU target needs no device.

Limits are from the CUDA programming guide (technical specifications per compute capability); rates are the vendors' published figures:
boost clock, dense matrix rate with float32 accumulation, memory bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass

KB = 1024
MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class GpuArchitecture:
    """Limits shared by all cards of a compute capability.

    Attributes:
        shared_memory_per_sm, shared_memory_per_block: bytes; the latter includes the opt-in of a launch.
        shared_memory_reserved: bytes reserved per resident block beyond its request.
        max_threads_per_sm, max_blocks_per_sm: residency limits.
        fma_per_clock: float32 multiply-adds that a multiprocessor issues per cycle.
        card: the card whose size and rates are the defaults if no model is named.
    """

    shared_memory_per_sm: int
    shared_memory_per_block: int
    shared_memory_reserved: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    fma_per_clock: int
    card: str


@dataclass(frozen=True, slots=True)
class GpuCard:
    """One product.

    Attributes:
        arch: key of `ARCHITECTURES`.
        names: full names reported by the driver, without the vendor; variants not listed may have fewer multiprocessors.
        num_cores: streaming multiprocessors.
        clock_ghz: boost clock.
        l2_bytes, memory_bytes: sizes.
        dram_gbs: memory bandwidth, GB/s.
        tensor_gflops: dense float16 / bfloat16 matrix rate with float32 accumulation, GFLOP/s.
    """

    arch: str
    names: tuple[str, ...]
    num_cores: int
    clock_ghz: float
    l2_bytes: int
    memory_bytes: int
    dram_gbs: float
    tensor_gflops: float


ARCHITECTURES: dict[str, GpuArchitecture] = {
    "sm_70": GpuArchitecture(96 * KB, 96 * KB, 0, 2048, 32, 64, "v100"),
    "sm_75": GpuArchitecture(64 * KB, 64 * KB, 0, 1024, 16, 64, "t4"),
    "sm_80": GpuArchitecture(164 * KB, 163 * KB, 1 * KB, 2048, 32, 64, "a100"),
    "sm_86": GpuArchitecture(100 * KB, 99 * KB, 1 * KB, 1536, 16, 128, "rtx-3090"),
    "sm_89": GpuArchitecture(100 * KB, 99 * KB, 1 * KB, 1536, 24, 128, "rtx-4090"),
    "sm_90": GpuArchitecture(228 * KB, 227 * KB, 1 * KB, 2048, 32, 128, "h100"),
}

CARDS: dict[str, GpuCard] = {
    "v100": GpuCard("sm_70", ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"), 80, 1.53, 6 * MB, 16 * 1024 * MB, 900.0, 125_000.0),
    "t4": GpuCard("sm_75", ("Tesla T4", "T4"), 40, 1.59, 4 * MB, 16 * 1024 * MB, 320.0, 65_000.0),
    "a100": GpuCard("sm_80", ("A100-SXM4-80GB",), 108, 1.41, 40 * MB, 80 * 1024 * MB, 2039.0, 312_000.0),
    "rtx-3090": GpuCard("sm_86", ("GeForce RTX 3090",), 82, 1.695, 6 * MB, 24 * 1024 * MB, 936.0, 71_000.0),
    "rtx-4090": GpuCard("sm_89", ("GeForce RTX 4090",), 128, 2.52, 72 * MB, 24 * 1024 * MB, 1008.0, 165_200.0),
    "l4": GpuCard("sm_89", ("L4",), 58, 2.04, 48 * MB, 24 * 1024 * MB, 300.0, 121_000.0),
    "h100": GpuCard("sm_90", ("H100 80GB HBM3",), 132, 1.98, 50 * MB, 80 * 1024 * MB, 3350.0, 989_400.0),
    "h200": GpuCard("sm_90", ("H200",), 132, 1.98, 60 * MB, 141 * 1024 * MB, 4800.0, 989_400.0),
}
"""The SXM boards of A100 (80 GB), H100 and H200."""

L2_BYTES_PER_CLOCK = 21.0
"""L2 read bandwidth of one multiprocessor, bytes per cycle, until calibrated: an H100 reads 5.5 TB/s with 132 of them at 1.98 GHz."""

OPENCL_FLOOR = {
    "num_cores": 1,
    "max_threads_per_block": 256,
    "max_threads_per_sm": 1024,
    "max_blocks_per_sm": 8,
    "warp_size": 1,
    "shared_memory_per_block": 32 * KB,
    "static_shared_memory_per_block": 32 * KB,
    "shared_memory_per_sm": 32 * KB,
    "shared_memory_reserved": 0,
    "registers_per_sm": 65536,
    "registers_per_thread": 255,
    "cache_line": 64,
    "l2_bytes": 1 * MB,
    "memory_bytes": 1024 * MB,
    "clock_ghz": 1.0,
    "peak_gflops": 16.0,
    "tensor_gflops": 16.0,
    "l2_gbs": 40.0,
    "dram_gbs": 10.0,
}
"""Defaults of an unspecified OpenCL device: limits that every full-profile implementation meets, rates of a slow device."""


def base_arch(arch: str) -> str:
    """The table row of an architecture: `sm_90a` (architecture-specific instructions) has the limits of `sm_90`."""
    return arch.removesuffix("a")


def card_of_driver_name(name: str) -> str | None:
    """The card with a driver name (`NVIDIA H100 80GB HBM3` -> `h100`), or None."""
    product = name.strip().removeprefix("NVIDIA ")
    return next((card for card, row in CARDS.items() if product in row.names), None)
