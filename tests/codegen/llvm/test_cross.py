"""Code for other machines: objects, linking, refusals to run, and results under an emulator where there is one."""

from __future__ import annotations

import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

import tunesmith
from tunesmith.codegen.llvm import link
from tunesmith.codegen.llvm.build import assembly, build
from tunesmith.codegen.llvm.export import export_library
from tunesmith.driver.compile_model import CompiledModel, compile_model
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.architectures import architecture
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.ops.workload import workload
from tunesmith.runtime.c_abi import with_extensions
from tunesmith.runtime.elf_symbols import read_symbols
from tunesmith.runtime.processor import NEEDS
from tunesmith.search.analytic_schedule import analytic_choice
from tunesmith.support.errors import BuildError, OtherMachineError, RunError
from tunesmith.testing.emulated_machine import EmulatedMachine, missing
from tunesmith.testing.program_fuzz.emulated import check_emulated
from tunesmith.testing.small_models import tiny_classifier, transformer_layer

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "targets.md"
TINY_MAIN = Path(__file__).with_name("aot_main.c")

TARGETS = {
    "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -num-cores=4": r"fmla\s+v\d+\.4s",
    "llvm -mcpu=neoverse-n1 -num-cores=4": r"fmla\s+v\d+\.4s",
    "llvm -mcpu=neoverse-v1 -num-cores=4": r"fmla\s+v\d+\.4s",
    "llvm -mcpu=apple-m1 -mtriple=aarch64-linux-gnu -num-cores=4": r"fmla\s+v\d+\.4s|fmla\.4s",
    "llvm -mcpu=generic-rv64 -num-cores=4": r"fmadd\.s",
    "llvm -mcpu=spacemit-x60 -num-cores=4": r"vfmacc|vfmadd",
}
"""Instructions of a matrix product by target."""
RUNS = {
    "aarch64": "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -num-cores=3",
    "riscv64": "llvm -mtriple=riscv64-linux-gnu -mcpu=generic-rv64 -mattr=+zfhmin -num-cores=3",
}
"""Targets that QEMU executes."""
ARM = Target(RUNS["aarch64"])
CHECKED = {"tunesmith_check_v1", "tunesmith_refuse_v1", "tunesmith_threads_v1"}
OPENMP = {"GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"}


def scheduled(text: str, target: Target) -> PrimFunc:
    found = analytic_choice(workload(text).func, target)
    return found if isinstance(found, PrimFunc) else found.func


@pytest.fixture(params=RUNS)
def emulated(request: pytest.FixtureRequest, tmp_path: Path) -> EmulatedMachine:
    """An emulated machine that code can be linked for."""
    reason = missing(request.param)
    if reason is not None:
        pytest.skip(reason)
    if not link.linkers(request.param):
        pytest.skip(f"there is no linker for {request.param}")
    (tmp_path / "calls").mkdir()
    return EmulatedMachine(request.param, tmp_path / "calls")


# ---- without an emulator ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TARGETS)
def test_objects_are_of_the_machine_and_use_its_vectors(text: str) -> None:
    target = Target(text)
    func = scheduled("matmul(m=64,n=64,k=64)", target)
    symbols = read_symbols(build(func, target).data)
    assert symbols.machine == architecture(target.mtriple) and symbols.movable
    assert set(symbols.needed) <= CHECKED | OPENMP
    assert re.search(TARGETS[text], assembly(func, target))


def test_needed_instruction_sets_are_listed() -> None:
    needs = {
        "cortex-a72": [],
        "cortex-a76": ["asimddp.asimdhp"],
        "neoverse-v1": ["asimddp.asimdhp.bf16.i8mm.sve"],
        "generic-rv64": [],
    }
    for mcpu, expected in needs.items():
        target = Target(f"llvm -mcpu={mcpu} -num-cores=1")
        defined = read_symbols(build(scheduled("relu(shape=64)", target), target).data).defined
        assert [s.removeprefix(NEEDS) for s in defined if s.startswith(NEEDS)] == expected


def test_float16_needs_instructions_on_riscv() -> None:
    with pytest.raises(BuildError, match=r"float16 needs instructions that generic-rv64 lacks: .* add -mattr=\+zfhmin"):
        tunesmith.compile("relu(shape=64,dtype=float16)", "llvm -mcpu=generic-rv64 -num-cores=1")
    made = tunesmith.compile("relu(shape=64,dtype=float16)", "llvm -mcpu=generic-rv64 -mattr=+zfhmin -num-cores=1")
    assert set(read_symbols(made.artifact.data).needed) <= CHECKED  # type: ignore[attr-defined]


def test_arguments_are_extended_on_riscv() -> None:
    text = "declare i32 @f(i32, ptr, i32)\ndefine internal i32 @g(i32 %x, <4 x i32> %y) {\ndeclare i32 @llvm.abs.i32(i32, i1)\n"
    assert with_extensions(text, "aarch64-linux-gnu") == text
    assert with_extensions(text, "riscv64-linux-gnu") == (
        "declare signext i32 @f(i32 signext, ptr, i32 signext)\n"
        "define internal signext i32 @g(i32 signext %x, <4 x i32> %y) {\n"
        "declare i32 @llvm.abs.i32(i32, i1)\n"
    )


@pytest.mark.parametrize("executor", ["graph", "vm", "aot"])
def test_models_for_another_machine_are_compiled_and_refuse_to_run(executor: str, tmp_path: Path) -> None:
    model = compile_model(tiny_classifier(), ARM, executor=executor, untuned=default_schedule)
    assert [s.name for s in model.inputs] == ["x"] and [s.name for s in model.outputs] == ["scores", "class"]
    x = np.zeros((1, 3, 16, 16), "float32")
    for call in (lambda: model(x), lambda: model.time(x), lambda: model.profile(x)):
        with pytest.raises(OtherMachineError, match="it is an object for aarch64, and this is"):
            call()
    if link.linkers("aarch64"):
        symbols = read_symbols(model.export_library(tmp_path / "model.so").read_bytes())
        assert symbols.machine == "aarch64" and "libgomp.so.1" in symbols.libraries
        with pytest.raises(RunError):
            tunesmith.load_module(tmp_path / "model.so")


def test_functions_for_macos_are_compiled_and_cannot_be_linked(tmp_path: Path) -> None:
    mac = tunesmith.compile("relu(shape=64)", "llvm -mcpu=apple-m1 -num-cores=4")
    assert mac.artifact.data[:4] == b"\xcf\xfa\xed\xfe"  # type: ignore[attr-defined]
    with pytest.raises(OtherMachineError, match="is a Mach-O file, for macOS. Compile for Linux"):
        mac(np.zeros(64, "float32"), np.zeros(64, "float32"))
    with pytest.raises(BuildError, match="object 0 is a Mach-O file"):
        mac.export_library(tmp_path / "relu.so")


def test_objects_of_several_machines_are_refused(tmp_path: Path) -> None:
    made = [build(scheduled("relu(shape=64)", t), t).data for t in (ARM, Target(RUNS["riscv64"]))]
    with pytest.raises(BuildError, match="its objects are for several machines, aarch64, riscv64"):
        export_library(tmp_path / "both.so", made)


def test_a_missing_cross_linker_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(link.importlib.util, "find_spec", lambda name: None)
    model = compile_model(tiny_classifier(), ARM, executor="aot", untuned=default_schedule)
    install = r"whose code is for aarch64: neither `aarch64-linux-gnu-ld` nor `ld.lld` .*apt install binutils-aarch64-linux-gnu"
    for export in (model.export_library, model.export_object):
        with pytest.raises(BuildError, match=install):
            export(tmp_path / "model")


def test_what_is_missing_for_emulation_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing("s390x") == "s390x is not emulated; there are aarch64, riscv64"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert missing("aarch64") == (
        "qemu-aarch64 and aarch64-linux-gnu-gcc not found: apt install qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
    )
    with pytest.raises(BuildError, match="qemu-riscv64"):
        EmulatedMachine("riscv64", tmp_path)


# ---- under an emulator ------------------------------------------------------------------------------------------------------


def test_functions_of_a_library(emulated: EmulatedMachine, tmp_path: Path) -> None:
    """A parallel product, exponentials, a reduction, integers; and the argument checks."""
    target = Target(RUNS[emulated.name])
    rng = np.random.default_rng(0)
    texts = {
        "matmul(m=70,n=50,k=40)": 1e-5,
        "softmax(m=12,n=77)": 1e-6,
        "gelu(shape=333)": 1e-6,
        "matmul(m=24,n=40,k=33,dtype=float64)": 1e-12,
    }
    for number, (text, tolerance) in enumerate(texts.items()):
        w = workload(text)
        inputs = w.random_inputs()
        library = tunesmith.compile(text, target).export_library(tmp_path / f"f{number}.so")
        outputs = [np.zeros(a.shape, a.dtype) for a in w.reference(inputs)]
        found = emulated.call(library, w.func.name, [*inputs, *outputs])[len(inputs) :]
        for got, expected in zip(found, w.reference(inputs), strict=True):
            np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    x = rng.standard_normal(5).astype("float32")
    with pytest.raises(RunError, match=r"argument 0 \(X\): expected float32\[12, 77\], got shape \[5\]"):
        emulated.call(tmp_path / "f1.so", "softmax", [x, x])


def test_a_c_program_runs_a_convolutional_model(emulated: EmulatedMachine, tmp_path: Path) -> None:
    """Also in two threads at once, with parameters inside the library; and the same model linked statically, serial."""
    x = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype("float32")
    scores, best = compile_model(tiny_classifier(), Target.detect(), executor="graph", untuned=default_schedule)(x)
    (tmp_path / "input").write_bytes(x.tobytes())
    for cores in (3, 1):
        target = Target(RUNS[emulated.name]).with_attributes(num_cores=cores)
        model = compile_model(tiny_classifier(), target, executor="aot", untuned=default_schedule, name="tiny")
        if cores > 1:
            model.export_library(tmp_path / "libtiny.so", header=tmp_path / "tiny.h")
            words = ["libtiny.so", "-Wl,-rpath,$ORIGIN"]
        else:
            model.export_object(tmp_path / "tiny.o", tmp_path / "tiny.h")
            words = ["tiny.o", "-static", "-lm"]
        program = emulated.compile_c(tmp_path / "main", TINY_MAIN, "-I.", "-pthread", *words)
        done = emulated.run(program, "input", "output")
        assert done.returncode == 0, done.stderr
        data = (tmp_path / "output").read_bytes()
        np.testing.assert_allclose(np.frombuffer(data, "float32", 10), scores.ravel(), rtol=1e-5, atol=1e-7)
        assert struct.unpack_from("<q", data, 40) == (best.item(),)


LAYER_MAIN = r"""
#include <stdio.h>
#include "layer.h"
int main(void)
{
    static float x[9 * 32], y[9 * 32];
    struct layer_inputs inputs = {x};
    FILE *file = fopen("input", "rb");
    if (fread(x, sizeof x, 1, file) != 1) {
        return 1;
    }
    void *outputs[] = {y};
    int status = layer_run(&inputs, (const void *)outputs, NULL);
    fwrite(y, sizeof y, 1, fopen("output", "wb"));
    return status;
}
"""


def test_a_c_program_runs_a_transformer_layer(emulated: EmulatedMachine, tmp_path: Path) -> None:
    x = np.random.default_rng(2).standard_normal((9, 32)).astype("float32")
    here: CompiledModel = compile_model(transformer_layer(), Target.detect(), executor="graph")
    there = compile_model(transformer_layer(), Target(RUNS[emulated.name]), executor="aot", name="layer")
    there.export_library(tmp_path / "liblayer.so", "inside", tmp_path / "layer.h")
    (tmp_path / "input").write_bytes(x.tobytes())
    (tmp_path / "main.c").write_text(LAYER_MAIN)
    program = emulated.compile_c(tmp_path / "main", tmp_path / "main.c", "-I.", "liblayer.so", "-Wl,-rpath,$ORIGIN")
    done = emulated.run(program)
    assert done.returncode == 0, done.stderr
    found = np.frombuffer((tmp_path / "output").read_bytes(), "float32").reshape(9, 32)
    np.testing.assert_allclose(found, here(x), rtol=1e-5, atol=1e-5)


def test_results_are_equal_where_the_sums_are_in_one_order(emulated: EmulatedMachine, tmp_path: Path) -> None:
    """Fused multiply-adds round alike on all machines: the bits are those of this machine if the schedule is the same."""
    w = workload("matmul(m=16,n=16,k=24)")
    here = Target(f"llvm -mcpu={Target.detect().mcpu} -vector-bits=128 -num-cores=1")
    if not here.has_feature("fma"):
        pytest.skip("this machine has no fused multiply-adds")
    a, b = w.random_inputs()
    results = []
    for target in (here, Target(RUNS[emulated.name]).with_attributes(num_cores=1)):
        module = tunesmith.build(default_schedule(w.func, Target("llvm -mcpu=x86-64-v2 -num-cores=1")), target)
        c = np.zeros((16, 16), "float32")
        if target is here:
            module(a, b, c)
        else:
            c = emulated.call(module.export_library(tmp_path / "f.so"), w.func.name, [a, b, c])[2]
        results.append(c)
    assert np.array_equal(*results)


def test_random_programs(emulated: EmulatedMachine, tmp_path: Path) -> None:
    """A sample of experiments/program_fuzz/emulated.py."""
    target = Target(RUNS[emulated.name])
    found = [check_emulated(seed, 3, emulated, target, tmp_path) for seed in range(6)]
    assert [f"{o.seed}: {f.finding}" for o in found for f in o.failures] == []
    assert sum(o.sequences for o in found) > 6


def test_the_program_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/targets.md, on its model."""
    reason = missing("aarch64")
    if reason is not None or not link.linkers("aarch64"):
        pytest.skip(reason or "there is no linker for aarch64")
    text = GUIDE.read_text(encoding="utf-8")
    start, end = text.index("## Compiling for another machine"), text.index("## A kind of your own")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text[start:end], re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec("import tunesmith\nfrom tunesmith import Target\n" + "\n".join(source for kind, source in blocks if kind == "python"), {})
    (tmp_path / "main.c").write_text(next(source for kind, source in blocks if kind == "c"))
    machine = EmulatedMachine("aarch64", tmp_path)
    done = machine.run(machine.compile_c(tmp_path / "main", tmp_path / "main.c", "libnet.so", "-Wl,-rpath,$ORIGIN"))
    assert (done.returncode, done.stdout) == (0, "0 0.100000\n"), done.stderr
