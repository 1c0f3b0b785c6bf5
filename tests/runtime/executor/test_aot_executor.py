"""Models compiled to one C function, called from Python: from object code and from libraries."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.llvm.aot import build_aot
from tunesmith.codegen.llvm.export import export_library
from tunesmith.ir.target.target import Target
from tunesmith.ops import tensor_expression as te
from tunesmith.runtime.executor import aot_executor
from tunesmith.runtime.executor.aot_executor import AotExecutor, NativeModel, constants_block, signature
from tunesmith.runtime.executor.executable import Executable
from tunesmith.runtime.executor.executor import Executor
from tunesmith.runtime.executor.model_library import parameters_path
from tunesmith.runtime.model import LoadedModel
from tunesmith.runtime.module import load_executable, load_module
from tunesmith.support.errors import RunError


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((4, 8)).astype("float32")


@pytest.fixture(params=["object", "inside", "beside"])
def loaded(request: pytest.FixtureRequest, model: Any, tmp_path: Path) -> Executor:
    if request.param == "object":
        return load_executable(Executable.from_bytes(model.aot.to_bytes()))
    found = load_module(export_library(tmp_path / "two_step.so", [], model.aot, request.param))
    assert isinstance(found, LoadedModel)
    return found.executor


def test_equal_to_the_graph_executor(model: Any, loaded: Executor, x: np.ndarray) -> None:
    """Bit for bit."""
    graph = load_executable(model.graph)
    assert (loaded.inputs, loaded.outputs) == (graph.inputs, graph.outputs)
    assert repr(loaded) == "<aot executor (x: float32[4, 8]) -> (y: float32[2, 32], h: float32[4, 16], x: float32[4, 8])>"
    for scale in (1, 3):
        for got, want in zip(loaded(x * scale), graph(x * scale), strict=True):
            assert got.tobytes() == want.tobytes() and got.shape == want.shape


def test_set_input_run_get_output(model: Any, loaded: Executor, x: np.ndarray) -> None:
    with pytest.raises(RunError, match=r"the inputs x have not been set"):
        loaded.run()
    graph = load_executable(model.graph)
    loaded.set_input("x", x)
    loaded.run()
    y = loaded.get_output("y")
    np.testing.assert_array_equal(y, graph(x)[0])
    x += 1  # the array is used in place
    loaded.run()
    np.testing.assert_array_equal(y, graph(x)[0])
    loaded.set_input(0, loaded.get_output(2))  # an output as input is copied
    loaded.run()
    np.testing.assert_array_equal(loaded.get_output(2), x)


def test_profile_has_one_call(loaded: Executor, x: np.ndarray) -> None:
    profile = loaded.profile(x, repeats=3)
    assert [(row.call, row.function, row.calls) for row in profile] == [(0, "two_step", 3)]
    assert profile.microseconds > 0
    assert loaded.functions == ("two_step",) and repr(loaded["two_step"]) == "<native model two_step>"


def test_refusals_of_calls(loaded: Executor, x: np.ndarray) -> None:
    with pytest.raises(RunError, match=r"takes 1 input\(s\), got 2. They are: x: float32\[4, 8\]"):
        loaded(x, x)
    with pytest.raises(RunError, match=r"input 0 \(x: float32\[4, 8\]\): expected float32, got float64"):
        loaded(x.astype("float64"))
    with pytest.raises(RunError, match=r"input 0 \(x: float32\[4, 8\]\): got shape \[8, 4\]"):
        loaded(x.T)
    with pytest.raises(RunError, match=r"has no function 'dense'. It has: two_step"):
        loaded["dense"]


def test_statuses_are_reported(loaded: Executor) -> None:
    function = loaded["two_step"]
    assert isinstance(function, NativeModel)
    with pytest.raises(RunError, match="two_step_run_with returned 1: a pointer is null"):
        function(0, None, None, 0)
    with pytest.raises(RunError, match="two_step_run_with returned 2: a tensor is not aligned to its elements, or .* not to 64 bytes"):
        holder = np.zeros(1024, "uint8")
        pointers = (np.full(8, holder.ctypes.data, "uint64")).ctypes.data
        function(1, pointers, pointers, 0)


def test_threads(model: Any, loaded: Executor, in_threads: Callable[..., None]) -> None:
    """Calls of one executor are serialised; two executors run the same code concurrently."""

    def work(given: tuple[int, Executor]) -> None:
        seed, executor = given
        graph = load_executable(model.graph)
        rng = np.random.default_rng(seed)
        for _ in range(100):
            x = rng.standard_normal((4, 8)).astype("float32")
            assert all(a.tobytes() == b.tobytes() for a, b in zip(executor(x), graph(x), strict=True))

    in_threads(work, enumerate([loaded, load_executable(model.aot)]))
    in_threads(work, enumerate([loaded, loaded]))


def test_constants_are_in_one_block(tmp_path: Path, model: Any) -> None:
    """Copied into a block, or used in place if they form one already."""
    a, b = np.arange(5, dtype="float32"), np.array([[True], [False]])
    block = constants_block((("a", a), ("b", b), ("c", a.astype(">f4")[::2])))
    assert block.ctypes.data % 64 == 0 and block.nbytes == 192
    np.testing.assert_array_equal(block[:20].view("float32"), a)
    np.testing.assert_array_equal(block[64:66], [1, 0])
    np.testing.assert_array_equal(block[128:140].view("float32"), a[::2])
    again = constants_block((("a", block[:20].view("float32")), ("b", block[64:66].view(bool).reshape(2, 1))))
    assert again.ctypes.data == block.ctypes.data and again.nbytes == 128
    assert constants_block((("b", block[64:66]), ("a", block[:20]))).ctypes.data != block.ctypes.data
    assert constants_block(()).nbytes == 0
    for parameters in ("inside", "beside"):
        library = export_library(tmp_path / f"{parameters}.so", [], model.aot, parameters)
        loaded = load_module(library)
        assert isinstance(loaded, LoadedModel)
        executor = loaded.executor
        assert isinstance(executor, AotExecutor)
        mapped = library if parameters == "inside" else parameters_path(library)
        spans = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(mapped))]
        address = executor._program._parameters.ctypes.data
        assert any(int(start, 16) <= address < int(end, 16) for start, end in spans)


def test_no_parameters_and_no_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty arrays may have misaligned addresses; null pointers are passed instead."""
    add = te.placeholder((4,), name="a")
    func = te.create_prim_func([add, te.compute((4,), lambda i: add[i] + 1.0, "b")], "next")
    tensors = [["input", 0, "float32", [4]], ["output", 0, "float32", [4]]]
    graph = {"inputs": [["a", "float32", [4]]], "outputs": [["b", "float32", [4]]], "arena": 0, "tensors": tensors}
    program, data = build_aot([func], graph | {"calls": [["next", [0], [1], []]]}, (), "next", Target.detect())
    monkeypatch.setattr(aot_executor, "empty", lambda size: np.empty(65, np.uint8)[1 : 1 + size])
    executor = load_executable(Executable("aot", program, (), data))
    np.testing.assert_array_equal(executor(np.zeros(4, "float32")), np.ones(4))


def test_programs_that_do_not_belong_to_the_code(model: Any, tmp_path: Path) -> None:
    for path, value, message in [
        (("inputs", 0, 2), [8, 4], "does not belong to this code: tensors or constants differ. Build it again"),
        (("outputs", 1, 1), "int32", "does not belong to this code"),
        (("workspace",), 0, "does not belong to this code"),
        (("workspace",), -1, "workspace: expected an integer"),
        (("inputs", 0), ["x"], "inputs 0: expected a list of 3"),
        (("name",), "three_step", "defines no 'three_step_signature'"),
        (("name",), "two step", "cannot start the names of C functions"),
        (("name",), 2, "name: expected a text, got 2"),
    ]:
        program = copy.deepcopy(model.aot.program)
        at: Any = program
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        with pytest.raises(RunError, match=message):
            load_executable(Executable("aot", program, model.aot.constants, model.aot.data))
    fewer = Executable("aot", model.aot.program, model.aot.constants[1:], model.aot.data)
    with pytest.raises(RunError, match="does not belong to this code"):
        load_executable(fewer)
    with pytest.raises(RunError, match="all its code in one object, and this one has 0"):
        load_executable(Executable("aot", model.aot.program, model.aot.constants))
    for key in ("inputs", "name", "workspace"):
        program = copy.deepcopy(model.aot.program)
        del program[key]
        with pytest.raises(RunError, match=f"the program has no '{key}'"):
            load_executable(Executable("aot", program, model.aot.constants, model.aot.data))
    library = export_library(tmp_path / "x.so", [], fewer)
    with pytest.raises(RunError, match="does not belong to this code"):
        load_module(library)


def test_signatures_differ(model: Any) -> None:
    first = signature(model.aot.program, model.aot.constants)
    assert first == signature(copy.deepcopy(model.aot.program), model.aot.constants) < 2**64
    renamed = model.aot.program | {"name": "other"}
    moved = model.aot.program | {"target": "elsewhere"}
    assert signature(renamed, model.aot.constants) != first == signature(moved, model.aot.constants)


USER = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"llvmlite", "pandas", "torch"} or name.startswith(("tunesmith.codegen", "tunesmith.ir")):
            raise ImportError("refused: " + name)
        return None

sys.meta_path.insert(0, Refuse())
import numpy as np
from tunesmith.runtime.module import load_module
for path in sys.argv[1:]:
    model = load_module(path)
    y, h, same = model(np.arange(32, dtype="float32").reshape(4, 8))
    print(model.executor.kind, float(y.sum()))
"""


def test_loads_without_compiler(tmp_path: Path, model: Any) -> None:
    libraries = [str(export_library(tmp_path / f"{p}.so", [], model.aot, p)) for p in ("inside", "beside")]
    done = subprocess.run([sys.executable, "-c", USER, *libraries], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    total = float(model.reference(np.arange(32, dtype="float32").reshape(4, 8))[0].sum())
    assert done.stdout.splitlines() == [f"aot {total}"] * 2
