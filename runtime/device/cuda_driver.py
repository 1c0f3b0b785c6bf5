"""Define device attributes and fatal errors for both CUDA driver packages."""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.runtime.device.device import DeviceAttributes

ALIGNMENT = 256
"""Alignment of allocations in bytes (CUDA C Programming Guide, Device Memory Accesses)."""

NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: the stream does not synchronise with the default stream."""

LOST = frozenset(
    {
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "CUDA_ERROR_EXTERNAL_DEVICE",
        "CUDA_ERROR_TENSOR_MEMORY_LEAK",
        "CUDA_ERROR_CONTAINED",
    }
)
"""Errors after which "the process must be terminated and relaunched", according to the reference of CUresult."""


def attributes(get: Callable[[str], int], name: str, memory: tuple[int, int], driver_version: int) -> DeviceAttributes:
    """Attributes of a device.

    Args:
        get: returns the value of an attribute, by its name in `cuda.h` without CU_DEVICE_ATTRIBUTE_.
        name: name of the device.
        memory: free and total bytes.
        driver_version: in CUDA encoding, 13000 for 13.0.
    """
    x, y, z = [get(f"MAX_BLOCK_DIM_{axis}") for axis in "XYZ"]
    return DeviceAttributes(
        name=name,
        compute_units=get("MULTIPROCESSOR_COUNT"),
        clock_hz=get("CLOCK_RATE") * 1000 or None,
        memory_bytes=memory[1],
        free_memory_bytes=memory[0],
        l2_cache_bytes=get("L2_CACHE_SIZE") or None,
        warp_size=get("WARP_SIZE"),
        max_threads_per_block=get("MAX_THREADS_PER_BLOCK"),
        max_thread_dimensions=(x, y, z),
        max_registers_per_block=get("MAX_REGISTERS_PER_BLOCK"),
        max_shared_memory_per_block=get("MAX_SHARED_MEMORY_PER_BLOCK"),
        max_shared_memory_per_block_optin=get("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        compute_version=f"{get('COMPUTE_CAPABILITY_MAJOR')}.{get('COMPUTE_CAPABILITY_MINOR')}",
        driver_version=f"{driver_version // 1000}.{driver_version % 1000 // 10}",
    )
