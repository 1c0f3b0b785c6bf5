"""Test targets: text, JSON, tags, defaults, identity, and every refusal."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.ir.target import defaults as target_defaults
from tunesmith.ir.target.attributes import ATTRIBUTES, KINDS, attributes_of
from tunesmith.ir.target.cpus import CPUS, best_match, llvm_feature
from tunesmith.ir.target.defaults import TAGS
from tunesmith.ir.target.detect import NvidiaGpu
from tunesmith.ir.target.gpus import ARCHITECTURES, CARDS
from tunesmith.ir.target.target import Target
from tunesmith.support.errors import TargetError

ZEN5 = "llvm -mcpu=znver5 -num-cores=2"


def test_text_describes_another_machine() -> None:
    target = Target(ZEN5)
    assert (target.kind, target.mcpu, target.num_cores, target.mtriple) == ("llvm", "znver5", 2, "x86_64-unknown-linux-gnu")
    assert (target.vector_bits, target.vector_registers, target.cache_line) == (512, 32, 64)
    assert (target.l1_bytes, target.l2_bytes, target.l3_bytes) == (48 << 10, 1 << 20, 32 << 20)
    assert target.is_cpu
    assert not target.is_gpu
    assert target.has_feature("avx512bf16")
    assert not target.has_feature("avx512fp16")


@pytest.mark.parametrize(
    ("name", "bits", "registers"),
    [
        ("znver4", 512, 32),
        ("skylake-avx512", 512, 32),
        ("haswell", 256, 16),
        ("x86-64", 128, 16),
        ("neoverse-v1", 128, 32),
        ("apple-m1", 128, 32),
    ],
)
def test_vectors_of_well_known_processors(name: str, bits: int, registers: int) -> None:
    target = Target(f"llvm -mcpu={name} -num-cores=4")
    assert (target.vector_bits, target.vector_registers) == (bits, registers)


def test_lanes_depend_on_the_type() -> None:
    target = Target(ZEN5)
    assert [target.vector_lanes(t) for t in ("float32", "float64", "bfloat16", "int8", "bool", "float32x4")] == [16, 8, 32, 64, 64, 16]
    assert Target("llvm -mcpu=znver5 -num-cores=2 -vector-bits=256").vector_lanes("float32") == 8
    assert Target("cuda -arch=sm_90").vector_lanes("float32") == 4


def test_peak_follows_width_clock_and_datapath() -> None:
    wide, narrow = Target(ZEN5), Target(ZEN5 + " -vector-bits=256")
    assert wide.peak_gflops_core == 2 * narrow.peak_gflops_core
    assert wide.peak_gflops == 2 * wide.peak_gflops_core
    # Zen 4 splits 512-bit operations in two.
    assert Target("llvm -mcpu=znver4 -num-cores=1 -clock-ghz=3.0").peak_gflops == 2 * 2 * 8 * 3.0


def test_mattr_removes_registers_and_is_canonical() -> None:
    target = Target("llvm -mcpu=znver5 -num-cores=2 -mattr=-avx512f,+sha,-sha")
    assert target.mattr == "-avx512f,-sha"
    assert (target.vector_bits, target.vector_registers) == (256, 16)
    assert not any(feature.startswith("avx512") for feature in target.features)
    assert target.key != Target(ZEN5).key
    assert Target({"kind": "llvm", "mcpu": "znver5", "num_cores": 2, "mattr": ["-sha", "-avx512f"]}).key == target.key


def test_generic_means_the_architecture_of_the_triple() -> None:
    assert Target("llvm -mcpu=generic -num-cores=1").mcpu == "x86-64"
    arm = Target("llvm -mcpu=generic -num-cores=1 -mtriple=aarch64-unknown-linux-gnu")
    assert (arm.mcpu, arm.vector_bits) == ("generic", 128)


def test_processor_outside_the_table_needs_its_width() -> None:
    target = Target("llvm -mcpu=znver9 -mtriple=x86_64-unknown-linux-gnu -vector-bits=512 -num-cores=8")
    assert (target.mcpu, target.vector_lanes("float32")) == ("znver9", 16)
    assert Target(str(target)).key == target.key


def test_cuda_from_architecture_alone_has_every_limit() -> None:
    target = Target({"kind": "cuda", "arch": "sm_90"})
    assert (target.shared_memory_per_block, target.static_shared_memory_per_block) == (227 << 10, 48 << 10)
    assert (target.shared_memory_per_sm, target.shared_memory_reserved) == (228 << 10, 1 << 10)
    assert (target.max_threads_per_block, target.warp_size, target.warps_per_sm, target.max_blocks_per_sm) == (1024, 32, 64, 32)
    assert (target.registers_per_sm, target.registers_per_thread, target.num_cores) == (65536, 255, 132)
    assert target.is_gpu
    special = Target("cuda -arch=sm_90a")
    assert special.shared_memory_per_block == target.shared_memory_per_block
    assert special.key != target.key


def test_a_card_sets_size_and_rates() -> None:
    h100, h200 = Target("nvidia/h100"), Target("nvidia/h200")
    assert h200.arch == h100.arch == "sm_90"
    assert h200.dram_gbs > h100.dram_gbs
    assert h200.key != h100.key
    assert h200.peak_gflops == pytest.approx(66_900, rel=0.01)
    assert Target("nvidia/a100").peak_gflops == pytest.approx(19_500, rel=0.01)
    assert Target("nvidia/geforce-rtx-4090") == Target.from_tag("rtx-4090") == Target({"tag": "nvidia/rtx-4090"})
    assert Target("nvidia/h200 -num-cores=66").peak_gflops == pytest.approx(h200.peak_gflops / 2)


def test_tvm_spellings_are_understood() -> None:
    target = Target("cuda -arch=sm_80 -max-shared-memory-per-block=49152 -thread_warp_size=32")
    assert target.shared_memory_per_block == 49152
    assert str(target) == "cuda -arch=sm_80 -shared-memory-per-block=49152"


def test_every_row_of_the_tables_is_a_target() -> None:
    for name, row in CPUS.items():
        triple = "" if row.arch == "x86_64" else f" -mtriple={row.arch}-unknown-linux-gnu"
        assert Target(f"llvm -mcpu={name} -num-cores=1{triple}").features == row.features
    for tag in TAGS:
        assert Target(tag).kind == TAGS[tag]["kind"]
    for arch, limits in ARCHITECTURES.items():
        assert CARDS[limits.card].arch == arch


SPECS = [
    ZEN5,
    "llvm",
    "c -num-cores=1",
    "llvm -mcpu=apple-m1 -num-cores=8",
    "llvm -mcpu=znver5 -num-cores=2 -mattr=-avx512f",
    "llvm -mcpu=znver5 -num-cores=2 -l3-bytes=0 -peak-gflops=1.5",
    "cuda -arch=sm_80",
    "nvidia/l4 -num-cores=29",
    "opencl",
    "opencl -model=pocl -num-cores=2 -max-threads-per-block=4096",
]


@pytest.mark.parametrize("spec", SPECS)
def test_round_trips(spec: str) -> None:
    target = Target(spec)
    assert Target(str(target)).key == target.key
    assert Target(target.to_json()).key == target.key
    assert Target(json.dumps(target.to_json())).key == target.key
    assert Target.from_json(json.loads(json.dumps(target.to_json(facts=True)))) == target
    assert pickle.loads(pickle.dumps(target)) == target
    assert Target(target) == target
    assert hash(Target(target)) == hash(target)
    assert eval(repr(target), {"Target": Target}).key == target.key
    assert list(target.to_json(facts=True)) == sorted(target.to_json(facts=True))
    assert set(attributes_of(target.kind)) == {ATTRIBUTES[name] for name in ATTRIBUTES if hasattr(target, name)}


@given(
    st.sampled_from(sorted(name for name, row in CPUS.items() if row.arch == "x86_64")),
    st.integers(1, 512),
    st.sampled_from([64, 128, None]),
)
def test_identity_survives_text(name: str, cores: int, bits: int | None) -> None:
    target = Target({"kind": "llvm", "mcpu": name, "num_cores": cores, **({"vector_bits": bits} if bits else {})})
    assert Target(str(target)).key == target.key


def test_identity_excludes_measured_facts() -> None:
    plain = Target(ZEN5)
    measured = plain.with_attributes(peak_gflops=501.0, peak_gflops_core=252.0, dram_gbs=43.0, l3_bytes=16 << 20)
    assert measured != plain
    assert measured.key == plain.key
    assert plain.to_json() == {
        "kind": "llvm",
        "mcpu": "znver5",
        "mtriple": "x86_64-unknown-linux-gnu",
        "num_cores": 2,
        "vector_bits": 512,
    }
    assert plain.key != plain.with_attributes(num_cores=4).key
    assert plain.key != Target("c -mcpu=znver5 -num-cores=2").key
    # An explicit default is the same target as an omitted one.
    assert Target(ZEN5 + " -vector-bits=512 -mtriple=x86_64-unknown-linux-gnu").key == plain.key


def test_with_attributes_derives_again() -> None:
    measured = Target(ZEN5).with_attributes(peak_gflops_core=252.0, peak_gflops=501.0, l3_bytes=1 << 20)
    one = measured.with_attributes(num_cores=1)
    assert (one.peak_gflops, one.peak_gflops_core, one.l3_bytes) == (252.0, 252.0, 1 << 20)
    assert measured.with_attributes(num_cores=2).peak_gflops == 501.0
    other = measured.with_attributes(mcpu="haswell")
    assert other == Target("llvm -mcpu=haswell -num-cores=2")


def test_detect_is_stable_and_complete() -> None:
    first, second = Target.detect(), Target.detect()
    assert first == second
    assert first.key == Target("llvm -mcpu=native").key == Target("llvm").key
    assert "native" not in first.key
    assert Target.detect("c").kind == "c"
    assert Target("llvm -num-cores=1").num_cores == 1
    assert Target("llvm -num-cores=1").l1_bytes == first.l1_bytes
    assert Target.from_json(first.to_json()).key == first.key


@pytest.mark.parametrize("kind", KINDS)
def test_targets_are_immutable(kind: str) -> None:
    target = Target({"llvm": "llvm", "c": "c", "cuda": "nvidia/l4", "opencl": "opencl"}[kind])
    with pytest.raises(AttributeError, match="with_attributes"):
        target.num_cores = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del target.kind


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("llvn -mcpu=native", ["unknown target kind or tag 'llvn'", "llvm, c, cuda, opencl", "Did you mean 'llvm'?"]),
        ("", ["unknown target kind or tag ''"]),
        ({"kind": "rocn"}, ["unknown target kind 'rocn'", "llvm, c, cuda, opencl"]),
        ({"mcpu": "znver5"}, ["`kind` is missing"]),
        ({"tag": "nvidia/h300"}, ["unknown tag 'nvidia/h300'", "nvidia/l4", "Did you mean 'nvidia/h"]),
        ('{"kind": ', ["not valid JSON"]),
        ("[1]", ["unknown target kind"]),
        (5, ["expected text or a mapping, got int"]),
        ("llvm -num-core=2", ["unknown attribute 'num_core'", "vector_registers", "Did you mean 'num_cores'?"]),
        ("cuda -mcpu=znver5", ["'mcpu' belongs to llvm, c targets, not to cuda", "shared_memory_per_block"]),
        ("llvm -num-cores", ["expected attributes like -num-cores=2, got '-num-cores'"]),
        ("llvm num-cores=2", ["expected attributes like -num-cores=2, got 'num-cores=2'"]),
        ("llvm -num-cores=2 -num_cores=3", ["'num_cores' is given twice"]),
        ({"kind": "cuda", "warp_size": 32, "thread_warp_size": 64}, ["'warp_size' is given twice"]),
        ("llvm -num-cores=two", ["'num_cores'", "expected a whole number, got 'two'"]),
        ("llvm -num-cores=0", ["expected at least 1, got '0'"]),
        ({"kind": "llvm", "num_cores": True}, ["expected a whole number, got True"]),
        ({"kind": "llvm", "num_cores": 2.5}, ["expected a whole number, got 2.5"]),
        ({"kind": "llvm", "dram_gbs": float("nan")}, ["expected a number, got nan"]),
        ("llvm -dram-gbs=-1", ["expected a positive number, got '-1'"]),
        ({"kind": "llvm", "mcpu": 5}, ["'mcpu'", "expected text, got 5"]),
        ("llvm -mcpu=znver5;rm -num-cores=1", ["expected a processor name, got 'znver5;rm'"]),
        ("llvm -mattr=avx2", ["expected features like", "got 'avx2'"]),
        ("llvm -mtriple=linux", ["expected a triple like"]),
        ("llvm -mcpu=znver5", ["num_cores is missing", "-num-cores=N", "-mcpu=native"]),
        ("llvm -mcpu=zenver5 -num-cores=2", ["unknown mcpu 'zenver5'", "Did you mean 'znver5'?", "-vector-bits="]),
        ("llvm -mcpu=znver5 -num-cores=2 -mtriple=aarch64-unknown-linux-gnu", ["does not fit mcpu 'znver5'", "x86_64"]),
        ("llvm -mcpu=znver5 -num-cores=2 -mtriple=riscv64-unknown-linux-gnu", ["does not fit mcpu 'znver5'"]),
        ("llvm -mcpu=znver5 -num-cores=2 -mtriple=s390x-linux-gnu", ["not supported", "x86_64, aarch64, arm64, riscv64"]),
        ("llvm -mcpu=apple-m1 -num-cores=2 -mattr=+amx-bf16", ["mattr adds amx-bf16, a feature of x86_64", "'apple-m1' is aarch64"]),
        ("llvm -mcpu=apple-m1 -num-cores=2 -mattr=+sse4.1", ["mattr adds sse4.1, a feature of x86_64", "'apple-m1' is aarch64"]),
        ("llvm -mcpu=apple-m1 -num-cores=2 -mattr=+amx-fp16", ["mattr adds amx-fp16, a feature of x86_64"]),
        ("llvm -mcpu=znver5 -num-cores=2 -mattr=+neon,+dotprod", ["mattr adds dotprod, a feature of aarch64", "'znver5' is x86_64"]),
        ("llvm -mcpu=haswell -num-cores=2 -vector-bits=512", ["vector_bits 512 is not possible on haswell", "from 64 to 256"]),
        ("llvm -mcpu=haswell -num-cores=2 -vector-bits=192", ["a power of two"]),
        ("cuda -arch=sm_91", ["unknown arch 'sm_91'", "sm_90", "Did you mean"]),
        ("cuda -model=h300", ["unknown model 'h300'", "h200", "-num-cores=N"]),
        ("cuda -model=h200 -arch=sm_80", ["model 'h200' is sm_90, not sm_80"]),
    ],
)
def test_refusals(spec: str, parts: list[str]) -> None:
    with pytest.raises(TargetError) as refused:
        Target(spec)
    for part in parts:
        assert part in str(refused.value)


def test_unknown_tag_is_refused() -> None:
    with pytest.raises(TargetError, match=r"unknown tag 'nvidia/b52'\. Known tags: nvidia/v100"):
        Target.from_tag("nvidia/b52")


def test_unknown_kind_is_not_detected() -> None:
    with pytest.raises(TargetError, match="unknown target kind 'metal'"):
        Target.detect("metal")


def test_with_attributes_refuses_like_the_constructor() -> None:
    with pytest.raises(TargetError, match="unknown attribute 'l4_bytes'.*Did you mean"):
        Target(ZEN5).with_attributes(l4_bytes=1)


def test_attribute_of_another_kind_is_refused() -> None:
    with pytest.raises(TargetError, match="target 'llvm' has no shared_memory_per_block: it is an attribute of cuda, opencl targets"):
        _ = Target(ZEN5).shared_memory_per_block
    assert not hasattr(Target(ZEN5), "warp_size")
    with pytest.raises(AttributeError, match="no attribute 'l1byte'"):
        _ = Target(ZEN5).l1byte


def _gpus(*gpus: NvidiaGpu) -> Callable[[], list[NvidiaGpu]]:
    return lambda: list(gpus)


def test_bare_cuda_is_the_gpu_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_defaults, "nvidia_gpus", _gpus(NvidiaGpu("NVIDIA H200", "9.0", 141 << 30, "580.1")))
    assert Target("cuda") == Target("nvidia/h200") == Target.detect("cuda")
    monkeypatch.setattr(target_defaults, "nvidia_gpus", _gpus(NvidiaGpu("NVIDIA H100 PCIe", "9.0", 80 << 30, "580.1")))
    with pytest.raises(TargetError, match=r"'NVIDIA H100 PCIe' is not in the table of cards\. Use -arch=sm_90 -num-cores=N"):
        Target("cuda")
    assert Target("cuda -num-cores=114").num_cores == 114
    monkeypatch.setattr(target_defaults, "nvidia_gpus", _gpus())
    with pytest.raises(TargetError, match=r"no GPU was named and none was found here.*-arch=sm_90.*, or a tag \((nvidia/[\w-]+(, )?)+\)\."):
        Target("cuda")


def test_native_of_another_architecture_is_refused() -> None:
    here = Target.detect().mtriple.split("-")[0]
    other = "aarch64" if here == "x86_64" else "x86_64"
    with pytest.raises(TargetError, match="is not this machine's.*add -mcpu=NAME"):
        Target(f"llvm -mtriple={other}-unknown-linux-gnu")


def test_numbers_of_numpy() -> None:
    given = Target({"kind": "llvm", "mcpu": "znver5", "num-cores": np.int64(2), "clock_ghz": np.float32(4)})
    assert given == Target("llvm -mcpu=znver5 -num-cores=2 -clock_ghz=4") and type(given.num_cores) is int


def test_detection_prefers_features_over_model_numbers() -> None:
    spr = CPUS["sapphirerapids"].features
    match = best_match
    assert match("x86_64", "GenuineIntel", spr, 6, 0x8F) == "sapphirerapids"
    assert match("x86_64", "GenuineIntel", spr, 6, 0xAD) == "graniterapids"
    # A hypervisor may report another model with all instructions, or hide instructions, which changes the name.
    assert match("x86_64", "GenuineIntel", spr, 6, 0xA7) == "sapphirerapids"
    assert match("x86_64", "GenuineIntel", spr - {"gfni"}, 6, 0x8F) == "cooperlake"
    assert match("x86_64", "GenuineIntel", CPUS["haswell"].features, 6, 0x4F) == "broadwell"
    assert match("x86_64", "AuthenticAMD", CPUS["znver5"].features, 0x1A, 2) == "znver5"
    assert match("x86_64", "AuthenticAMD", CPUS["znver2"].features, 0x17, 0x31) == "znver2"
    assert match("x86_64", "HygonGenuine", CPUS["znver1"].features, 0x18, 1) == "x86-64-v3"
    assert match("x86_64", "", frozenset(), -1, -1) == "x86-64"
    assert match("aarch64", "arm", CPUS["neoverse-v2"].features, 0x41, 0xD4F) == "neoverse-v2"
    assert match("aarch64", "arm", frozenset({"neon"}), 0x41, 0x1) == "generic"
    assert [llvm_feature(flag) for flag in ("avx512_vnni", "amx_tile", "sse4_2", "avx512f", "abm")] == [
        "avx512vnni",
        "amx-tile",
        "sse4.2",
        "avx512f",
        "lzcnt",
    ]


def test_rates_of_instructions() -> None:
    t = Target("llvm -mcpu=znver5 -num-cores=2 -tensor-rates=vpdpbusd=1071.50,vdpbf16ps=536")
    assert t.tensor_rates == "vdpbf16ps=536,vpdpbusd=1071.5"
    assert t.tensor_rate("vpdpbusd") == 1071.5 and t.tensor_rate("tdpbf16ps") is None
    assert t.key == Target("llvm -mcpu=znver5 -num-cores=2").key, "rates are no part of the identity"
    for text in ("vpdpbusd", "vpdpbusd=fast", "vpdpbusd=0", "vpdpbusd=-1", "vpdpbusd=inf", "1=2", "a=1,a=2"):
        with pytest.raises(TargetError, match="expected rates like 'vdpbf16ps=536,vpdpbusd=1071.5'"):
            Target("llvm -mcpu=znver5 -num-cores=2").with_attributes(tensor_rates=text)


@pytest.mark.parametrize(
    ("flags", "present", "absent"),
    [
        ("-mcpu=znver5 -mattr=-f16c", "avx2 avxvnni fma", "f16c avx512f avx512vnni avx512bf16"),  # AVX-512 implies F16C
        ("-mcpu=znver5 -mattr=-avx2", "avx fma f16c", "avx2 avxvnni vaes avx512f avx512vnni"),
        ("-mcpu=znver5 -mattr=-avx512bw", "avx512f avx512vnni avx512vl", "avx512bf16 avx512vbmi avx512bitalg"),
        ("-mcpu=alderlake -mattr=+avx512bf16", "avx512bf16 avx512bw avx512f avxvnni", "avx512vl avx512vnni"),
        ("-mcpu=alderlake -mattr=+avx512vnni,-avx2", "avx", "avx512vnni avx512f avxvnni"),
        ("-mcpu=x86-64-v2 -mattr=+avxvnni", "avxvnni avx2 avx", "fma f16c"),
        ("-mcpu=x86-64-v4 -mattr=+amx-fp16", "amx-fp16 amx-tile", "amx-int8"),
        ("-mcpu=sapphirerapids -mattr=+amx-fp16,-amx-tile", "avx512f", "amx-fp16 amx-tile amx-bf16"),
        ("-mcpu=generic -mtriple=aarch64-unknown-linux-gnu -mattr=+sve2", "sve2 sve fullfp16 neon", "dotprod"),
        ("-mcpu=neoverse-v2 -mattr=-fullfp16", "neon dotprod bf16 i8mm", "fullfp16 sve sve2"),
        ("-mcpu=neoverse-v2 -mattr=-neon", "fullfp16", "neon dotprod bf16 i8mm sve sve2"),
    ],
)
def test_mattr_adds_implied_features_and_removes_those_that_imply_one(flags: str, present: str, absent: str) -> None:
    features = Target(f"llvm -num-cores=1 {flags}").features
    assert set(present.split()) <= features and not features & set(absent.split())
