"""Check targets against the devices of this machine, and derive the target of a device."""

from __future__ import annotations

from tunesmith.ir.target.detect import detect_host
from tunesmith.ir.target.target import Target
from tunesmith.runtime.device.device import DEVICES, DeviceAttributes
from tunesmith.support.errors import BuildError, RunError

MAX_THREADS = 1024
"""Upper limit of threads per block in searches, also for devices that report more; no GPU supports more."""


def check_device(target: Target) -> None:
    """Refuse a target whose code the first device of its kind cannot run.

    Raises:
        BuildError: there is no such device, or it does not meet the limits of the target.
    """
    found = _first(target.base)
    if found is None:
        raise BuildError(
            f"code for {target} cannot run here: there is no {target.base} device, or its driver or Python package is missing "
            f"(pip install 'tunesmith[{target.base}]'; `tunesmith doctor` lists the devices found)."
        )
    if target.base == "cuda" and found.compute_version is not None:
        arch = "sm_" + found.compute_version.replace(".", "")
        if target.arch.removesuffix("a") != arch:
            raise BuildError(f"code for {target} cannot run here: this {found.name} is {arch}. Tune for -arch={arch}.")
    limits = {
        "max_threads_per_block": found.max_threads_per_block,
        "shared_memory_per_block": found.max_shared_memory_per_block_optin or found.max_shared_memory_per_block,
    }
    for name, most in limits.items():
        required = getattr(target, name)
        if most is not None and required > most:
            raise BuildError(f"code for {target} cannot run here: {name} is {required}, and this {found.name} has {most}.")


def detect_device(kind: str) -> Target:
    """The target of the first device of a kind; the default target of the kind if there is no device and the kind is not cuda.

    Raises:
        BuildError: the kind is cuda and there is no device.
    """
    if kind == "cuda":
        return Target.detect("cuda")
    found = _first(kind)
    if found is None:
        return Target(kind)
    given: dict[str, object] = {"kind": kind}
    if found.compute_units is not None:
        given["num_cores"] = found.compute_units
    if found.max_threads_per_block is not None:
        given["max_threads_per_block"] = min(found.max_threads_per_block, MAX_THREADS)
    if found.max_shared_memory_per_block is not None:
        shared = found.max_shared_memory_per_block
        given |= {"shared_memory_per_block": shared, "static_shared_memory_per_block": shared, "shared_memory_per_sm": shared}
    if found.warp_size is not None:
        given["warp_size"] = found.warp_size
    if found.memory_bytes is not None:
        given["memory_bytes"] = found.memory_bytes
    if _is_processor(found):
        host = Target.detect()
        rates = {name: getattr(host, name) for name in ("peak_gflops", "l2_bytes", "l2_gbs", "dram_gbs", "clock_ghz", "cache_line")}
        given |= {**rates, "num_cores": host.num_cores}
    return Target(given)


def _first(kind: str) -> DeviceAttributes | None:
    """The attributes of the first device of a kind, None if there is none."""
    try:
        api = DEVICES.get(kind)
        return api.attributes(0) if api.count() else None
    except RunError:
        return None


def _is_processor(found: DeviceAttributes) -> bool:
    """Whether the device is the CPU of this machine."""
    return (bool(found.name) and str(found.name).strip() in detect_host().model_name) or "cpu" in str(found.name).lower()
