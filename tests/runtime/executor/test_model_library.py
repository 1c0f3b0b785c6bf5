from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.llvm import export as llvm_export
from tunesmith.codegen.llvm import link
from tunesmith.codegen.llvm.export import export_library
from tunesmith.runtime.elf_symbols import read_symbols
from tunesmith.runtime.executor.executable import Executable
from tunesmith.runtime.executor.graph_executor import GraphExecutor
from tunesmith.runtime.executor.model_library import CONSTANTS, PROGRAM, library_program, parameters_path
from tunesmith.runtime.model import LoadedModel
from tunesmith.runtime.module import load_module
from tunesmith.support.errors import BuildError, RunError

X = np.random.default_rng(1).integers(-4, 5, (4, 8)).astype("float32")


def agrees(loaded: object, model: Any) -> bool:
    assert isinstance(loaded, LoadedModel)
    return all(np.array_equal(a, b) for a, b in zip(loaded(X), model.reference(X), strict=True))


@pytest.mark.parametrize("kind", ["graph", "vm"])
@pytest.mark.parametrize("parameters", ["inside", "beside"])
def test_export_and_load(tmp_path: Path, model: Any, kind: str, parameters: str) -> None:
    library = export_library(tmp_path / "model.so", [], getattr(model, kind), parameters)
    model_in_library = load_module(library)
    assert isinstance(model_in_library, LoadedModel)
    loaded = model_in_library.executor
    assert loaded.kind == kind and loaded.functions == ("dense", "plus")
    assert agrees(model_in_library, model)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.so", *(["model.so.params"] if parameters == "beside" else [])]
    symbols = read_symbols(library.read_bytes()).defined
    assert PROGRAM in symbols and (CONSTANTS in symbols) == (parameters == "inside")
    flat = np.zeros(64, "float32")
    loaded["plus"](np.ones(64, "float32"), np.ones(64, "float32"), flat)
    assert (flat == 2).all()


def test_equal_models_give_equal_bytes(tmp_path: Path, model: Any) -> None:
    for parameters in ("inside", "beside"):
        first, second = [export_library(tmp_path / f"{name}.so", [], model.vm, parameters) for name in "ab"]
        assert first.read_bytes() == second.read_bytes()
    assert parameters_path(first).read_bytes() == parameters_path(second).read_bytes()


@pytest.mark.parametrize("linker", ["ld", "cc", "ziglang"])
def test_every_linker_accepts_the_data(tmp_path: Path, model: Any, linker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = link.linkers(platform.machine())
    if linker not in found:
        pytest.skip(f"{linker} is not installed")
    monkeypatch.setattr(link, "linkers", lambda machine: {linker: found[linker]})
    assert agrees(load_module(export_library(tmp_path / "model.so", [], model.graph)), model)


@pytest.mark.parametrize("parameters", ["inside", "beside"])
def test_constants_are_used_in_place(tmp_path: Path, model: Any, parameters: str) -> None:
    """They are in mapped pages of the file, and the first one is page-aligned."""
    library = export_library(tmp_path / "model.so", [], model.graph, parameters)
    loaded = load_module(library)
    assert isinstance(loaded, LoadedModel)
    executor = loaded.executor
    assert isinstance(executor, GraphExecutor)
    program = executor._program
    constants = {slot.number: array for slot, array in zip(program._slots, program._arrays, strict=True) if slot.storage == "constant"}
    mapped = library if parameters == "inside" else parameters_path(library)
    spans = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(mapped)):
            start, end = line.split()[0].split("-")
            spans.append((int(start, 16), int(end, 16), line.split()[1]))
    for array in constants.values():
        assert any(start <= array.ctypes.data < end for start, end, _ in spans)
        assert array.ctypes.data % 64 == 0
    if parameters == "inside":
        assert constants[0].ctypes.data % 4096 == 0
        assert all("w" not in rights for start, end, rights in spans if start <= constants[0].ctypes.data < end)


def test_constants_outlive_their_executor_and_may_be_large(tmp_path: Path, model: Any) -> None:
    """Three megabytes: more than one page, and not a multiple of the page size."""
    data = np.random.default_rng(0).standard_normal(750_001).astype("float32")
    program = {
        "version": 1,
        "inputs": [],
        "outputs": [["c", "float32", [750_001]]],
        "arena": 0,
        "tensors": [["constant", 0, "float32", [750_001]], ["output", 0, "float32", [750_001]]],
        "calls": [["(copy)", [0], [1], []]],
    }
    for parameters in ("inside", "beside"):
        library = export_library(
            tmp_path / f"{parameters}.so", [], Executable("graph", program, (("c", data),), model.graph.data), parameters
        )
        np.testing.assert_array_equal(load_module(library)(), data)


def test_parameters_are_recognised(tmp_path: Path, model: Any) -> None:
    library = export_library(tmp_path / "model.so", [], model.graph, "beside")
    path = parameters_path(library)
    good = path.read_bytes()
    path.unlink()
    with pytest.raises(
        RunError, match=r"cannot read the parameters .*model.so.params, which the library .* needs beside it: .*No such file"
    ):
        load_module(library)
    path.write_bytes(b"")
    with pytest.raises(RunError, match=r"cannot read the parameters .*model.so.params"):
        load_module(library)
    path.write_bytes(good[:-64])
    with pytest.raises(RunError, match=r"the parameter file .*model.so.params is torn"):
        load_module(library)
    path.write_bytes(good[:-100] + bytes([good[-100] ^ 1]) + good[-99:])
    with pytest.raises(RunError, match=r"the parameter file .*model.so.params is damaged: its bytes do not match its digest"):
        load_module(library)
    other = [(name, array + 1) for name, array in model.graph.constants]
    elsewhere = export_library(
        tmp_path / "other.so", [], Executable("graph", model.graph.program, tuple(other), model.graph.data), "beside"
    )
    shutil.copy(parameters_path(elsewhere), path)
    with pytest.raises(RunError, match=r"belongs to another library: its digest is [0-9a-f]{16}, and .*model.so was exported with"):
        load_module(library)
    path.write_bytes(good)
    assert agrees(load_module(library), model)


def test_refusals_of_export(tmp_path: Path, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildError, match="parameters='outside': constants are stored inside or beside the library"):
        export_library(tmp_path / "m.so", [], model.graph, "outside")
    with pytest.raises(BuildError, match="the model calls no function, and so has no code"):
        export_library(tmp_path / "m.so", [], Executable("graph", model.graph.program, model.graph.constants))
    monkeypatch.setattr(llvm_export, "_MOST_INSIDE", 100)
    with pytest.raises(BuildError, match=r'bytes of constants are too many for one library.*parameters="beside"'):
        export_library(tmp_path / "m.so", [], model.graph)
    assert not list(tmp_path.iterdir())
    assert agrees(load_module(export_library(tmp_path / "m.so", [], model.graph, "beside")), model)


def test_a_part_of_a_model(tmp_path: Path, model: Any, compile_ir: Any) -> None:
    (tmp_path / "empty.so").write_bytes(b"")
    with pytest.raises(RunError, match=r"empty.so is an empty file, not a shared library"):
        load_module(tmp_path / "empty.so")
    # A program without its constants, and an invalid program.
    text = f"@{PROGRAM} = constant [128 x i8] zeroinitializer\n"
    library = export_library(tmp_path / "none.so", [compile_ir(text)])
    with pytest.raises(RunError, match=r"the model in .*none.so is not data that tunesmith wrote"):
        load_module(library)
    program = library_program(model.graph)
    body = "".join(f"\\{byte:02x}" for byte in program)
    library = export_library(tmp_path / "half.so", [compile_ir(f'@{PROGRAM} = constant [{len(program)} x i8] c"{body}"\n')])
    with pytest.raises(RunError, match=rf"half.so contains only a part of a model: .*{CONSTANTS}"):
        load_module(library)


USER = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        top, _, rest = name.partition(".")
        inner = rest.split(".")[0]
        if top in {"llvmlite", "pandas", "pyarrow", "torch", "xgboost", "filelock", "click", "rich", "scipy", "ml_dtypes"}:
            raise ImportError("refused: " + name)
        if top == "tunesmith" and inner not in {"", "runtime", "support"}:
            raise ImportError("refused: " + name)
        return None

sys.meta_path.insert(0, Refuse())
import numpy as np
from tunesmith.runtime.module import load_module
for path in sys.argv[1:]:
    model = load_module(path)
    x = np.arange(32, dtype="float32").reshape(4, 8)
    y, h, same = model(x)
    assert np.array_equal(same, x)
    model.set_input("x", x)
    model.run()
    assert np.array_equal(model.get_output("y"), y)
    print(model.executor.kind, len(model.profile(x)), float(y.sum()))
loaded = {name.split(".")[1] for name in sys.modules if name.startswith("tunesmith.")}
assert loaded == {"runtime", "support"}, loaded
"""


def test_loads_without_compiler(tmp_path: Path, model: Any) -> None:
    """In a process that can import only numpy, tvm_ffi, tunesmith.runtime and tunesmith.support."""
    libraries = [
        export_library(tmp_path / f"{kind}-{parameters}.so", [], getattr(model, kind), parameters)
        for kind in ("graph", "vm")
        for parameters in ("inside", "beside")
    ]
    done = subprocess.run([sys.executable, "-c", USER, *map(str, libraries)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    total = float(model.reference(np.arange(32, dtype="float32").reshape(4, 8))[0].sum())
    assert done.stdout.splitlines() == [f"{kind} 4 {total}" for kind in ("graph", "graph", "vm", "vm")]


@pytest.mark.parametrize("parameters", ["inside", "beside"])
def test_a_loaded_model_is_copied_with_its_parameters(tmp_path: Path, model: Any, parameters: str) -> None:
    library = export_library(tmp_path / "m.so", [], model.graph, parameters)
    (tmp_path / "copies").mkdir()
    copied = load_module(library).export_library(tmp_path / "copies" / "n.so")
    assert sorted(p.name for p in copied.parent.iterdir()) == ["n.so", *(["n.so.params"] if parameters == "beside" else [])]
    assert agrees(load_module(copied), model)
