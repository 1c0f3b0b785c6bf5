"""Compile and build for GPUs: compilation without a device, calls with OpenCL on the processor of this machine."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tunesmith
from tunesmith.cli.main import main
from tunesmith.ir.function import IRModule
from tunesmith.measure.records.database import Database
from tunesmith.ops.workload import workload
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.cuda import CUDA
from tunesmith.runtime.device.device import opencl
from tunesmith.runtime.device.module import DeviceModule
from tunesmith.runtime.device.opencl import OPENCL
from tunesmith.runtime.device.program import MAGIC
from tunesmith.runtime.elf_symbols import read_symbols
from tunesmith.schedule.auto_bind import bind_spatial
from tunesmith.support.errors import BuildError, RecordError, RunError, UserError

H200 = "nvidia/h200"
MATMUL = "matmul(m=24,n=32,k=16)"

needs_opencl = pytest.mark.skipif(OPENCL.count() == 0, reason="no OpenCL runtime here: pip install 'tunesmith[opencl]'")


def compiled(text: str, target: str = "opencl", records: object = None) -> tunesmith.CompiledDeviceModule:
    module = tunesmith.compile(text, target, records)  # type: ignore[arg-type]
    assert isinstance(module, tunesmith.CompiledDeviceModule)
    return module


def check(module: DeviceModule, text: str) -> None:
    """Assert that the compiled workload matches numpy, with host arrays."""
    w = workload(text)
    inputs = w.random_inputs()
    (spec,) = w.outputs
    out = np.full(spec.shape, np.nan, spec.dtype)
    module[w.name](*inputs, out)
    np.testing.assert_allclose(out, w.reference(inputs)[0], rtol=1e-4, atol=1e-5)


@needs_opencl
@pytest.mark.parametrize("text", [MATMUL, "softmax(m=16,n=40)"])
def test_opencl_runs_with_arrays_of_numpy(text: str, tmp_path: Path) -> None:
    module = compiled(text)
    check(module, text)
    saved = module.save(tmp_path / "program")
    assert saved.read_bytes() == module.artifact.data == compiled(text).artifact.data
    loaded = tunesmith.load_module(saved)
    assert isinstance(loaded, DeviceModule) and loaded.functions == module.functions
    check(loaded, text)
    assert [p.name for p in tmp_path.iterdir()] == ["program"]


@needs_opencl
def test_calls_and_bound_calls() -> None:
    module = compiled("relu(shape=64)")
    x, y = np.linspace(-1, 1, 64, dtype=np.float32), np.zeros(64, np.float32)
    module(x, y)
    assert np.array_equal(y, np.maximum(x, 0))
    there = DeviceArray.from_numpy(opencl(), x), DeviceArray(opencl(), (64,), "float32")
    for call in (module.bind(*there), module.bind(*there, name="relu")):
        there[1].fill(y - 1)
        call()
        assert np.array_equal(there[1].numpy(), y)
    with pytest.raises(RunError, match="is in host memory, and bound calls do not copy"):
        module.bind(x, y)
    two = tunesmith.compile(IRModule([workload(t).func for t in (MATMUL, "relu(shape=64)")]), "opencl")
    assert isinstance(two, tunesmith.CompiledDeviceModule)
    with pytest.raises(UserError, match=r"module of matmul, relu .* has several functions: call one of them"):
        two(x, y)
    with pytest.raises(UserError, match="no function 'conv'. It has: matmul, relu"):
        two.bind(x, y, name="conv")
    two["relu"](x, y)


@needs_opencl
def test_build_takes_a_schedule_as_it_is() -> None:
    sch = tunesmith.Schedule(workload(MATMUL).func)
    bind_spatial(sch, sch.get_block(sch.blocks()[0].name), 32)
    module = tunesmith.build(sch, "opencl")
    assert isinstance(module, tunesmith.CompiledDeviceModule) and module.coverage == ()
    (launch,) = module.program.functions[0].launches
    assert launch.block == (32, 1, 1) and launch.grid == (24, 1, 1)
    check(module, MATMUL)


def test_programs_without_bound_loops_get_a_schedule() -> None:
    """All forms of a program do: running it in a single thread is never intended."""
    for form in (MATMUL, workload(MATMUL), workload(MATMUL).func, IRModule([workload(MATMUL).func])):
        module = tunesmith.compile(form, "opencl")
        assert isinstance(module, tunesmith.CompiledDeviceModule)
        (launch,) = module.program.functions[0].launches
        assert np.prod(launch.grid) * np.prod(launch.block) >= 32


def test_records_are_looked_up(tmp_path: Path) -> None:
    module = compiled(MATMUL, H200, Database())
    assert [(c.function, c.status) for c in module.coverage] == [("matmul", "missing")]
    with pytest.raises(RecordError, match="1 of 1 functions"):
        tunesmith.compile(MATMUL, H200, Database(), strict=True)


def test_cuda_is_compiled_and_exported_without_a_gpu(tmp_path: Path) -> None:
    module = compiled(MATMUL, H200)
    assert module.program.arch.startswith("sm_90")
    library = module.export_library(tmp_path / "lib.so")
    assert module.program.code in library.read_bytes()
    assert read_symbols(library.read_bytes()).defined == ("__tvm_ffi_matmul",)
    assert compiled(MATMUL, H200).export_library(tmp_path / "again.so").read_bytes() == library.read_bytes()
    assert tunesmith.load_module(library).functions == ("matmul",)
    loaded = tunesmith.load_module(module.save(tmp_path / "program"))
    assert isinstance(loaded, DeviceModule) and loaded.program == module.program


@pytest.mark.skipif(CUDA.count() > 0, reason="there is a GPU")
def test_only_calls_access_the_device() -> None:
    x = np.zeros(64, np.float32)
    with pytest.raises(RunError, match=r"there is no cuda\(0\)"):
        compiled("relu(shape=64)", H200)(x, x.copy())


def test_refusals(tmp_path: Path) -> None:
    module = compiled("relu(shape=64)")
    with pytest.raises(BuildError, match=r"for opencl.*module.save\(path\), and load it with tunesmith.load_module"):
        module.export_library(tmp_path / "lib.so")
    with pytest.raises(RunError, match="cannot write the program .*missing"):
        module.save(tmp_path / "missing" / "program")
    other, damaged = tmp_path / "other", tmp_path / "damaged"
    other.write_bytes(b"something else")
    damaged.write_bytes(MAGIC + b"7\nrubbish")
    with pytest.raises(RunError, match="other is not a device program: it has no program header"):
        DeviceModule.load(other)
    with pytest.raises(RunError, match="cannot read the program .*none: No such file"):
        DeviceModule.load(tmp_path / "none")
    for load in (DeviceModule.load, tunesmith.load_module):
        with pytest.raises(RunError, match="the device program is damaged"):
            load(damaged)
    with pytest.raises(BuildError, match="there is nothing to compile"):
        tunesmith.compile(IRModule(), H200)


@pytest.mark.parametrize(("target", "kind"), [(H200, "library"), ("opencl", "program")])
def test_the_command_line(target: str, kind: str, tmp_path: Path) -> None:
    path, log = tmp_path / "out.so", tmp_path / "log.jsonl"
    log.touch()
    arguments = ["compile", MATMUL, "relu(shape=8)", "--target", target, "--records", str(log), "-o", str(path), "--json", "-"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {
        "functions": ["matmul", "relu"],
        "with_record": [],
        "without_record": ["matmul", "relu"],
        "bytes_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    assert "relu (" in result.stderr and "missing" in result.stderr
    assert isinstance(tunesmith.load_module(path), DeviceModule) == (kind == "program")
    assert tunesmith.load_module(path).functions == ("matmul", "relu")
