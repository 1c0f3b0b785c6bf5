"""BLAS offload of dense layers: numbers, exported models in another process, error messages without a BLAS."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.external_blas import Blas, Dense, dense_object, dense_text, find_blas
from tunesmith.codegen.llvm import link
from tunesmith.driver.compile import compile as compile_
from tunesmith.driver.compile_model import CompiledModel, compile_model
from tunesmith.graph.ir import interpret
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.offload.external_blas import BlasCodegen
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.runtime.elf_symbols import read_symbols
from tunesmith.runtime.executor.executable import Executable
from tunesmith.runtime.model import LoadedModel
from tunesmith.runtime.module import Module, load_executable, load_module
from tunesmith.runtime.shared_libraries import candidates, load_library
from tunesmith.support.errors import BuildError, RunError, UserError

TARGET = Target("llvm")


@pytest.fixture(scope="module")
def blas() -> Blas:
    try:
        return find_blas()
    except BuildError as error:
        pytest.skip(str(error))


def values(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Small integers: every sum of their products is exact, in any order."""
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)


def module(fill: Callable[[GraphBuilder], Any]) -> IRModule:
    b = GraphBuilder("main")
    return IRModule({"main": b.finish(fill(b))})


def compiled(mod: IRModule, **options: Any) -> CompiledModel:
    return compile_model(mod, TARGET, untuned=default_schedule, offload=("blas",), **options)


def external(made: CompiledModel) -> list[str]:
    return [c.function for c in made.coverage if c.status == "external"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bias", [None, (5,), (1, 5), (7, 5)], ids=lambda s: "none" if s is None else "x".join(map(str, s)))
@pytest.mark.parametrize("turned", ["", "a", "b"])
def test_results_equal_the_interpreter(blas: Blas, dtype: str, bias: tuple[int, ...] | None, turned: str) -> None:
    def fill(b: GraphBuilder) -> Any:
        x = b.input("x", (3, 7) if turned == "a" else (7, 3), dtype)
        w = b.input("w", (5, 3) if turned == "b" else (3, 5), dtype)
        y = b.matmul(b.permute_dims(x) if turned == "a" else x, b.permute_dims(w, axes=(1, 0)) if turned == "b" else w)
        return y if bias is None else b.add(b.constant(values(*bias, dtype=dtype), "bias"), y)

    mod = module(fill)
    made = compiled(mod)
    arrays = [values(*p.type.extents, dtype=dtype) for p in mod["main"].params]
    assert np.array_equal(made(*arrays), interpret.run(mod["main"], arrays)[0])
    assert external(made) == ["blas_dense"] and len(made.coverage) == 1


def test_one_tensor_as_both_operands(blas: Blas) -> None:
    mod = module(lambda b: b.matmul(x := b.input("x", (4, 4)), b.permute_dims(x)))
    x = values(4, 4)
    assert np.array_equal(compiled(mod)(x), x @ x.T)
    both = module(lambda b: b.matmul(y := b.permute_dims(b.input("x", (4, 4))), y))
    assert np.array_equal(compiled(both)(x), x.T @ x.T)


def test_a_single_row_and_a_single_column(blas: Blas) -> None:
    for m, n, k in ((1, 1, 1), (1, 5, 3), (5, 1, 3)):

        def fill(b: GraphBuilder, m: int = m, n: int = n, k: int = k) -> Any:
            return b.add(b.matmul(b.input("x", (m, k)), b.constant(values(k, n), "w")), b.constant(values(n), "bias"))

        assert np.array_equal(compiled(module(fill))(values(m, k)), values(m, k) @ values(k, n) + values(n))


@pytest.mark.parametrize(
    "fill",
    [
        lambda b: b.matmul(b.input("x", (2, 4, 4)), b.input("w", (2, 4, 4))),
        lambda b: b.matmul(b.input("x", (4, 4), "int32"), b.input("w", (4, 4), "int32")),
        lambda b: b.matmul(b.input("x", (4, 4), "float16"), b.input("w", (4, 4), "float16")),
        lambda b: b.matmul(b.input("x", (4,)), b.input("w", (4, 4))),
    ],
    ids=["batch", "int32", "float16", "vector"],
)
def test_layers_outside_blas_are_not_offloaded(blas: Blas, fill: Callable[[GraphBuilder], Any]) -> None:
    assert external(compiled(module(fill))) == []


@pytest.mark.parametrize("shape", [(4, 1), (1, 1), (2, 4, 4)])
def test_a_bias_of_another_shape_is_not_offloaded(blas: Blas, shape: tuple[int, ...]) -> None:
    mod = module(lambda b: b.add(b.matmul(b.input("x", (4, 4)), b.input("w", (4, 4))), b.constant(values(*shape), "bias")))
    made = compiled(mod)
    assert external(made) == ["blas_dense"] and len(made.coverage) == 2
    assert np.array_equal(made(values(4, 4), values(4, 4)), values(4, 4) @ values(4, 4) + values(*shape))


def mixed() -> IRModule:
    def fill(b: GraphBuilder) -> Any:
        y = b.relu(b.conv2d(b.input("x", (2, 3, 6, 6)), b.constant(values(4, 3, 3, 3), "k")))
        y = b.add(b.matmul(b.reshape(y, shape=(2, 64)), b.constant(values(64, 9), "w")), b.constant(values(9), "bias"))
        return b.matmul(b.relu(y), b.constant(values(9, 2), "w2"))

    return module(fill)


@pytest.mark.parametrize("executor", ["graph", "vm"])
def test_an_exported_model_runs_in_another_process(blas: Blas, tmp_path: Path, executor: str) -> None:
    made = compiled(mixed(), executor=executor)
    assert external(made) == ["blas_dense", "blas_dense_1"] and made.executable.libraries == (blas.soname,)
    x = values(2, 3, 6, 6)
    wanted = interpret.run(mixed()["main"], [x])[0]
    assert np.array_equal(made(x), wanted)
    again = Executable.from_bytes(made.executable.to_bytes())
    assert again.objects == made.executable.objects and np.array_equal(load_executable(again)(x), wanted)
    library = made.export_library(tmp_path / "model.so")
    assert blas.soname in read_symbols(library.read_bytes()).libraries
    assert library.read_bytes() == compiled(mixed(), executor=executor).export_library(tmp_path / "again.so").read_bytes()
    np.savez(tmp_path / "data.npz", x=x, wanted=wanted)
    script = (
        "import numpy as np, sys\n"
        "from tunesmith.runtime.module import load_module\n"
        "data = np.load('data.npz')\n"
        "assert np.array_equal(load_module('model.so')(data['x']), data['wanted'])\n"
        "assert 'llvmlite' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_missing_library_is_named_at_load_time(blas: Blas, tmp_path: Path) -> None:
    made = compiled(mixed()).executable
    with pytest.raises(RunError, match="cannot load the shared library libno_such_blas.so"):
        load_executable(Executable(made.kind, made.program, made.constants, made.data, made.objects, ("libno_such_blas.so",)))
    torn = made.to_bytes()
    with pytest.raises(RunError, match="torn"):
        Executable.from_bytes(torn[:-1])


def test_a_library_can_be_specified(blas: Blas) -> None:
    path = next(str(p) for p in candidates(blas.soname) if "/" in p) if "/" not in blas.soname else blas.soname
    mod = module(lambda b: b.matmul(b.input("x", (4, 4)), b.input("w", (4, 4))))
    made = compile_(mod, TARGET, offload=[BlasCodegen(path)])
    assert isinstance(made, CompiledModel) and made.executable.libraries == (path,)
    assert np.array_equal(made(values(4, 4), values(4, 4)), values(4, 4) @ values(4, 4))


def test_a_missing_blas_lists_the_attempts() -> None:
    mod = module(lambda b: b.matmul(b.input("x", (4, 4)), b.input("w", (4, 4))))
    with pytest.raises(BuildError, match=r"no BLAS found(.|\n)*pip install 'tunesmith\[blas\]'(.|\n)*Tried:\n  /no/such/blas.so: "):
        compile_model(mod, TARGET, offload=[BlasCodegen("/no/such/blas.so")])
    with pytest.raises(BuildError, match="libc.so.6: no symbol cblas_sgemm or scipy_cblas_sgemm"):
        find_blas(["libno_such_blas.so", "libc.so.6"])
    with pytest.raises(RunError, match="cannot load the shared library libno_such.so(.|\n)*Tried:\n  libno_such.so: "):
        load_library("libno_such.so")


def test_other_refusals() -> None:
    mod = module(lambda b: b.matmul(b.input("x", (4, 4)), b.input("w", (4, 4))))
    with pytest.raises(UserError, match="unknown external codegen 'mkl'"):
        compile_model(mod, TARGET, offload=("mkl",))
    with pytest.raises(UserError, match=r"offload=\('blas',\) is for models"):
        compile_("matmul(m=4,n=4,k=4)", TARGET, offload=("blas",))
    with pytest.raises(BuildError, match="an extent that does not fit the 32-bit sizes of the BLAS"):
        dense_object("f", Dense(1, 1 << 31, 1, "float32", 0, 1), [], Blas("libblas.so", ""), TARGET)


def test_external_functions_have_no_place() -> None:
    mod = module(lambda b: b.relu(b.matmul(b.input("x", (4, 8)), b.input("w", (8, 4)))))
    with pytest.raises(
        UserError, match="place='blas.*': blas_dense is compiled by an external code generator, which runs on the host only"
    ):
        compiled(mod, place={"blas*": Target("opencl")})


def test_the_entry_point_checks_arguments(blas: Blas) -> None:
    made = compiled(module(lambda b: b.matmul(b.input("x", (4, 3)), b.input("w", (3, 5)))))
    (data,) = made.executable.objects
    assert {"blas_dense_kernel", "__tvm_ffi_blas_dense"} <= set(read_symbols(data).defined)
    f = Module.from_object(data)["blas_dense"]
    out = np.zeros((4, 5), "float32")
    f(values(4, 3), values(3, 5), out)
    assert np.array_equal(out, values(4, 3) @ values(3, 5))
    with pytest.raises(RunError, match=r"blas_dense"):
        f(values(3, 4), values(3, 5), out)
    with pytest.raises(RunError):
        f(out, values(3, 5), out)


def test_llvm_ir_of_a_dense_layer() -> None:
    text = dense_text("f", Dense(2, 3, 4, "float32", 1, 0, b_transposed=True, bias=2), Blas("libblas.so", "scipy_"))
    assert "define void @f(ptr %p0, ptr %p1, ptr %p2, ptr %p3)" in text
    assert "call void @scipy_cblas_sgemm(i32 101, i32 111, i32 112, i32 2, i32 3, i32 4, float 0x3FF0000000000000, ptr %p1, i32 4," in text


@pytest.mark.parametrize("linker", ["ld", "cc", "ziglang"])
def test_every_linker_lists_the_library(blas: Blas, tmp_path: Path, linker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = link.linkers(platform.machine())
    if linker not in found:
        pytest.skip(f"{linker} is not installed")
    monkeypatch.setattr(link, "linkers", lambda machine: {linker: found[linker]})
    made = compiled(module(lambda b: b.matmul(b.input("x", (4, 4)), b.input("w", (4, 4)))))
    library = made.export_library(tmp_path / "model.so")
    assert blas.soname in read_symbols(library.read_bytes()).libraries
    loaded = load_module(library)
    assert isinstance(loaded, LoadedModel) and np.array_equal(loaded(values(4, 4), values(4, 4)), values(4, 4) @ values(4, 4))
