"""Models as C files: a C program compiled with GCC, Clang or zig runs them, and they need nothing but libc, libm and OpenMP."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tunesmith.codegen.c import compiler as compiler_module
from tunesmith.codegen.c.compiler import LANGUAGE, NoCompilerError, processor_flags
from tunesmith.codegen.c.host import export
from tunesmith.driver.compile_model import CompiledModel, compile_model
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.lower.instrument import Instrument
from tunesmith.lower.pass_context import PassContext
from tunesmith.runtime.elf_symbols import read_symbols
from tunesmith.runtime.module import load_module
from tunesmith.support.errors import BuildError, OtherMachineError, UserError
from tunesmith.testing.emulated_machine import PROCESSORS, EmulatedMachine, missing

MAIN = Path(__file__).with_name("model_main.c")
TARGET = Target("c -mcpu=x86-64-v3 -num-cores=2")
X = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype("float32")
WARNINGS = ("-Wall", "-Wextra", "-pedantic", "-Werror", "-Wno-unused-function")
STANDARD = re.compile(r"__\w+|mem\w+|f(open|read|close|ma|maf)|aligned_alloc|free|getpid|GOMP_parallel|omp_\w+|_GLOBAL_OFFSET_TABLE_")
"""Symbols of libc, libm and OpenMP."""


def network() -> IRModule:
    """An inverted residual as in MobileNet-V2: expand, depthwise, project, add; then pooling and a dense layer."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()

    def weights(*shape: int) -> object:
        return g.constant((rng.standard_normal(shape) * (2 / np.prod(shape[1:])) ** 0.5).astype("float32"), "w")

    def relu6(x: object) -> object:
        return g.clip(x, min=0.0, max=6.0)

    x = g.input("image", (1, 3, 16, 16))
    h = relu6(g.conv2d(x, weights(8, 3, 3, 3), strides=(2, 2), padding=(1, 1, 1, 1)))
    wide = relu6(g.conv2d(h, weights(24, 8, 1, 1)))
    deep = relu6(g.conv2d(wide, weights(24, 1, 3, 3), padding=(1, 1, 1, 1), groups=24))
    h = g.add(h, g.conv2d(deep, weights(8, 24, 1, 1)))
    flat = g.reshape(g.max_pool2d(h, kernel=(2, 2), strides=(2, 2)), shape=(1, 8 * 16))
    return IRModule({"main": g.finish(g.softmax(g.matmul(flat, weights(8 * 16, 10)), name="scores"))})


def compiled(target: Target = TARGET, executor: str = "aot") -> CompiledModel:
    return compile_model(network(), target, executor=executor, untuned=default_schedule, name="net")


@pytest.fixture(scope="module")
def model() -> CompiledModel:
    return compiled()


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    out = compiled(Target(str(TARGET).replace("c ", "llvm ", 1)), "graph")(X)
    assert isinstance(out, np.ndarray) and np.isclose(out.sum(), 1) and out.std() > 0.01
    return out


def compilers() -> dict[str, list[str]]:
    found = {name: [program] for name in ("gcc", "clang") if (program := shutil.which(name))}
    if importlib.util.find_spec("ziglang") is not None:
        found["ziglang"] = [sys.executable, "-m", "ziglang", "cc"]
    return found


def run_program(folder: Path, compiler: str, flags: list[str], arguments: list[str]) -> np.ndarray:
    """Compile and link the exported files with the main program, run it, and read its output."""
    command, name = compilers()[compiler], "zig" if compiler == "ziglang" else compiler
    sources = sorted(str(p) for p in folder.glob("*.c"))
    words = [*LANGUAGE, "-fno-strict-aliasing", *processor_flags(TARGET, name), *WARNINGS, *flags, f"-I{folder}"]
    done = subprocess.run(
        [*command, *words, *sources, str(MAIN), "-o", "main", "-lm"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (folder / "input").write_bytes(X.tobytes())
    done = subprocess.run(
        [str(folder / "main"), "input", "output", *arguments], cwd=folder, env={}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return np.frombuffer((folder / "output").read_bytes(), "float32").reshape(1, 10)


@pytest.mark.parametrize("parameters", export.PARAMETERS)
@pytest.mark.parametrize("compiler", ["gcc", "clang", "ziglang"])
def test_a_c_program_runs_the_model(model: CompiledModel, expected: np.ndarray, tmp_path: Path, compiler: str, parameters: str) -> None:
    if compiler not in compilers():
        pytest.skip(f"{compiler} is not installed")
    paths = model.export_c(tmp_path, parameters)
    inside = parameters == "inside"
    assert [p.name for p in paths] == ["net.c", *(["net_parameters.c", "net.h"] if inside else ["net.h", "net.params"])]
    assert all(p.exists() for p in paths)
    flags = [*(["-fopenmp"] if compiler == "gcc" else []), *([] if inside else ["-DBESIDE"])]
    out = run_program(tmp_path, compiler, flags, [] if inside else ["net.params"])
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif("gcc" not in compilers(), reason="gcc is not installed")
@pytest.mark.parametrize("parameters", export.PARAMETERS)
def test_the_code_needs_only_standard_libraries(model: CompiledModel, tmp_path: Path, parameters: str) -> None:
    model.export_c(tmp_path, parameters)
    words = ["gcc", *LANGUAGE, *processor_flags(TARGET), "-fopenmp", "-fPIC", "-c", "net.c"]
    subprocess.run(words, cwd=tmp_path, check=True)
    symbols = read_symbols((tmp_path / "net.o").read_bytes())
    assert "net_run_with" in symbols.defined and {"fopen", "net_constants"} & set(symbols.needed)
    assert not [s for s in symbols.needed if not STANDARD.fullmatch(s) and s != "net_constants"], symbols.needed


@pytest.mark.skipif("gcc" not in compilers(), reason="gcc is not installed")
def test_a_forked_child_is_refused_and_one_thread_is_not(tmp_path: Path) -> None:
    """As in a library: the parent has started threads, which fork does not copy."""
    g = GraphBuilder()
    square = g.constant(np.ones((256, 256), "float32"), "w")
    mod = IRModule({"main": g.finish(g.matmul(g.input("image", (256, 256)), square, name="scores"))})
    compile_model(mod, TARGET, executor="aot", untuned=default_schedule, name="net").export_c(tmp_path, "inside")
    text = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <omp.h>
#include "net.h"
int main(void)
{
    static float image[65536], scores[65536];
    struct net_inputs inputs = {image};
    struct net_outputs outputs = {scores};
    int status, first = net_run(&inputs, &outputs, NULL);
    if (fork() == 0) {
        int refused = net_run(&inputs, &outputs, NULL);
        omp_set_num_threads(1);
        _exit(refused * 10 + net_run(&inputs, &outputs, NULL));
    }
    wait(&status);
    printf("%d %d", first, WEXITSTATUS(status));
    return 0;
}
"""
    (tmp_path / "fork.c").write_text(text)
    words = ["gcc", *LANGUAGE, "-std=gnu11", *processor_flags(TARGET), "-fopenmp", "net.c", "net_parameters.c", "fork.c", "-o", "f", "-lm"]
    subprocess.run(words, cwd=tmp_path, check=True)
    done = subprocess.run([str(tmp_path / "f")], env={"OMP_NUM_THREADS": "2"}, capture_output=True, text=True, check=True)
    assert done.stdout == "0 40"


class WithoutFma(Instrument):
    """Leaves out a pass."""

    def should_run(self, name: str, ir: object) -> bool:
        return name != "fuse_multiply_add"


@pytest.mark.parametrize("context", [PassContext(disabled=["fuse_multiply_add"]), PassContext(instruments=[WithoutFma()])])
def test_the_files_have_the_passes_of_the_compilation(model: CompiledModel, tmp_path: Path, context: PassContext) -> None:
    with context:
        other = compiled()
        model.export_c(tmp_path / "with")
    other.export_c(tmp_path / "without")
    fused, apart = [(tmp_path / folder / "net.c").read_text().count("fma_float32x8(") for folder in ("with", "without")]
    assert fused > apart


def test_all_executors_compute_the_same(model: CompiledModel, expected: np.ndarray) -> None:
    for found in (model(X), compiled(executor="graph")(X), compiled(executor="vm")(X)):
        assert np.asarray(found).tobytes() == expected.tobytes()


def test_a_library_of_the_object_is_called_from_c_too(model: CompiledModel, expected: np.ndarray, tmp_path: Path) -> None:
    path = model.export_library(tmp_path / "libnet.so")
    assert np.asarray(load_module(path)(X)).tobytes() == expected.tobytes()
    library = ctypes.CDLL(str(path))
    out = np.zeros((1, 10), "float32")
    inputs, outputs = (ctypes.c_void_p * 1)(X.ctypes.data), (ctypes.c_void_p * 1)(out.ctypes.data)
    assert library.net_run(inputs, outputs, None) == 0 and out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["stdint", "String", "math", "omp"])
def test_names_of_system_headers_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf"name='{name}': .* the header {name}\.h, as the system does"):
        compile_model(network(), TARGET, executor="aot", name=name)
    if name == "math":
        compile_model(network(), Target("llvm -mcpu=x86-64-v3 -num-cores=1"), executor="aot", untuned=default_schedule, name=name)


def test_refusals(model: CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildError, match=r"C files are written for models .* kind c and executor=\"aot\", not for c .* executor='graph'"):
        compiled(executor="graph").export_c(tmp_path)
    with pytest.raises(BuildError, match="not for llvm .* and executor='aot'"):
        compiled(Target("llvm -mcpu=x86-64-v3 -num-cores=2")).export_c(tmp_path)
    with pytest.raises(BuildError, match="parameters='none': constants are stored inside or beside the C files"):
        model.export_c(tmp_path, "none")
    with pytest.raises(BuildError, match="a path is a text or a Path, not 3"):
        model.export_c(3)  # type: ignore[arg-type]
    for path in ("", "\0", "a\0b"):
        with pytest.raises(BuildError, match='give the path of a folder, "." for the current one'):
            model.export_c(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cannot export to .*file: .* Check permissions and free space"):
        model.export_c(tmp_path / "file")
    monkeypatch.setattr(export, "_MOST_INSIDE", 100)
    with pytest.raises(BuildError, match='bytes of constants are too many for a C file. Store them with parameters="beside"'):
        model.export_c(tmp_path, "inside")


@pytest.mark.parametrize("machine", PROCESSORS)
def test_files_for_another_machine(expected: np.ndarray, tmp_path: Path, machine: str) -> None:
    if missing(machine) is not None:
        pytest.skip(str(missing(machine)))
    mcpu = {"aarch64": "cortex-a76", "riscv64": "spacemit-x60"}[machine]
    native = compiled(Target(f"c -mcpu={mcpu} -mtriple={machine}-linux-gnu -num-cores=2"))
    paths = native.export_c(tmp_path, "inside")
    flags = [
        *LANGUAGE,
        "-fno-strict-aliasing",
        *processor_flags(native.target),
        f"-I{tmp_path}",
        "-static",
        str(paths[1]),
        str(MAIN),
        "-lm",
    ]
    emulated = EmulatedMachine(machine, tmp_path)
    program = emulated.compile_c(tmp_path / "main", paths[0], *flags)
    (tmp_path / "input").write_bytes(X.tobytes())
    done = emulated.run(program, "input", "output")
    assert done.returncode == 0, done.stderr
    out = np.frombuffer((tmp_path / "output").read_bytes(), "float32").reshape(1, 10)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(OtherMachineError):
        native(X)


def test_files_need_no_compiler(model: CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(target: Target) -> None:
        raise NoCompilerError("no C compiler found")

    monkeypatch.setattr(compiler_module, "compiler_for", no_compiler)
    native = compiled()
    for mine, theirs in zip(native.export_c(tmp_path / "a"), model.export_c(tmp_path / "b"), strict=True):
        assert mine.read_bytes() == theirs.read_bytes()
    for export_compiled in (native.export_library, native.export_object):
        with pytest.raises(BuildError, match=r"no C compiler found. export_c needs no compiler"):
            export_compiled(tmp_path / "net")
    with pytest.raises(OtherMachineError, match="no C compiler found"):
        native(X)
