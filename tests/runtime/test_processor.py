"""Test the refusal of code for other processors: in memory, in libraries, several objects, machines without cpuinfo."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tunesmith
from tunesmith.codegen.llvm.build import build, emit_text
from tunesmith.codegen.llvm.export import export_library
from tunesmith.codegen.llvm.link import linkers
from tunesmith.driver.compiled_cpu import CompiledCpuModule
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.cpus import CPUS, cpuinfo_flag, llvm_feature
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.runtime import processor
from tunesmith.runtime.elf_symbols import read_symbols
from tunesmith.runtime.module import Module
from tunesmith.runtime.processor import NEEDS, check_processor, needs_symbol
from tunesmith.support.errors import OtherMachineError, RunError

ADD = workload("add(shape=64)")
V4 = Target("llvm -mcpu=x86-64-v4 -num-cores=1")
BASELINE = Target("llvm -mcpu=x86-64 -num-cores=1")


def without(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    here = processor._flags()
    monkeypatch.setattr(processor, "_flags", lambda: here - set(flags))


def needed(data: bytes) -> set[str]:
    return {f for s in read_symbols(data, "object").defined if s.startswith(NEEDS) for f in s.removeprefix(NEEDS).split(".")}


def test_objects_name_the_instruction_sets_of_their_target() -> None:
    assert {"avx512f", "avx512bw", "avx2", "fma", "sse4_2", "bmi1"} <= needed(build(ADD.func, V4).data)
    assert not needed(build(ADD.func, BASELINE).data), "every x86-64 processor runs it"
    zen5 = Target("llvm -mcpu=znver5 -num-cores=1")
    assert {"avx512_vnni", "avx512_bf16", "avx_vnni"} <= needed(build(ADD.func, zen5).data)
    assert needed(build(ADD.func, Target("llvm -mcpu=neoverse-n1 -num-cores=1")).data) == {"asimdhp", "asimddp"}
    assert NEEDS not in emit_text(ADD.func, Target("llvm -mcpu=cortex-a72 -num-cores=1"))[0]


def test_the_spelling_of_cpuinfo_is_the_inverse_of_that_of_llvm() -> None:
    for row in CPUS.values():
        for feature in row.features:
            assert llvm_feature(cpuinfo_flag(feature)) == feature


def test_code_for_another_processor_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Target.detect()
    if "avx2" not in here.features:
        pytest.skip("the machine has no instruction set to hide")
    data = build(ADD.func, here).data
    library = export_library(tmp_path / "add.so", [data, build(workload("relu(shape=8)").func, BASELINE).data])
    without(monkeypatch, "avx2", "fma")
    with pytest.raises(RunError, match="the object was compiled for a processor with avx2, fma, which this machine lacks"):
        Module.from_object(data)
    with pytest.raises(RunError, match=r"add\.so was compiled for a processor with avx2, fma, which this machine lacks\. Compile it for"):
        tunesmith.load_module(library)
    monkeypatch.undo()
    x = np.ones(64, np.float32)
    y = np.zeros(64, np.float32)
    tunesmith.load_module(library)["add"](x, x, y)
    assert (y == 2).all()


def test_machines_without_cpuinfo_check_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_flags", frozenset)
    check_processor([needs_symbol(["avx9000"])], "code")
    monkeypatch.setattr(processor, "_flags", lambda: frozenset({"sse2"}))
    check_processor(["main", needs_symbol([])], "code")
    with pytest.raises(RunError, match="code was compiled for a processor with avx9000"):
        check_processor(["main", needs_symbol(["sse2"]), needs_symbol(["avx9000", "sse2"])], "code")


def test_code_with_tile_registers_needs_the_permission_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_flags", lambda: frozenset({"amx_tile", "amx_bf16"}))
    monkeypatch.setattr(processor, "request_tile_permission", lambda: False)
    with pytest.raises(RunError, match=r"code uses the tile registers of AMX, and the kernel refuses .*-mattr=-amx-tile"):
        check_processor([needs_symbol(["amx_tile", "amx_bf16"])], "code")
    check_processor([needs_symbol(["amx_bf16"])], "code")
    monkeypatch.setattr(processor, "EMULATED", {"amx_tile"})
    check_processor([needs_symbol(["amx_tile"])], "code")
    monkeypatch.setattr(processor, "EMULATED", set())
    monkeypatch.setattr(processor, "request_tile_permission", lambda: True)
    check_processor([needs_symbol(["amx_tile"])], "code")


@pytest.mark.parametrize("executor", ["graph", "vm", "aot"])
def test_models_of_every_executor_are_refused(executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are one object with its own entry point."""
    b = GraphBuilder("main")
    mod = IRModule({"main": b.finish(b.relu(b.input("x", (4, 64))))})
    library = tunesmith.compile(mod, executor=executor).export_library(tmp_path / "model.so")
    x = np.full((4, 64), 2, np.float32)
    np.testing.assert_array_equal(tunesmith.load_module(library)(x), x)
    monkeypatch.setattr(processor, "_flags", lambda: frozenset({"sse2"}))
    with pytest.raises(RunError, match=r"model.so was compiled for a processor with .*, which this machine lacks"):
        tunesmith.load_module(library)
    with pytest.raises(RunError, match="the object was compiled for a processor with"):
        tunesmith.compile(mod, executor=executor)(x)


@pytest.mark.parametrize("target", ["llvm -mcpu=neoverse-n1 -num-cores=1", "llvm -mcpu=x86-64-v3 -mattr=+avx512f,+amx-int8 -num-cores=1"])
def test_functions_of_another_machine_can_be_compiled_but_not_called(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they can be exported."""
    monkeypatch.setattr(processor, "_flags", lambda: frozenset({"sse2"}))
    made = tunesmith.compile(ADD.func, target=target)
    assert made.functions == ("add",) and made.artifact.data
    x = np.ones(64, np.float32)
    for call in (made, made["add"], made.bind, made["add"].bind, made.time):
        with pytest.raises(OtherMachineError, match="machine"):
            call(x, x, x)


def test_code_that_is_no_object_is_refused_at_once() -> None:
    """Only code of another machine is kept for its export."""
    artifact = tunesmith.compile(ADD.func, target="llvm -num-cores=1").artifact
    linked = artifact.data[:16] + (3).to_bytes(2, "little") + artifact.data[18:]
    for data, why in ((linked, "not an object but a linked file"), (b"", "not a 64-bit little-endian ELF file")):
        with pytest.raises(RunError, match=why):
            CompiledCpuModule.from_artifact(replace(artifact, data=data))


@pytest.mark.skipif(not linkers("aarch64"), reason="no linker for aarch64 is installed")
def test_a_library_for_another_machine_names_it(tmp_path: Path) -> None:
    library = export_library(tmp_path / "add.so", [build(ADD.func, Target("llvm -mcpu=cortex-a76 -num-cores=1")).data])
    with pytest.raises(OtherMachineError, match="add.so is a library for aarch64, and this machine is x86_64. Load it there"):
        tunesmith.load_module(library)
