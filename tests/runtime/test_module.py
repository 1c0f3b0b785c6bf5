from __future__ import annotations

import gc
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tunesmith
from tunesmith.codegen.llvm.export import export_library
from tunesmith.ir.script.parser import parse
from tunesmith.runtime.module import Module, load_module
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.support.array_types import Float32Array
from tunesmith.support.errors import RunError

Arrays = tuple[Float32Array, Float32Array, Float32Array]


@pytest.fixture
def arrays() -> Arrays:
    a, b = np.arange(2048, dtype="float32").reshape(2, 2, 512)
    return a, b, np.zeros_like(a)


@pytest.fixture
def module(vadd_object: bytes) -> Module:
    return Module.from_object(vadd_object)


def test_call(module: Module, arrays: Arrays) -> None:
    a, b, c = arrays
    assert module.functions == ("vadd",)
    assert module["vadd"](a, b, c) is None
    np.testing.assert_array_equal(c, a + b)
    assert repr(module["vadd"]) == "<compiled function vadd>"


def test_functions_outlive_their_module(vadd_object: bytes, arrays: Arrays) -> None:
    a, b, c = arrays
    function = Module.from_object(vadd_object)["vadd"]
    bound = Module.from_object(vadd_object)["vadd"].bind(a, b, c)
    gc.collect()
    function(a, b, c)
    np.testing.assert_array_equal(c, a + b)
    c[:] = 0
    bound()
    np.testing.assert_array_equal(c, a + b)


def test_unknown_function(module: Module) -> None:
    with pytest.raises(RunError, match=r"a function is named by a string, got ndarray. There are: vadd"):
        module.time(name=np.zeros(4, np.float32))  # type: ignore[arg-type]
    with pytest.raises(RunError, match="has no function 'vmul'. It has: vadd"):
        module["vmul"]


def test_refusals_are_run_errors(module: Module, arrays: Arrays) -> None:
    a, b, c = arrays
    for call in (module["vadd"], lambda *args: module.time(*args, name="vadd")):
        with pytest.raises(RunError, match=r"vadd: argument 1 \(B\): expected float32\[2, 512\], got dtype float64"):
            call(a, b.astype("float64"), c)


@pytest.mark.parametrize("how", ["__call__", "bind"])
def test_arrays_that_dlpack_refuses_are_explained(module: Module, arrays: Arrays, how: str) -> None:
    a, b, c = arrays
    call = getattr(module["vadd"], how)
    b.flags.writeable = False
    with pytest.raises(RunError, match="vadd: argument 1 is a read-only array, which DLPack cannot pass. Pass a writable copy"):
        call(a, b, c)
    with pytest.raises(RunError, match="vadd: argument 2, a numpy.ndarray of dtype >f4, cannot be passed through DLPack"):
        call(a, a, c.astype(">f4"))


def test_bound_arguments_are_checked_by_the_call(module: Module, arrays: Arrays) -> None:
    a, b, _ = arrays
    call = module["vadd"].bind(a, b)
    with pytest.raises(RunError, match=r"expected 3 argument"):
        call()
    with pytest.raises(RunError, match=r"vadd: argument 2 \(C\): expected float32\[2, 512\], got a value of type int"):
        module["vadd"].bind(a, b, 3)()


def test_time(module: Module, arrays: Arrays) -> None:
    policy = TimingPolicy(number=3, repeats=4, window_s=0.0, quiet_fraction=math.inf)
    samples = module.time(*arrays, name="vadd", policy=policy)
    assert len(samples.seconds) == 4
    assert samples.number == 3
    np.testing.assert_array_equal(arrays[2], arrays[0] + arrays[1])


def test_torch_tensors(module: Module) -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.arange(2048, dtype=torch.float32).reshape(2, 2, 512)
    c = torch.zeros(2, 512)
    module["vadd"](a, b, c)
    assert torch.equal(c, a + b)
    module["vadd"](a, b.numpy(), c)
    with pytest.raises(RunError, match=r"got strides \[1, 2\] \(in elements\): it must be contiguous"):
        module["vadd"](a, torch.zeros(512, 2).T, c)


def test_tensors_with_a_lazy_negation_are_refused(module: Module) -> None:
    torch = pytest.importorskip("torch")
    given = torch._neg_view(torch.full((2, 512), 2.0))
    assert given.is_neg() and given.is_contiguous()
    good, out = torch.ones(2, 512), torch.zeros(2, 512)
    for bad in (given, torch.full((2, 512), 1 - 2j).conj().imag):
        for call in (module["vadd"], module["vadd"].bind):
            with pytest.raises(RunError, match=r"vadd: argument 1: the values of this torch.* negatives .* Call .resolve_neg\(\) first"):
                call(good, bad, out)
            with pytest.raises(RunError, match=r"vadd: argument 2: .*resolve_neg"):
                call(good.numpy(), good, bad)
    assert torch.equal(out, torch.zeros(2, 512)), "nothing ran"
    module["vadd"](good, given.resolve_neg(), out)
    assert torch.equal(out, good + given)


def test_library(tmp_path: Path, vadd_object: bytes, arrays: Arrays) -> None:
    a, b, c = arrays
    module = load_module(export_library(tmp_path / "vadd.so", [vadd_object]))
    assert module.functions == ("vadd",)
    with pytest.raises(AttributeError, match="^coverage belongs to the result of tunesmith.compile; a loaded library does not store it$"):
        module.coverage  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="object has no attribute 'coverages'"):
        module.coverages  # type: ignore[attr-defined]  # noqa: B018
    module["vadd"](a, b, c)
    np.testing.assert_array_equal(c, a + b)
    with pytest.raises(RunError, match=r"argument 0 \(A\): expected float32\[2, 512\], got shape \[1, 512\]"):
        module["vadd"](a[:1], b, c)


def test_files_that_are_no_library_are_refused(tmp_path: Path, vadd_object: bytes, compile_ir: Callable[..., bytes]) -> None:
    with pytest.raises(RunError, match=r"cannot read the library .*none.so: No such file"):
        load_module(tmp_path / "none.so")
    (tmp_path / "text.so").write_text("hello")
    with pytest.raises(RunError, match=r"text.so is not a 64-bit little-endian ELF file"):
        load_module(tmp_path / "text.so")
    (tmp_path / "object.so").write_bytes(vadd_object)
    with pytest.raises(RunError, match=r"object.so is not a shared library. Link object code with export_library"):
        load_module(tmp_path / "object.so")
    plain = compile_ir("define void @f() {\n  ret void\n}\n")
    with pytest.raises(RunError, match="the object holds no function: no symbol starts with __tvm_ffi_"):
        Module.from_object(plain)
    with pytest.raises(RunError, match=r"plain.so holds no function"):
        load_module(export_library(tmp_path / "plain.so", [plain]))


def test_library_with_undefined_symbols(tmp_path: Path, compile_ir: Callable[..., bytes]) -> None:
    text = "declare i32 @tunesmith_nowhere()\ndefine i32 @__tvm_ffi_f(ptr %s, ptr %a, i32 %n, ptr %r) {\n"
    text += "  %x = call i32 @tunesmith_nowhere()\n  ret i32 %x\n}\n"
    library = export_library(tmp_path / "f.so", [compile_ir(text)])
    with pytest.raises(RunError, match=r"cannot load the library .*f.so(.|\n)*tunesmith_nowhere"):
        load_module(library)["f"]()


def test_torch_is_not_imported_and_its_tensors_are_accepted(tmp_path: Path) -> None:
    """TVM-FFI alone would import torch, which takes a second per process; importing torch before or after works."""
    pytest.importorskip("torch")
    program = """
import sys
order = sys.argv[1]
if order == "first":
    import torch
import tunesmith
from tunesmith.support.errors import RunError
module = tunesmith.compile("relu(shape=4x5)")
assert ("torch" in sys.modules) == (order == "first")
import torch
x, y = torch.linspace(-1, 1, 20).reshape(4, 5), torch.zeros(4, 5)
module["relu"](x, y)
assert torch.equal(y, x.relu())
try:
    module["relu"](x, torch.zeros(5, 4))
except RunError as error:
    assert "shape" in str(error)
else:
    raise AssertionError
"""
    for order in ("first", "later"):
        done = subprocess.run([sys.executable, "-c", program, order], capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_a_replaced_library_is_loaded_again(tmp_path: Path) -> None:
    """The system loader identifies libraries by path."""
    path = tmp_path / "f.so"
    kept = []
    for factor in (2, 3, 4):
        func = parse(
            f"""
@T.prim_func
def f(A: T.Buffer((4,), "float32"), C: T.Buffer((4,), "float32")):
    for i in T.serial(4):
        C[i] = A[i] * T.float32({factor})
"""
        )
        tunesmith.build(func).export_library(path)
        kept.append(load_module(path))
        for k, library in enumerate(kept):
            c = np.zeros(4, np.float32)
            library["f"](np.ones(4, np.float32), c)
            assert (c == k + 2).all()


def test_a_loaded_library_is_copied(tmp_path: Path, vadd_object: bytes, arrays: Arrays) -> None:
    a, b, c = arrays
    library = export_library(tmp_path / "vadd.so", [vadd_object])
    module = load_module(library)
    copied = module.export_library(tmp_path / "copy.so")
    assert copied == tmp_path / "copy.so" and copied.read_bytes() == library.read_bytes()
    load_module(copied)(a, b, c)
    np.testing.assert_array_equal(c, a + b)
    folder = tmp_path / "none" / "x.so"
    for path, why in ((tmp_path, "it is a folder"), (folder, "No such file"), (b"x.so", "written to a path"), (None, "to None")):
        with pytest.raises(RunError, match=why):
            module.export_library(path)  # type: ignore[arg-type]
    export_library(library, [vadd_object])
    with pytest.raises(RunError, match="cannot copy .*vadd.so: the file was replaced after it was loaded. Load it again"):
        module.export_library(tmp_path / "late.so")
    library.unlink()
    with pytest.raises(RunError, match="cannot copy the library .*vadd.so.* No such file"):
        module.export_library(tmp_path / "late.so")
    assert not (tmp_path / "late.so").exists()
    with pytest.raises(TypeError, match="<module of vadd .*cannot be pickled or copied: write a library"):
        pickle.dumps(module)
    with pytest.raises(RunError, match="is not of a library: link its object code"):
        Module.from_object(vadd_object).export_library(tmp_path / "late.so")
