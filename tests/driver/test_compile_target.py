"""Compiling for the current target, for its libraries, for its host, and for a machine that is not this one."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tunesmith
from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.llvm import link
from tunesmith.driver.compile import as_target
from tunesmith.driver.compiled_device import CompiledDeviceModule
from tunesmith.ir import structural
from tunesmith.ir.script.printer import script
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.record import WorkloadLine
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.device.program import DeviceFunction, DeviceProgram, Launch
from tunesmith.runtime.elf_symbols import read_symbols
from tunesmith.support.errors import BuildError, UserError
from tunesmith.testing.small_models import tiny_classifier

COMPILE = importlib.import_module("tunesmith.driver.compile")
PI = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -num-cores=4")
SPEC = ParamSpec("A", "float32", (8,), written=True)
PROGRAM = DeviceProgram("cuda", "sm_90", b"cubin", (DeviceFunction("f", (SPEC,), (), (Launch("f", (0,), (1, 1, 1), (8, 1, 1)),)),))


def test_the_current_target_is_the_default(hand: ModuleType) -> None:
    with PI:
        assert as_target(None) is PI
        made: Any = tunesmith.compile("relu(shape=64)")
        built: Any = tunesmith.build(hand.matmul())
        assert as_target("llvm").mcpu == Target("llvm").mcpu, "an explicit target has priority"
    for module in (made, built):
        assert module.artifact.target == PI.to_json() and read_symbols(module.artifact.data).machine == "aarch64"
    assert as_target(None) == Target.detect()


def test_models_are_offloaded_to_the_libraries_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COMPILE, "compile_model", lambda *_, offload, **__: offload)
    target = Target("llvm -libs=blas")
    assert tunesmith.compile(tiny_classifier(), target) == ("blas",)
    assert tunesmith.compile(tiny_classifier(), target, offload=()) == ()
    assert tunesmith.compile(tiny_classifier(), "llvm") == ()
    with pytest.raises(UserError, match="the target has libs=fast, for which there is no external code generator. There are: blas"):
        tunesmith.compile(tiny_classifier(), "llvm -libs=blas,fast")
    with pytest.raises(UserError, match="the target has libs=fast"):
        tunesmith.compile("relu(shape=8)", "llvm -libs=fast")


def test_records_of_another_machine_are_used(hand: ModuleType) -> None:
    func = hand.matmul()
    line = WorkloadLine(structural.digest(func), hand.MATMUL, script(func))
    database = Database([hand.record_of(func, target=PI)], [line])
    made: Any = tunesmith.compile(func, PI, records=database, strict=True)
    assert [c.status for c in made.coverage] == ["used"] and read_symbols(made.artifact.data).machine == "aarch64"
    with pytest.raises(UserError):
        tunesmith.compile(func, PI.with_attributes(num_cores=2), records=database, strict=True)


def test_another_machine_is_not_tuned_for() -> None:
    why = "it is aarch64, this machine is .* Candidates are measured where they run: tune on that machine, or with Ray workers"
    for target in (PI, str(PI)):
        with pytest.raises(BuildError, match=why):
            tunesmith.tune("relu(shape=64)", target, log=None, budget=1, progress=False)
    with pytest.raises(BuildError, match=why), PI:
        tunesmith.tune("relu(shape=64)", log=None, budget=1, progress=False)


def test_libraries_of_devices_are_for_the_host(tmp_path: Path) -> None:
    target = Target("cuda -arch=sm_90", host="llvm -mcpu=neoverse-v2 -num-cores=72")
    if not link.linkers("aarch64"):
        pytest.skip("there is no linker for aarch64")
    artifact = Artifact(PROGRAM.to_bytes(), ("f",), {**target.to_json(), "host": target.host.to_json()})
    symbols = read_symbols(CompiledDeviceModule(artifact).export_library(tmp_path / "f.so").read_bytes())
    assert symbols.machine == "aarch64" and "__tvm_ffi_f" in symbols.defined
    here = CompiledDeviceModule(Artifact(PROGRAM.to_bytes(), ("f",), Target("cuda -arch=sm_90").to_json()))
    assert read_symbols(here.export_library(tmp_path / "g.so").read_bytes()).machine != "aarch64"


def test_artifacts_of_devices_have_the_host() -> None:
    """OpenCL needs no compiler."""
    target = Target("opencl", host="llvm -mcpu=neoverse-v2 -num-cores=72")
    made: Any = tunesmith.compile("relu(shape=64)", target)
    assert Target.from_json(made.artifact.target).host == target.host
    assert "host" not in tunesmith.compile("relu(shape=64)", Target("opencl")).artifact.target  # type: ignore[attr-defined]
