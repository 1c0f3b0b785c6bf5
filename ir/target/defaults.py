"""Complete the attributes of a target from tables, from this machine, and from derived rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from tunesmith.ir.target.architectures import TRIPLE_ARCHITECTURES, architecture
from tunesmith.ir.target.attributes import (
    CPU_KINDS,
    KINDS,
    TARGET_KINDS,
    TARGET_TAGS,
    TILE_STRUCTURE,
    Value,
    check_attributes,
    own_attributes,
    own_defaults,
    suggestion,
)
from tunesmith.ir.target.cpus import CPUS, CpuModel, architecture_of, implied, is_of_other_architecture, vector_width
from tunesmith.ir.target.detect import detect_host, nvidia_gpus
from tunesmith.ir.target.gpus import ARCHITECTURES, CARDS, L2_BYTES_PER_CLOCK, OPENCL_FLOOR, base_arch, card_of_driver_name
from tunesmith.ir.target.tags import TAGS
from tunesmith.support.errors import TargetError

LAUNCH_US = 4.0
"""Launch time of a kernel until calibrated: 3-5 us on current drivers."""

# Estimates until rates are measured, from server parts of the 2020s: bytes per cycle and core from L2 and L3, GB/s from memory.
_L2_BYTES_PER_CLOCK = 48.0
_L3_BYTES_PER_CLOCK = 16.0
_DRAM_GBS_CORE = 15.0
_DRAM_GBS_SOCKET = 200.0


@dataclass(frozen=True, slots=True)
class Resolved:
    """A complete target.

    Attributes:
        values: every attribute of the kind.
        given: attributes from the user or from detection; the rest of `values` is derived from them.
        features: instruction sets of a CPU.
    """

    values: dict[str, Value]
    given: dict[str, Value]
    features: frozenset[str]


def resolve(kind: str, given: Mapping[str, Value], where: str) -> Resolved:
    """Complete the given attributes.

    Args:
        kind: a known kind.
        given: checked attributes.
        where: the target as the user wrote it, for messages.
    """
    if kind in KINDS:
        return _resolve_built_in(kind, dict(given), where)
    made = TARGET_KINDS.get(kind)
    names = {a.name for a in own_attributes(kind)}
    own = {**own_defaults(kind, where), **{name: value for name, value in given.items() if name in names}}
    missing = [f"{a.name} ({a.meaning})" for a in own_attributes(kind) if a.name not in own]
    if missing:
        raise TargetError(f"{where}: targets of kind {kind} must give {', '.join(missing)}.")
    own_given = {name: value for name, value in given.items() if name in names}
    if not made.like:
        return Resolved(own, own_given, frozenset())
    defaults = check_attributes(made.like, made.defaults, f"{where}: defaults of the target kind {kind!r}")
    found = _resolve_built_in(made.like, {**defaults, **{n: v for n, v in given.items() if n not in names}}, where)
    return Resolved({**found.values, **own}, {**found.given, **own_given}, found.features)


def _resolve_built_in(kind: str, given: dict[str, Value], where: str) -> Resolved:
    if kind in CPU_KINDS:
        return _resolve_cpu(given, where)
    return _resolve_cuda(given, where) if kind == "cuda" else _resolve_opencl(given)


def known_tags() -> list[str]:
    """The names of all tags."""
    return [*TAGS, *TARGET_TAGS]


def tagged(text: str) -> dict[str, Value] | None:
    """Kind and attributes of a tag, None if there is no such tag.

    The vendor of a built-in tag may be omitted, or the tag spelled as in TVM (`nvidia/geforce-rtx-4090`).
    """
    card = text.lower().removeprefix("nvidia/").removeprefix("nvidia-").removeprefix("geforce-")
    for tag in (f"nvidia/{card}", text):
        if tag in TAGS:
            return TAGS[tag]
    return dict(TARGET_TAGS.get(text)) if text in TARGET_TAGS else None


def _resolve_cpu(given: dict[str, Value], where: str) -> Resolved:
    if given.get("mcpu", "native") == "native":
        given = {**_host_attributes(given, where), **{name: value for name, value in given.items() if name != "mcpu"}}
    if given["mcpu"] == "generic" and _triple_arch(str(given.get("mtriple", "x86_64")), where) == "x86_64":
        given["mcpu"] = "x86-64"
    row = _cpu_row(given, where)
    if "num_cores" not in given:
        raise TargetError(
            f"{where}: num_cores is missing. A processor name does not determine the number of threads: add -num-cores=N "
            f"(this machine: -num-cores={detect_host().num_cores}), or use -mcpu=native."
        )
    triple = str(given.get("mtriple") or _default_triple(str(given["mcpu"]), row))
    if _triple_arch(triple, where) != row.arch:
        raise TargetError(
            f"{where}: mtriple {triple!r} does not fit mcpu {given['mcpu']!r}, which is {row.arch}. "
            "Omit mtriple, or name another processor."
        )
    features = _with_mattr(row.features, str(given.get("mattr", "")))
    foreign = sorted([f for f in features - row.features if is_of_other_architecture(f, row.arch)])
    if foreign:  # LLVM would end the process at the first instruction that it cannot select
        named = next((f for f in foreign if f"+{f}" in str(given["mattr"]).split(",")), foreign[0])
        other = architecture_of(named)
        raise TargetError(f"{where}: mattr adds {named}, a feature of {other}, and mcpu {given['mcpu']!r} is {row.arch}.")
    bits, registers = vector_width(row.arch, features)
    _check_vector_bits(given, bits, where)
    values: dict[str, Value] = {
        "mattr": "",
        "vector_bits": bits,
        "vector_registers": registers,
        "tile_structure": TILE_STRUCTURE,
        "tensor_rates": "",
        "l1_bytes": row.l1_bytes,
        "l2_bytes": row.l2_bytes,
        "l3_bytes": row.l3_bytes,
        "cache_line": row.cache_line,
        "clock_ghz": row.clock_ghz,
        **given,
        "mtriple": triple,
    }
    return Resolved({**_estimated_rates(row, values), **values}, given, features)


def _host_attributes(given: Mapping[str, Value], where: str) -> dict[str, Value]:
    """Attributes of this machine by detection."""
    host = detect_host()
    triple = str(given.get("mtriple", ""))
    if triple and _triple_arch(triple, where) != host.arch:
        raise TargetError(
            f"{where}: mtriple {triple!r} is not this machine's ({host.arch}), so the processor must be named: add -mcpu=NAME."
        )
    return {
        "mcpu": host.mcpu,
        "num_cores": host.num_cores,
        "l1_bytes": host.l1_bytes,
        "l2_bytes": host.l2_bytes,
        "l3_bytes": host.l3_bytes,
        "cache_line": host.cache_line,
    }


def _cpu_row(given: Mapping[str, Value], where: str) -> CpuModel:
    """The table row of a processor; for an unlisted processor, the generic level of its specified vector width."""
    name = str(given["mcpu"])
    if name in CPUS:
        return CPUS[name]
    if "vector_bits" not in given or "mtriple" not in given:
        raise TargetError(
            f"{where}: unknown mcpu {name!r}.{suggestion(name, CPUS)} Known: native, {', '.join(CPUS)}. "
            "For another processor that LLVM knows, add -mtriple=... and -vector-bits=..."
        )
    arch, bits = _triple_arch(str(given["mtriple"]), where), cast(int, given["vector_bits"])
    if arch == "aarch64":
        return CPUS["generic"]
    if arch == "riscv64":
        return CPUS["sifive-x280" if bits >= 512 else "spacemit-x60" if bits >= 256 else "sifive-p670" if bits >= 128 else "generic-rv64"]
    return CPUS["x86-64-v4" if bits >= 512 else "x86-64-v3" if bits >= 256 else "x86-64"]


def _default_triple(name: str, row: CpuModel) -> str:
    return "arm64-apple-darwin" if name.startswith("apple-") else f"{row.arch}-unknown-linux-gnu"


def _triple_arch(triple: str, where: str) -> str:
    if triple.split("-")[0] not in TRIPLE_ARCHITECTURES:
        known = ", ".join(TRIPLE_ARCHITECTURES)
        raise TargetError(
            f"{where}: mtriple {triple!r} names an architecture that is not supported: code is generated for x86-64, aarch64 and riscv64. "
            f"A triple begins with one of {known}."
        )
    return architecture(triple)


def _with_mattr(features: frozenset[str], mattr: str) -> frozenset[str]:
    """The features after the flags: first those that are added, with the features that they imply, then those that are removed, with the
    features that imply them.  LLVM gets the flags in this order."""
    flags = [flag for flag in mattr.split(",") if flag]
    added = {flag[1:] for flag in flags if flag[0] == "+"}
    removed = {flag[1:] for flag in flags if flag[0] == "-"}
    found = features.union(added, *[implied(feature) for feature in added])
    return frozenset([feature for feature in found if not removed & {feature, *implied(feature)}])


def _check_vector_bits(given: Mapping[str, Value], widest: int, where: str) -> None:
    bits = cast(int, given.get("vector_bits", widest))
    if bits > widest or bits < 64 or bits & (bits - 1):
        raise TargetError(
            f"{where}: vector_bits {bits} is not possible on {given['mcpu']}: a power of two from 64 to {widest} (its registers)."
        )


def _estimated_rates(row: CpuModel, values: Mapping[str, Value]) -> dict[str, Value]:
    """Estimated rates of an uncalibrated CPU; specified single-core rates are scaled to all cores."""
    clock, cores, bits = cast(float, values["clock_ghz"]), cast(int, values["num_cores"]), cast(int, values["vector_bits"])
    core = {
        "peak_gflops": 2.0 * row.fma_pipes * min(bits, row.datapath_bits) / 32 * clock,
        "l2_gbs": _L2_BYTES_PER_CLOCK * clock,
        "l3_gbs": _L3_BYTES_PER_CLOCK * clock,
        "dram_gbs": _DRAM_GBS_CORE,
    }
    rates: dict[str, Value] = {"fork_join_us": 0.5 + 0.1 * cores}
    for name, estimate in core.items():
        one = cast(float, values.get(f"{name}_core", estimate))
        rates[f"{name}_core"] = one
        rates[name] = min(one * cores, max(one, _DRAM_GBS_SOCKET)) if name == "dram_gbs" else one * cores
    return rates


def _resolve_cuda(given: dict[str, Value], where: str) -> Resolved:
    if "arch" not in given and "model" not in given:
        given = {**_first_gpu(given, where), **given}
    model = str(given.get("model", ""))
    if model and model not in CARDS and not {"arch", "num_cores"} <= given.keys():
        raise TargetError(
            f"{where}: unknown model {model!r}.{suggestion(model, CARDS)} Known: {', '.join(CARDS)}. "
            "For another card, add -arch=sm_.. and -num-cores=N."
        )
    arch = str(given.get("arch") or CARDS[model].arch)
    if base_arch(arch) not in ARCHITECTURES:
        raise TargetError(
            f"{where}: unknown arch {arch!r}.{suggestion(arch, ARCHITECTURES)} Known: {', '.join(ARCHITECTURES)} (and sm_90a)."
        )
    if model in CARDS and base_arch(arch) != CARDS[model].arch:
        raise TargetError(f"{where}: model {model!r} is {CARDS[model].arch}, not {arch}. Omit arch, or name another model.")
    limits = ARCHITECTURES[base_arch(arch)]
    card = CARDS[model if model in CARDS else limits.card]
    cores, clock = cast(int, given.get("num_cores", card.num_cores)), cast(float, given.get("clock_ghz", card.clock_ghz))
    values: dict[str, Value] = {
        "arch": arch,
        "model": model,
        "num_cores": cores,
        "l2_bytes": card.l2_bytes,
        "cache_line": 128,
        "clock_ghz": clock,
        "peak_gflops": 2.0 * cores * limits.fma_per_clock * clock,
        "tensor_gflops": card.tensor_gflops * cores / card.num_cores,
        "l2_gbs": L2_BYTES_PER_CLOCK * cores * clock,
        "dram_gbs": card.dram_gbs,
        "launch_us": LAUNCH_US,
        "max_threads_per_block": 1024,
        "warp_size": 32,
        "shared_memory_per_block": limits.shared_memory_per_block,
        "static_shared_memory_per_block": 48 * 1024,
        "shared_memory_per_sm": limits.shared_memory_per_sm,
        "shared_memory_reserved": limits.shared_memory_reserved,
        "max_threads_per_sm": limits.max_threads_per_sm,
        "max_blocks_per_sm": limits.max_blocks_per_sm,
        "registers_per_sm": 65536,
        "registers_per_thread": 255,
        "memory_bytes": card.memory_bytes,
    }
    return Resolved({**values, **given}, given, frozenset())


def _first_gpu(given: Mapping[str, Value], where: str) -> dict[str, Value]:
    """Attributes of this machine's first GPU, as the driver reports it."""
    gpus = nvidia_gpus()
    if not gpus:
        tags = [name for name, values in TAGS.items() if values["kind"] == "cuda"]
        raise TargetError(
            f"{where}: no GPU was named and none was found here. Name one: -arch=sm_90, -model=h200, or a tag ({', '.join(tags)})."
        )
    card = card_of_driver_name(gpus[0].name)
    if card is not None:
        return {"model": card}
    arch = "sm_" + gpus[0].compute_capability.replace(".", "")
    if "num_cores" not in given:
        raise TargetError(
            f"{where}: this machine's {gpus[0].name!r} is not in the table of cards. Use -arch={arch} -num-cores=N (its multiprocessors), "
            "or -model=NAME of a similar card."
        )
    return {"arch": arch, "memory_bytes": gpus[0].memory_bytes}


def _resolve_opencl(given: dict[str, Value]) -> Resolved:
    return Resolved({"arch": "", "model": "", "launch_us": LAUNCH_US, **OPENCL_FLOOR, **given}, given, frozenset())
