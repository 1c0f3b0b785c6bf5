"""The TVM-FFI function of models compiled ahead of time: results, refusals, parameters beside the library, and callers in C++ and Rust."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.llvm.aot import build_aot
from tunesmith.codegen.llvm.export import export_library
from tunesmith.codegen.llvm.model_entry import emit_model_entry
from tunesmith.driver.compile_model import CompiledModel, compile_model
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.ops import tensor_expression as te
from tunesmith.runtime.executor.executable import Executable
from tunesmith.runtime.ffi import tvm_ffi
from tunesmith.runtime.model import LoadedModel
from tunesmith.runtime.module import load_module
from tunesmith.testing.ffi_calls import fuzz_function, raw_of

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "runtime.md"
TARGET = Target.detect()


def net(name: str = "net") -> CompiledModel:
    """y = x @ w + 1 for float32[2, 8], and whether y > 2."""
    g = GraphBuilder()
    x = g.input("x", (2, 8))
    y = g.add(g.matmul(x, g.constant(np.full((8, 4), 0.25, "float32"), "w")), g.constant(np.ones(4, "float32"), "b"), name="y")
    return compile_model(IRModule({"main": g.finish(y)}), TARGET, executor="aot", untuned=default_schedule, name=name)


@pytest.fixture(scope="module")
def model() -> CompiledModel:
    return net()


@pytest.fixture(params=["inside", "beside"])
def library(request: pytest.FixtureRequest, model: CompiledModel, tmp_path: Path) -> Path:
    return model.export_library(tmp_path / "libnet.so", request.param, tmp_path / "net.h")


def test_the_function_computes_what_the_model_does(model: CompiledModel, library: Path) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 8)).astype("float32"), np.zeros((2, 4), "float32")
    loaded = load_module(library)
    assert isinstance(loaded, LoadedModel)
    for function in (tvm_ffi.load_module(str(library))["main"], loaded["main"].ffi, model["main"].ffi):
        y[...] = 0
        assert function(x, y) is None
        np.testing.assert_array_equal(y, model(x))
        with pytest.raises(Exception, match=r"main: argument 1 \(y\): expected float32\[2, 4\], got shape \[2, 8\]"):
            function(x, x.copy())


def test_kinds_of_error(library: Path) -> None:
    main = tvm_ffi.load_module(str(library))["main"]
    x, y = np.zeros((2, 8), "float32"), np.zeros((2, 4), "float32")
    with pytest.raises(
        TypeError, match=r"main: expected 2 argument\(s\), got 1; signature: main\(x: float32\[2, 8\], y: float32\[2, 4\]\)"
    ):
        main(x)
    with pytest.raises(TypeError, match=r"main: argument 0 \(x\): expected float32\[2, 8\], got dtype float64"):
        main(x.astype("float64"), y)
    with pytest.raises(ValueError, match=r"main: argument 1 \(y\): .* got memory that it shares with argument 0 \(x\), and one of the two"):
        main(x, x.reshape(16)[:8].reshape(2, 4))


@pytest.mark.parametrize("seed", range(3))
def test_invalid_arguments_never_end_the_process(model: CompiledModel, library: Path, seed: int) -> None:
    """The native function, and the one that calls the executor through Python."""
    for function in (tvm_ffi.load_module(str(library))["main"], model["main"].ffi):
        fuzz_function(function, "main", "xy", lambda: [raw_of(np.zeros((2, 8), "float32")), raw_of(np.zeros((2, 4), "float32"))], seed)


def test_parameters_beside_the_library(model: CompiledModel, tmp_path: Path) -> None:
    x, y = np.zeros((2, 8), "float32"), np.zeros((2, 4), "float32")
    for name in ("missing", "foreign", "short"):
        library = model.export_library(tmp_path / f"{name}.so", "beside")
        parameters = tmp_path / f"{name}.so.params"
        data = parameters.read_bytes()
        parameters.unlink()
        why = "which the library needs beside it, cannot be read"
        if name == "foreign":
            parameters.write_bytes(bytes([data[40] ^ 1 if i == 40 else b for i, b in enumerate(data)]))
            why = "belongs to another library, or is truncated"
        elif name == "short":
            parameters.write_bytes(data[:-1])
            why = "belongs to another library, or is truncated"
        main = tvm_ffi.load_module(str(library))["main"]
        for _ in range(2):
            with pytest.raises(RuntimeError, match=rf"main: the parameter file {parameters},? {why}: copy both files, or export"):
                main(x, y)
        parameters.write_bytes(data)
        main(x, y)  # after the file was corrected
        np.testing.assert_array_equal(y, np.ones((2, 4), "float32"))


def test_empty_tensors_and_models_without_memory(tmp_path: Path) -> None:
    """Null pointers are accepted for empty tensors; a refused allocation is a MemoryError."""
    a = te.placeholder((4,), name="a")
    func = te.create_prim_func([a, te.compute((4,), lambda i: a[i] + 1.0, "b")], "next")
    tensors = [["input", 0, "float32", [4]], ["output", 0, "float32", [4]]]
    base: dict[str, Any] = {
        "inputs": [["a", "float32", [4]], ["none", "int8", [0]]],
        "outputs": [["b", "float32", [4]]],
        "tensors": tensors,
        "calls": [["next", [0], [1], []]],
    }
    x, y = np.zeros(4, "float32"), np.zeros(4, "float32")
    for arena, name in ((0, "small"), (1 << 60, "large")):
        program, data = build_aot([func], base | {"arena": arena}, (), name, TARGET)
        library = export_library(tmp_path / f"{name}.so", [], Executable("aot", program, (), data))
        main = tvm_ffi.load_module(str(library))["main"]
        if arena:
            with pytest.raises(MemoryError, match="main: there is no memory for intermediate tensors"):
                main(x, np.zeros(0, "int8"), y)
        else:
            main(x, np.zeros(0, "int8"), y)
            assert y.tolist() == [1] * 4


def test_a_library_replaced_on_disk(model: CompiledModel, tmp_path: Path) -> None:
    """It is loaded from a copy, which has no parameters beside it."""
    for _ in range(2):
        model.export_library(tmp_path / "libnet.so", "beside")
        loaded = load_module(tmp_path / "libnet.so")
        y = np.zeros((2, 4), "float32")
        loaded["main"].ffi(np.ones((2, 8), "float32"), y)
        assert (y == 3).all()


def test_without_the_ffi_the_function_fails(library: Path, tmp_path: Path) -> None:
    """In a process that has no TVM-FFI, symbols of which are null there."""
    program = (
        "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]); assert 'tvm_ffi' not in sys.modules; "
        "print(lib.__tvm_ffi_main(None, None, 0, None), lib.net_num_inputs())"
    )
    done = subprocess.run([sys.executable, "-c", program, str(library)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("-1 1\n", 0), done.stderr


def test_a_process_without_tunesmith(library: Path, tmp_path: Path) -> None:
    program = """
import sys
sys.modules["tunesmith"] = None
import numpy as np, tvm_ffi
y = np.zeros((2, 4), "float32")
tvm_ffi.load_module(sys.argv[1])["main"](np.ones((2, 8), "float32"), y)
print(y.tolist())
"""
    done = subprocess.run([sys.executable, "-c", program, str(library)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout, done.returncode) == (f"{[[3.0] * 4] * 2}\n", 0), done.stderr


def test_two_threads_call_at_the_same_time(library: Path, in_threads: Callable[..., None]) -> None:
    main = tvm_ffi.load_module(str(library))["main"]

    def work(seed: int) -> None:
        x, y = np.full((2, 8), seed, "float32"), np.zeros((2, 4), "float32")
        for _ in range(200):
            main(x, y)
            assert (y == 2 * seed + 1).all()

    in_threads(work, range(4))


def cpp(folder: Path, source: str, *arguments: str) -> list[str]:
    """Words of a command that compiles C++ against TVM-FFI in the folder."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler: c++ is not on PATH")
    info: Any = __import__("tvm_ffi.libinfo").libinfo
    place = Path(info.find_libtvm_ffi()).parent
    (folder / "main.cpp").write_text(source)
    includes = [f"-I{path}" for path in info.include_paths()]
    return [compiler, "-std=c++17", "main.cpp", *includes, *arguments, f"-L{place}", "-ltvm_ffi", f"-Wl,-rpath,{place}"]


def command(folder: Path, *words: str) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def block(language: str) -> str:
    (source,) = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(source)


def test_the_cpp_program_of_the_guide(library: Path, tmp_path: Path) -> None:
    command(tmp_path, *cpp(tmp_path, block("cpp"), "-o", "main"))
    signature = "main(x: float32[2, 8], y: float32[2, 4])"
    assert command(tmp_path, "./main") == f"3.0\nmain: expected 2 argument(s), got 1; signature: {signature}\n"


def test_the_rust_program_of_the_guide(model: CompiledModel, tmp_path: Path) -> None:
    compiler = shutil.which("rustc")
    if compiler is None:
        pytest.skip("there is no Rust compiler: rustc is not on PATH")
    model.export_library(tmp_path / "libnet.so")
    (tmp_path / "main.rs").write_text(block("rust"))
    command(tmp_path, compiler, "-D", "warnings", "main.rs", "-L", ".", "-C", "link-arg=-Wl,-rpath,$ORIGIN")
    assert command(tmp_path, "./main") == "3.0\n"


CALLER = """
#include <tvm/ffi/tvm_ffi.h>
#include <thread>
namespace ffi = tvm::ffi;

// Calls the function in another thread, with tensor objects and with bare tensors.
ffi::String call(ffi::Function f, ffi::Tensor x, ffi::Tensor y) {
  ffi::String message = "fine";
  std::thread([&] {
    try {
      f(x, y);
      DLTensor a = *x.GetDLTensorPtr(), b = *y.GetDLTensorPtr();
      f(&a, &b);
      f(x, x);
    } catch (const ffi::Error &error) { message = error.message(); }
  }).join();
  return message;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(call, call);
"""


def test_cpp_in_the_process_calls_models_of_all_executors(tmp_path: Path) -> None:
    command(tmp_path, *cpp(tmp_path, CALLER, "-shared", "-fPIC", "-o", "libcaller.so"))
    call = tvm_ffi.load_module(str(tmp_path / "libcaller.so"))["call"]
    for executor in ("graph", "vm", "aot"):
        g = GraphBuilder()
        a = g.input("a", (2, 8))
        made = compile_model(IRModule({"main": g.finish(g.relu(a, name="b"))}), TARGET, executor=executor, untuned=default_schedule)
        x, y = np.linspace(-1, 1, 16, dtype="float32").reshape(2, 8), np.zeros((2, 8), "float32")
        message = str(call(made["main"].ffi, tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(y)))
        assert "main: argument 1 (b): expected float32[2, 8], got memory that it shares with argument 0 (a)" in message
        np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_text_of_the_function(assert_golden: Callable[[str], None]) -> None:
    program = {"name": "odd", "inputs": [["a", "float16", [2]], ["none", "bool", [0, 3]]], "outputs": [["b", "int64", []]], "workspace": 0}
    texts = [emit_model_entry(program, beside) for beside in (False, True)]
    assert_golden("\n; ----\n".join(re.sub(r"\n; Raises an error of the class.*?\n}\n", "", text, flags=re.DOTALL) for text in texts))


def test_the_symbols_do_not_conflict_in_one_process(tmp_path: Path) -> None:
    """Two models, loaded globally, run their own code."""
    first, second = net("first").export_library(tmp_path / "a.so"), net("second").export_library(tmp_path / "b.so", "beside")
    for library in (first, second):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    for library in (second, first):
        y = np.zeros((2, 4), "float32")
        tvm_ffi.load_module(str(library))["main"](np.ones((2, 8), "float32"), y)
        assert (y == 3).all()
