"""LLVM options of targets, and rejection of code that cannot run on this machine."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from tunesmith.codegen.llvm.build import assembly
from tunesmith.codegen.llvm.host import LlvmOptions, check_runs_here, host_cpu_name, host_features, llvm_options, missing_features
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.cpus import CPUS
from tunesmith.ir.target.detect import detect_host
from tunesmith.ir.target.target import Target
from tunesmith.support.errors import BuildError


def test_options_depend_only_on_the_target() -> None:
    target = Target("llvm -mcpu=znver5 -num-cores=2 -mattr=-avx512f")
    assert llvm_options(target) == LlvmOptions("x86_64-unknown-linux-gnu", "znver5", "-avx512f")


def test_features_are_removed_after_others_are_added() -> None:
    """In the order of their names, +avx512vnni would bring back AVX2 and all of AVX-512."""
    target = Target("llvm -mcpu=x86-64-v3 -num-cores=2 -mattr=+avx512vnni,-avx2")
    assert target.mattr == "-avx2,+avx512vnni"
    assert llvm_options(target).features == "+avx512vnni,-avx2"
    made = parse("""
@T.prim_func
def f(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
    for i in T.vectorized(64):
        with T.block("C"):
            vi = T.axis.spatial(64, i)
            C[vi] = A[vi] + A[vi]
""")
    assert isinstance(made, PrimFunc)
    text = assembly(made, target)
    assert "ymm" in text and "zmm" not in text


def test_this_machine_runs_its_own_target() -> None:
    check_runs_here(Target.detect())
    assert missing_features(Target.detect()) == []
    assert host_cpu_name()


def test_llvm_and_the_system_agree_on_features() -> None:
    named = frozenset().union(*(row.features for row in CPUS.values() if row.arch == detect_host().arch))
    assert detect_host().features & named == host_features() & named


@pytest.mark.skipif(detect_host().arch != "x86_64", reason="names of x86 CPUs")
def test_llvm_supports_every_name_and_feature(capfd: pytest.CaptureFixture[str]) -> None:
    llvm.initialize_native_target()
    triple = llvm.Target.from_default_triple()
    for name, row in CPUS.items():
        if row.arch == "x86_64":
            triple.create_target_machine(cpu=name, features=",".join(f"+{feature}" for feature in sorted(row.features)))
    assert "not a recognized" not in capfd.readouterr().err
    triple.create_target_machine(cpu="znver99")
    assert "not a recognized" in capfd.readouterr().err


def test_another_architecture_is_refused() -> None:
    other = "apple-m1" if detect_host().arch == "x86_64" else "haswell"
    with pytest.raises(BuildError, match=r"cannot run here: it is .*, this machine is .*Run it on its machine"):
        check_runs_here(Target(f"llvm -mcpu={other} -num-cores=1"))


def test_missing_instructions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith.codegen.llvm.host.host_features", lambda: frozenset({"sse2"}))
    name = "haswell" if detect_host().arch == "x86_64" else "neoverse-n1"
    lacking = "avx2" if detect_host().arch == "x86_64" else "dotprod"
    with pytest.raises(BuildError, match=rf"lacks .*{lacking}.*Target\.detect"):
        check_runs_here(Target(f"llvm -mcpu={name} -num-cores=1 -mtriple={Target.detect().mtriple}"))


def test_without_neon_there_is_no_sve() -> None:
    """LLVM keeps SVE then, and aborts on vectors of constant length."""
    target = Target("llvm -mcpu=neoverse-v1 -num-cores=1 -mattr=-neon")
    assert llvm_options(target).features == "-neon,-sve"
