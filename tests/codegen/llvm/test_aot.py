"""Models as C functions: a C program runs one without Python, and its results equal the graph executor."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tunesmith.codegen.cpu.c_header import c_header, member_names
from tunesmith.codegen.llvm.aot import build_aot
from tunesmith.codegen.llvm.export import export_library, export_object
from tunesmith.driver.compile_model import CompiledModel, compile_model
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.lower.pipelines import CPU
from tunesmith.ops import tensor_expression as te
from tunesmith.runtime.elf_symbols import read_symbols
from tunesmith.runtime.executor.executable import Executable
from tunesmith.runtime.object_loader import LoadedObject, load_object
from tunesmith.runtime.processor import NEEDS
from tunesmith.support.errors import BuildError, UserError
from tunesmith.testing.small_models import tiny_classifier

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "models.md"
MAIN = Path(__file__).with_name("aot_main.c")
TARGET = Target.detect()
SERIAL = Target(f"llvm -mcpu={TARGET.mcpu} -num-cores=1")
C_WARNINGS = ["-Wall", "-Wextra", "-pedantic", "-Werror"]


def compiled(executor: str, target: Target = TARGET, name: str = "tiny") -> CompiledModel:
    return compile_model(tiny_classifier(), target, executor=executor, untuned=default_schedule, name=name)


@dataclass(frozen=True)
class Made:
    """The model, an input, and the results of the graph executor."""

    aot: CompiledModel
    x: np.ndarray
    scores: np.ndarray
    best: np.ndarray


@pytest.fixture(scope="module")
def made() -> Made:
    x = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype("float32")
    scores, best = compiled("graph")(x)
    assert np.isclose(scores.sum(), 1) and scores.max() < 1
    return Made(compiled("aot"), x, scores, best)


def compilers() -> dict[str, list[str]]:
    found = {name: [program] for name in ("cc", "clang") if (program := shutil.which(name))}
    if importlib.util.find_spec("ziglang") is not None:
        found["ziglang"] = [sys.executable, "-m", "ziglang", "cc"]
    return found


def c_compiler() -> list[str]:
    found = compilers()
    if not found:
        pytest.skip("there is no C compiler: neither cc nor clang is on PATH, nor is ziglang installed")
    return next(iter(found.values()))


def compile_c(folder: Path, command: list[str], *arguments: str) -> Path:
    """The program aot_main in the folder, from the header and the files there."""
    program = folder / "aot_main"
    words = [*command, "-std=c99", "-O1", *C_WARNINGS, f"-I{folder}", "-pthread", str(MAIN), "-o", str(program), *arguments]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def run_c(program: Path, made: Made, *arguments: str) -> None:
    """Run it in an environment without Python, and compare its output."""
    folder = program.parent
    (folder / "input").write_bytes(made.x.tobytes())
    done = subprocess.run([str(program), "input", "output", *arguments], cwd=folder, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert (folder / "output").read_bytes() == made.scores.tobytes() + made.best.tobytes()


@pytest.mark.parametrize("compiler", ["cc", "clang", "ziglang"])
def test_a_c_program_runs_the_library(made: Made, tmp_path: Path, compiler: str) -> None:
    if compiler not in compilers():
        pytest.skip(f"{compiler} is not installed")
    library = made.aot.export_library(tmp_path / "libtiny.so", header=tmp_path / "tiny.h")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["libtiny.so", "tiny.h"]
    run_c(compile_c(tmp_path, compilers()[compiler], str(library), "-Wl,-rpath,$ORIGIN"), made)


def test_a_c_program_passes_the_parameters(made: Made, tmp_path: Path) -> None:
    library = made.aot.export_library(tmp_path / "libtiny.so", "beside", tmp_path / "tiny.h")
    parameters = tmp_path / "libtiny.so.params"
    assert library.stat().st_size < parameters.stat().st_size
    program = compile_c(tmp_path, c_compiler(), "-DBESIDE", str(library), "-Wl,-rpath,$ORIGIN")
    run_c(program, made, parameters.name)
    other = CompiledModel(Executable("aot", *changed(made.aot.executable)), (), IRModule(), made.aot.target, IRModule(), CPU)
    other.export_library(tmp_path / "other.so", "beside")
    done = subprocess.run([str(program), "input", "output", "other.so.params"], cwd=tmp_path, env={}, check=False)
    assert done.returncode == 4


def changed(executable: Executable) -> tuple[dict[str, object], tuple[tuple[str, np.ndarray], ...], bytes | None]:
    """The same model with other weights."""
    return executable.program, tuple([(name, array + 1) for name, array in executable.constants]), executable.data


def test_a_c_program_embeds_the_object(tmp_path: Path, made: Made) -> None:
    """Serial code, since linking libgomp is up to the compiler.  Its sums are in another order than those of two threads."""
    command = c_compiler()
    aot = compiled("aot", SERIAL)
    scores, best = compiled("graph", SERIAL)(made.x)
    aot.export_object(tmp_path / "tiny.o", tmp_path / "tiny.h")
    data = (tmp_path / "tiny.o").read_bytes()
    symbols = read_symbols(data)
    functions = ("num_inputs", "num_outputs", "run", "run_with", "signature", "workspace_bytes")
    own = [s for s in symbols.defined if not s.startswith(NEEDS)]
    assert own == sorted(["tiny_constants", *[f"tiny_{f}" for f in functions]]) and len(symbols.defined) <= len(own) + 1
    other = compiled("aot", SERIAL, "other").export_object(tmp_path / "other.o")
    run_c(compile_c(tmp_path, command, "tiny.o", str(other), "-lm"), Made(aot, made.x, scores, best))


def test_dependencies_of_the_library(made: Made, tmp_path: Path) -> None:
    """Standard Linux libraries and OpenMP; nothing of Python, and of TVM-FFI only weak references."""
    symbols = read_symbols(made.aot.export_library(tmp_path / "libtiny.so").read_bytes())
    assert set(symbols.libraries) == {"libgomp.so.1", "libm.so.6", "libc.so.6"}
    assert [s for s in (*symbols.needed, *symbols.defined) if "TVM" in s or "tvm" in s] == ["__tvm_ffi_main"]
    serial = compiled("aot", SERIAL).export_library(tmp_path / "serial.so")
    assert set(read_symbols(serial.read_bytes()).libraries) == {"libm.so.6", "libc.so.6"}


def test_the_header_is_valid_cpp(made: Made, tmp_path: Path) -> None:
    command = shutil.which("c++")
    if command is None:
        pytest.skip("there is no C++ compiler: c++ is not on PATH")
    for parameters in ("inside", "beside"):
        made.aot.export_library(tmp_path / "libtiny.so", parameters, tmp_path / "tiny.h")
        call = "tiny_run(" if parameters == "inside" else "tiny_run_with(nullptr, "
        (tmp_path / "use.cpp").write_text(
            '#include "tiny.h"\n#include "tiny.h"\n'
            "int32_t f(const float *x, float *y, int64_t *c) {\n"
            f"  tiny_inputs in{{x}}; tiny_outputs out{{y, c}};\n  return {call}&in, &out, nullptr);\n}}\n"
        )
        words = [command, "-std=c++11", *C_WARNINGS, "-fsyntax-only", "use.cpp"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


ODD = {
    "version": 1,
    "name": "odd",
    "target": "llvm */ -mcpu=\u00fc",
    "inputs": [
        ["input.1", "float16", [2, 3]],
        ["class", "bool", []],
        ["class_", "bfloat16", [4]],
        ["*/\n", "uint8", [1]],
        ["0", "float64", [8]],
    ],
    "outputs": [],
    "workspace": 0,
}


@pytest.mark.parametrize("beside", [None, "libodd.so.params"])
def test_header_with_unusual_names(assert_golden: object, tmp_path: Path, beside: str | None) -> None:
    constants = (("w", np.zeros((2, 2), "float32")),)
    text = c_header(ODD, constants, beside)
    assert callable(assert_golden)
    assert_golden(text)
    (tmp_path / "use.c").write_text('#include "odd.h"\nint f(const struct odd_inputs *i) { return (int)i->class_[0] + ODD_NUM_INPUTS; }\n')
    (tmp_path / "odd.h").write_text(text)
    words = [*c_compiler(), "-std=c99", *C_WARNINGS, "-c", "use.c"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_members_are_not_named_like_macros() -> None:
    names = ["SIZE_MAX", "class", "RAND_MAX", "INT64_MIN", "EOF", "EMBEDDINGS", "SIZE_A"]
    assert member_names(names) == ["SIZE_MAX_", "class_", "RAND_MAX_", "INT64_MIN_", "EOF_", "EMBEDDINGS", "SIZE_A"]


TWICE = """
import hashlib, importlib.util, json, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("t", sys.argv[1])
t = importlib.util.module_from_spec(spec)
sys.modules["t"] = t
spec.loader.exec_module(t)
model = t.compiled("aot")
model.export_library("libtiny.so", header="tiny.h")
model.export_object("tiny.o")
files = ["libtiny.so", "tiny.h", "tiny.o"]
print(json.dumps([model.executable.digest, *[hashlib.sha256(Path(f).read_bytes()).hexdigest() for f in files]]))
"""


def test_two_processes_make_the_same_bytes(made: Made, tmp_path: Path) -> None:
    found = []
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        words = [sys.executable, "-c", TWICE, __file__]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]
    assert found[0][0] == made.aot.executable.digest
    (tmp_path / "here").mkdir()
    library = made.aot.export_library(tmp_path / "here" / "libtiny.so")
    assert found[0][1] == hashlib.sha256(library.read_bytes()).hexdigest()


def test_the_program_of_the_guide(tmp_path: Path) -> None:
    """docs/models.md, on a model with the same tensors; linked only with the library."""
    g = GraphBuilder()
    flat = g.reshape(g.input("image", (1, 3, 16, 16)), shape=(1, 768))
    scores = g.matmul(flat, g.constant(np.ones((768, 10), "float32"), "w"))
    model = compile_model(
        IRModule({"main": g.finish(g.softmax(scores, name="softmax"))}), TARGET, executor="aot", untuned=default_schedule, name="net"
    )
    model.export_library(tmp_path / "libnet.so", header=tmp_path / "net.h")
    (source,) = re.findall(r"^```c\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "main.c").write_text(source)
    words = [*c_compiler(), "-std=c99", *C_WARNINGS, "main.c", "libnet.so", "-Wl,-rpath,$ORIGIN", "-o", "main"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ran = subprocess.run(["./main"], cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "0.100000\n")


# ---- functions by hand ------------------------------------------------------------------------------------------------------


def call(loaded: LoadedObject, name: str, inputs: list[np.ndarray], outputs: list[np.ndarray], workspace: int | None = None) -> int:
    """`<name>_run_with` without parameters."""
    run = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
        loaded.address(f"{name}_run_with")
    )
    tables = [(ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays]) for arrays in (inputs, outputs)]
    return int(run(None, *tables, workspace))


def dynamic() -> PrimFunc:
    """y[i] = sum over j of x[i] * z[j], through an n by m matrix in memory."""
    n, m = te.var("n"), te.var("m")
    x, z = te.placeholder((n,), name="x"), te.placeholder((m,), name="z")
    product = te.compute((n, m), lambda i, j: x[i] * z[j], "product")
    r = te.reduce_axis(m)
    return te.create_prim_func([x, z, te.compute((n,), lambda i: te.sum(product[i, r], axis=r), "y")], "dynamic")


def by_hand(shapes: tuple[int, int], calls: list[object], arena: int = 0) -> dict[str, object]:
    n, m = shapes
    tensors = [["input", 0, "float32", [n]], ["input", 1, "float32", [m]], ["output", 0, "float32", [n]], ["arena", 0, "float32", [n]]]
    inputs, outputs = [["x", "float32", [n]], ["z", "float32", [m]]], [["y", "float32", [n]]]
    return {"version": 1, "inputs": inputs, "outputs": outputs, "arena": arena, "tensors": tensors, "calls": calls}


def test_functions_with_dynamic_shapes() -> None:
    calls = [["dynamic", [0, 1], [3], [5, 3]], ["dynamic", [3, 1], [2], [5, 3]]]
    _, data = build_aot([dynamic()], by_hand((5, 3), calls, 64), (), "hand", TARGET)
    x, z, y = np.arange(5, dtype="float32"), np.array([1, 2, 4], "float32"), np.zeros(5, "float32")
    loaded = load_object(data)
    assert call(loaded, "hand", [x, z], [y]) == 0
    np.testing.assert_array_equal(y, 49 * x)


def test_failed_allocations() -> None:
    """In a kernel, whose scratch memory would have 2**60 elements; and of the workspace."""
    x, z, y = np.zeros(1, "float32"), np.zeros(1, "float32"), np.ones(1, "float32")
    calls = [["dynamic", [0, 1], [2], [2**30, 2**30]], ["(copy)", [0], [2], []]]
    for arena in (0, 64):
        _, data = build_aot([dynamic()], by_hand((1, 1), calls, arena), (), "hand", TARGET)
        assert call(load_object(data), "hand", [x, z], [y]) == 3
    _, data = build_aot([], by_hand((1, 1), calls[1:], 2**60), (), "hand", TARGET)
    loaded = load_object(data)
    assert call(loaded, "hand", [x, z], [y]) == 3 and y[0] == 1
    assert call(loaded, "hand", [x, z], [y], 64) == 0 and y[0] == 0


def test_refusals(made: Made, tmp_path: Path) -> None:
    for name in ("", "7up", "_x", "a-b", "\u00e4"):
        with pytest.raises(UserError, match="cannot start the names of C functions"):
            compiled("aot", name=name)
        with pytest.raises(BuildError, match="cannot start the names of C functions"):
            build_aot([], by_hand((1, 1), []), (), name, TARGET)
    calls = [["dense", [0, 1], [2], []]]
    with pytest.raises(BuildError, match="one object, and dense would be called in another one"):
        build_aot([], by_hand((1, 1), calls), (), "hand", TARGET)
    graph = Executable("graph", by_hand((1, 1), []), (), made.aot.executable.data)
    with pytest.raises(BuildError, match='with a C header: only models compiled ahead of time have one: executor="aot"'):
        export_library(tmp_path / "x.so", [], graph, header=tmp_path / "x.h")
    with pytest.raises(BuildError, match='objects are made of models that were compiled ahead of time: executor="aot"'):
        export_object(tmp_path / "x.o", graph)
    with pytest.raises(BuildError, match="the folder .*missing does not exist"):
        made.aot.export_library(tmp_path / "x.so", header=tmp_path / "missing" / "x.h")
    with pytest.raises(BuildError, match="cannot write the C header"):
        made.aot.export_library(tmp_path / "x.so", header=tmp_path)
    assert not list(tmp_path.iterdir())
    g = GraphBuilder()
    x = g.input("x", (te.var("n"), 4))
    with pytest.raises(BuildError, match='has a dynamic shape.*executor="vm"'):
        compile_model(IRModule({"main": g.finish(g.relu(x))}), TARGET, executor="aot", untuned=default_schedule)


def test_only_its_own_parameters_are_accepted(made: Made, tmp_path: Path) -> None:
    """A change of any byte of the head is detected."""
    library = ctypes.CDLL(str(made.aot.export_library(tmp_path / "libtiny.so", "beside")))
    data = (tmp_path / "libtiny.so.params").read_bytes()
    file = ctypes.create_string_buffer(data, len(data))
    address = ctypes.addressof(file)
    accept = library.tiny_parameters
    accept.restype, accept.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t)
    found = accept(address, len(data))
    first = np.ctypeslib.as_array((ctypes.c_uint8 * 64).from_address(found))
    assert first.tobytes() == made.aot.executable.constants[0][1].tobytes()[:64]
    assert accept(address, len(data) - 1) is None and accept(address, len(data) + 1) is None and accept(None, len(data)) is None
    for at in range(64):
        kept = data[at]
        file[at] = kept ^ 1
        assert accept(address, len(data)) is None
        file[at] = kept
    assert accept(address, len(data)) == found
