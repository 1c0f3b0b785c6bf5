"""Tabulate processors by name, so that targets for other machines need no access to them.

A row has the exact instruction set of a processor, and typical values of its server or desktop part (caches, sustained clock), which
detection and explicit attributes override.  Feature names are LLVM's.  Rows of a vendor are ordered from old to new.
"""

from __future__ import annotations

from dataclasses import dataclass

KB = 1024
MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CpuModel:
    """One processor.

    Attributes:
        arch: `x86_64`, `aarch64` or `riscv64`.
        vendor: vendor as the operating system spells it; empty for the generic levels.
        features: instruction sets that every such processor has.
        l1_bytes, l2_bytes: data caches of one core.
        l3_bytes: last-level cache that a single core can fill; 0 if there is none.
        cache_line: bytes.
        fma_pipes: multiply-add instructions issued per cycle.
        datapath_bits: width of one such instruction before it is split in two.
        clock_ghz: sustained clock with all cores busy.
        identifiers: (family, first model, last model) on x86, (implementer, first part, last part) on Arm.
    """

    arch: str
    vendor: str
    features: frozenset[str]
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cache_line: int
    fma_pipes: int
    datapath_bits: int
    clock_ghz: float
    identifiers: tuple[tuple[int, int, int], ...]


_IMPLIED: dict[str, tuple[str, ...]] = {
    "sse2": ("sse",),
    "sse3": ("sse2",),
    "ssse3": ("sse3",),
    "sse4.1": ("ssse3",),
    "sse4.2": ("sse4.1",),
    "gfni": ("sse2",),
    "avx": ("sse4.2",),
    "vpclmulqdq": ("avx",),
    "avx2": ("avx",),
    "f16c": ("avx",),
    "fma": ("avx",),
    "vaes": ("avx2",),
    "avxvnni": ("avx2",),
    "avx512f": ("avx2", "f16c", "fma"),
    **dict.fromkeys(("avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni", "avx512ifma", "avx512vpopcntdq"), ("avx512f",)),
    **dict.fromkeys(("avx512bf16", "avx512bitalg", "avx512vbmi", "avx512vbmi2"), ("avx512bw",)),
    "avx512fp16": ("avx512bw", "avx512dq", "avx512vl"),
    **dict.fromkeys(("amx-bf16", "amx-fp16", "amx-int8"), ("amx-tile",)),
    **dict.fromkeys(("bf16", "dotprod", "i8mm"), ("neon",)),
    "sve": ("fullfp16", "neon"),
    "sve2": ("sve",),
    "v": ("d", "zvl128b"),
    "d": ("f",),
    "zfhmin": ("f",),
    "zvl256b": ("zvl128b",),
    "zvl512b": ("zvl256b",),
}
"""Features that a feature implies directly, as in LLVM, except that SVE does not imply NEON there: see `codegen.llvm.host.llvm_options`."""


def implied(feature: str) -> frozenset[str]:
    """All features that a feature implies."""
    direct = _IMPLIED.get(feature, ())
    return frozenset(direct).union(*[implied(other) for other in direct])


_V1 = frozenset({"sse", "sse2"})
_V2 = _V1 | {"sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16"}
_AVX = _V2 | {"avx"}
_IVY = _AVX | {"f16c"}
_V3 = _IVY | {"avx2", "bmi", "bmi2", "fma", "lzcnt", "movbe"}
_ADL = _V3 | {"gfni", "vaes", "vpclmulqdq", "avxvnni"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_CLX = _V4 | {"avx512vnni"}
_CPX = _CLX | {"avx512bf16"}
_ICX = _CLX | {"avx512vbmi", "avx512vbmi2", "avx512bitalg", "avx512vpopcntdq", "avx512ifma", "gfni", "vaes", "vpclmulqdq"}
_ZN3 = _V3 | {"vaes", "vpclmulqdq"}
_ZN4 = _ICX | {"avx512bf16"}
_ZN5 = _ZN4 | {"avxvnni"}
_SPR = _ZN5 | {"avx512fp16", "amx-tile", "amx-int8", "amx-bf16"}
_NEON = frozenset({"neon"})
_N1 = _NEON | {"fullfp16", "dotprod"}
_V1_ARM = _N1 | {"sve", "bf16", "i8mm"}
_V2_ARM = _V1_ARM | {"sve2"}
_M2 = _N1 | {"bf16", "i8mm"}
_RV64GC = frozenset({"m", "a", "f", "d", "c"})
_RVV128 = _RV64GC | {"v", "zvl128b", "zfhmin"}
_RVV256 = _RVV128 | {"zvl256b"}
_RVV512 = _RVV256 | {"zvl512b"}


def _x86(
    vendor: str,
    features: frozenset[str],
    caches: tuple[int, int, int],
    fma: tuple[int, int],
    clock_ghz: float,
    *identifiers: tuple[int, int, int],
) -> CpuModel:
    return CpuModel("x86_64", vendor, features, *caches, 64, *fma, clock_ghz, identifiers)


def _intel(features: frozenset[str], caches: tuple[int, int, int], fma: tuple[int, int], clock_ghz: float, *models: int) -> CpuModel:
    return _x86("GenuineIntel", features, caches, fma, clock_ghz, *((6, model, model) for model in models))


def _amd(
    features: frozenset[str], caches: tuple[int, int, int], fma: tuple[int, int], clock_ghz: float, *models: tuple[int, int, int]
) -> CpuModel:
    return _x86("AuthenticAMD", features, caches, fma, clock_ghz, *models)


def _arm(
    features: frozenset[str], caches: tuple[int, int, int], line: int, pipes: int, clock_ghz: float, *parts: tuple[int, int, int]
) -> CpuModel:
    # SVE registers are not counted: fixed-width vectors are lowered to the 128-bit NEON registers.
    return CpuModel("aarch64", "arm", features, *caches, line, pipes, 128, clock_ghz, parts)


def _riscv(features: frozenset[str], caches: tuple[int, int, int], fma: tuple[int, int], clock_ghz: float) -> CpuModel:
    return CpuModel("riscv64", "", features, *caches, 64, *fma, clock_ghz, ())


# name: features, (L1d, L2, L3), (FMA pipes, their width), clock, identifiers
CPUS: dict[str, CpuModel] = {
    "x86-64": _x86("", _V1, (32 * KB, 256 * KB, 8 * MB), (1, 128), 2.5),
    "x86-64-v2": _x86("", _V2, (32 * KB, 256 * KB, 8 * MB), (1, 128), 2.5),
    "x86-64-v3": _x86("", _V3, (32 * KB, 256 * KB, 8 * MB), (2, 256), 2.5),
    "x86-64-v4": _x86("", _V4, (32 * KB, 1 * MB, 24 * MB), (2, 512), 2.5),
    "sandybridge": _intel(_AVX, (32 * KB, 256 * KB, 8 * MB), (1, 256), 3.0, 0x2A, 0x2D),
    "ivybridge": _intel(_IVY, (32 * KB, 256 * KB, 8 * MB), (1, 256), 3.0, 0x3A, 0x3E),
    "haswell": _intel(_V3, (32 * KB, 256 * KB, 20 * MB), (2, 256), 2.8, 0x3C, 0x3F, 0x45, 0x46),
    "broadwell": _intel(_V3, (32 * KB, 256 * KB, 30 * MB), (2, 256), 2.7, 0x3D, 0x47, 0x4F, 0x56),
    "skylake": _intel(_V3, (32 * KB, 256 * KB, 8 * MB), (2, 256), 3.5, 0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6),
    "skylake-avx512": _intel(_V4, (32 * KB, 1 * MB, 24 * MB), (2, 512), 2.4, 0x55),
    "cascadelake": _intel(_CLX, (32 * KB, 1 * MB, 36 * MB), (2, 512), 2.6, 0x55),
    "cooperlake": _intel(_CPX, (32 * KB, 1 * MB, 38 * MB), (2, 512), 2.6, 0x55),
    "icelake-server": _intel(_ICX, (48 * KB, 1280 * KB, 48 * MB), (2, 512), 2.6, 0x6A, 0x6C),
    "icelake-client": _intel(_ICX, (48 * KB, 512 * KB, 8 * MB), (1, 512), 3.0, 0x7D, 0x7E),
    "tigerlake": _intel(_ICX, (48 * KB, 1280 * KB, 12 * MB), (1, 512), 3.5, 0x8C, 0x8D),
    "rocketlake": _intel(_ICX, (48 * KB, 512 * KB, 16 * MB), (1, 512), 4.0, 0xA7),
    "alderlake": _intel(_ADL, (48 * KB, 1280 * KB, 30 * MB), (2, 256), 4.5, 0x97, 0x9A),
    "raptorlake": _intel(_ADL, (48 * KB, 2 * MB, 36 * MB), (2, 256), 4.8, 0xB7, 0xBA, 0xBF),
    "sapphirerapids": _intel(_SPR, (48 * KB, 2 * MB, 105 * MB), (2, 512), 2.6, 0x8F),
    "emeraldrapids": _intel(_SPR, (48 * KB, 2 * MB, 260 * MB), (2, 512), 2.7, 0xCF),
    "graniterapids": _intel(_SPR, (48 * KB, 2 * MB, 480 * MB), (2, 512), 2.7, 0xAD, 0xAE),
    "znver1": _amd(_V3, (32 * KB, 512 * KB, 8 * MB), (2, 128), 3.0, (0x17, 0x00, 0x2F)),
    "znver2": _amd(_V3, (32 * KB, 512 * KB, 16 * MB), (2, 256), 3.1, (0x17, 0x30, 0xAF)),
    "znver3": _amd(_ZN3, (32 * KB, 512 * KB, 32 * MB), (2, 256), 3.3, (0x19, 0x00, 0x0F), (0x19, 0x20, 0x5F)),
    "znver4": _amd(_ZN4, (32 * KB, 1 * MB, 32 * MB), (2, 256), 3.6, (0x19, 0x10, 0x1F), (0x19, 0x60, 0xAF)),
    "znver5": _amd(_ZN5, (48 * KB, 1 * MB, 32 * MB), (2, 512), 3.9, (0x1A, 0x00, 0xFF)),
    "generic": _arm(_NEON, (32 * KB, 512 * KB, 0), 64, 2, 2.0),
    "neoverse-n1": _arm(_N1, (64 * KB, 1 * MB, 32 * MB), 64, 2, 2.6, (0x41, 0xD0C, 0xD0C)),
    "neoverse-v1": _arm(_V1_ARM, (64 * KB, 1 * MB, 32 * MB), 64, 4, 2.6, (0x41, 0xD40, 0xD40)),
    "neoverse-n2": _arm(_V2_ARM, (64 * KB, 1 * MB, 32 * MB), 64, 2, 2.8, (0x41, 0xD49, 0xD49)),
    "neoverse-v2": _arm(_V2_ARM, (64 * KB, 2 * MB, 36 * MB), 64, 4, 2.8, (0x41, 0xD4F, 0xD4F)),
    "apple-m1": _arm(_N1, (128 * KB, 12 * MB, 0), 128, 4, 3.2, (0x61, 0x22, 0x29)),
    "apple-m2": _arm(_M2, (128 * KB, 16 * MB, 0), 128, 4, 3.5, (0x61, 0x32, 0x39)),
    "cortex-a53": _arm(_NEON, (32 * KB, 512 * KB, 0), 64, 1, 1.4, (0x41, 0xD03, 0xD03)),
    "cortex-a55": _arm(_N1, (32 * KB, 128 * KB, 1 * MB), 64, 1, 1.8, (0x41, 0xD05, 0xD05)),
    "cortex-a57": _arm(_NEON, (32 * KB, 2 * MB, 0), 64, 2, 1.9, (0x41, 0xD07, 0xD07)),
    "cortex-a72": _arm(_NEON, (32 * KB, 1 * MB, 0), 64, 2, 1.5, (0x41, 0xD08, 0xD08)),
    "cortex-a76": _arm(_N1, (64 * KB, 512 * KB, 2 * MB), 64, 2, 2.4, (0x41, 0xD0B, 0xD0B)),
    "cortex-a78": _arm(_N1, (64 * KB, 512 * KB, 4 * MB), 64, 2, 2.4, (0x41, 0xD41, 0xD41)),
    "generic-rv64": _riscv(_RV64GC, (32 * KB, 512 * KB, 0), (1, 64), 1.5),
    "sifive-u74": _riscv(_RV64GC, (32 * KB, 2 * MB, 0), (1, 64), 1.5),
    "spacemit-x60": _riscv(_RVV256, (32 * KB, 512 * KB, 0), (1, 256), 1.6),
    "sifive-p670": _riscv(_RVV128, (64 * KB, 512 * KB, 4 * MB), (2, 128), 2.4),
    "sifive-x280": _riscv(_RVV512, (32 * KB, 512 * KB, 2 * MB), (1, 256), 1.5),
}

CPUINFO_FEATURES = {
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "bmi1": "bmi",
    "abm": "lzcnt",
    "avx_vnni": "avxvnni",
    "asimd": "neon",
    "asimdhp": "fullfp16",
    "asimddp": "dotprod",
}
"""LLVM names of the flags that Linux spells differently."""


def llvm_feature(flag: str) -> str:
    """LLVM's name of a flag in `/proc/cpuinfo`: `avx512_vnni` -> `avx512vnni`, `amx_tile` -> `amx-tile`."""
    return CPUINFO_FEATURES.get(flag) or flag.replace("avx512_", "avx512").replace("amx_", "amx-")


def cpuinfo_flag(feature: str) -> str:
    """The flag in `/proc/cpuinfo` of a feature with LLVM's name: the inverse of `llvm_feature`."""
    known = {name: flag for flag, name in CPUINFO_FEATURES.items()}
    later = ("vnni", "vbmi2", "bitalg", "vpopcntdq", "vp2intersect", "bf16", "fp16")
    plain = feature.replace("avx512", "avx512_") if feature.removeprefix("avx512") in later else feature
    return known.get(feature) or plain.replace("amx-", "amx_")


def is_of_other_architecture(feature: str, arch: str) -> bool:
    """Whether only processors of another architecture have a feature.  A feature that no row has may be of any architecture."""
    if feature.startswith(("amx-", "avx")):
        return arch != "x86_64"
    having = {row.arch for row in CPUS.values() if feature in row.features}
    return bool(having) and arch not in having


def architecture_of(feature: str) -> str:
    """An architecture whose processors have a feature; x86_64 if no row has it."""
    return next((row.arch for row in CPUS.values() if feature in row.features), "x86_64")


def vector_width(arch: str, features: frozenset[str]) -> tuple[int, int]:
    """(bits of the widest vector register, number of such registers) under an instruction set."""
    if arch == "aarch64":
        return 128, 32
    if arch == "riscv64":  # without vector registers LLVM splits vectors into the scalar ones
        return max([64, *[bits for bits in (128, 256, 512) if f"zvl{bits}b" in features]]), 32
    if "avx512f" in features:
        return 512, 32
    return (256, 16) if "avx" in features else (128, 16)


def best_match(arch: str, vendor: str, features: frozenset[str], family: int, model: int) -> str:
    """The name of the processor with these features.

    Among the rows whose features are all present, the richest instruction set wins, so that code for that name runs on the machine even if
    a hypervisor hides features or reports another model.  The model number decides between rows with the same instruction set; the older
    name is chosen if it is unknown.
    """

    def rank(name: str) -> tuple[int, bool, bool]:
        row = CPUS[name]
        known = any(row_family == family and first <= model <= last for row_family, first, last in row.identifiers)
        return len(row.features), row.vendor == vendor and known, row.vendor == vendor

    usable = [name for name, row in CPUS.items() if row.arch == arch and row.vendor in ("", vendor) and row.features <= features]
    return max(usable, key=rank) if usable else {"aarch64": "generic", "riscv64": "generic-rv64"}.get(arch, "x86-64")
