from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tunesmith.runtime.object_loader import load_object
from tunesmith.support.errors import OtherMachineError, RunError


def test_addresses_can_be_called(vadd_object: bytes) -> None:
    loaded = load_object(vadd_object)
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(loaded.address("vadd"))
    a, b = np.arange(2048, dtype="float32").reshape(2, 2, 512)
    c = np.zeros_like(a)
    kernel(a.ctypes.data, b.ctypes.data, c.ctypes.data)
    np.testing.assert_array_equal(c, a + b)


def test_data_and_functions_of_libc(compile_ir: Callable[..., bytes]) -> None:
    text = """
@counter = global i64 40
declare i64 @labs(i64)
define i64 @bump(i64 %by) {
  %amount = call i64 @labs(i64 %by)
  %old = load i64, ptr @counter
  %new = add i64 %old, %amount
  store i64 %new, ptr @counter
  ret i64 %new
}
"""
    first, second = load_object(compile_ir(text)), load_object(compile_ir(text))
    bump = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    assert bump(first.address("bump"))(-2) == 42
    assert bump(second.address("bump"))(1) == 41
    assert ctypes.c_int64.from_address(first.address("counter")).value == 42


def test_memory_is_freed(compile_ir: Callable[..., bytes]) -> None:
    data = compile_ir("@big = global [200000 x i8] zeroinitializer\ndefine ptr @f() {\n  ret ptr @big\n}\n")

    def mapped_kilobytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * 4

    for _ in range(20):
        load_object(data).close()
    before = mapped_kilobytes()
    for _ in range(100):
        load_object(data).close()
    assert mapped_kilobytes() - before < 5000


def test_closed(vadd_object: bytes) -> None:
    loaded = load_object(vadd_object)
    loaded.close()
    loaded.close()
    with pytest.raises(RunError, match="'vadd' cannot be looked up in an object that has been closed"):
        loaded.address("vadd")


def test_unknown_name(vadd_object: bytes) -> None:
    with pytest.raises(RunError, match="the object defines no 'vmul'. It defines: __tvm_ffi_vadd, vadd"):
        load_object(vadd_object).address("vmul")


def test_undefined_symbol_is_an_error_and_no_abort(compile_ir: Callable[..., bytes]) -> None:
    text = "declare void @tunesmith_nowhere()\ndefine void @f() {\n  call void @tunesmith_nowhere()\n  ret void\n}\n"
    with pytest.raises(RunError, match="the object needs tunesmith_nowhere, which no library of this process defines"):
        load_object(compile_ir(text))


def test_objects_of_other_machines_are_refused(vadd_object: bytes) -> None:
    other = vadd_object[:18] + (183).to_bytes(2, "little") + vadd_object[20:]
    with pytest.raises(OtherMachineError, match="it is an object for aarch64, and this is x86_64"):
        load_object(other)


def test_code_for_fixed_addresses_is_refused(compile_ir: Callable[..., bytes]) -> None:
    text = "@x = internal global [9 x i32] zeroinitializer\ndefine ptr @f(i64 %i) {\n"
    text += "  %p = getelementptr i32, ptr @x, i64 %i\n  ret ptr %p\n}\n"
    with pytest.raises(RunError, match="not position-independent"):
        load_object(compile_ir(text, reloc="static"))


@pytest.mark.parametrize("first", ["", "import xgboost"])
def test_the_interpreter_exits_normally(vadd_object: bytes, tmp_path: Path, first: str) -> None:
    """Idle OpenMP threads still spin while the interpreter exits."""
    (tmp_path / "vadd.o").write_bytes(vadd_object)
    code = f"""
{first}
import numpy as np
from tunesmith.runtime.module import Module
f = Module.from_object(open({str(tmp_path / "vadd.o")!r}, "rb").read())["vadd"]
a = np.ones((2, 512), "float32")
c = np.zeros_like(a)
for _ in range(50):
    f(a, a, c)
assert (c == 2).all()
print("done")
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_one_thread_pool_with_torch(vadd_object: bytes, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "vadd.o").write_bytes(vadd_object)
    code = f"""
import torch
from tunesmith.runtime.module import Module
from tunesmith.runtime.threads import load_openmp
f = Module.from_object(open({str(tmp_path / "vadd.o")!r}, "rb").read())["vadd"]
a = torch.ones(2, 512)
c = torch.zeros(2, 512)
for _ in range(50):
    f(a, a, c)
    torch.mm(torch.ones(256, 256), torch.ones(256, 256))
assert (c == 2).all()
assert "torch" in load_openmp()._name, load_openmp()._name
print("done")
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


RACE = """
import gc, threading
import numpy as np
from tunesmith.codegen.llvm.build import build
from tunesmith.ops.workload import workload
from tunesmith.ir.target.target import Target
from tunesmith.runtime import object_loader
from tunesmith.runtime.module import Module

data = build(workload("relu(shape=64)").func, Target.detect()).data
made, together = [], threading.Barrier(4)
make = object_loader.checker_object

def counted():
    made.append(1)
    try:
        together.wait(0.5)  # until all threads that load a checker have arrived
    except threading.BrokenBarrierError:
        pass
    return make()

object_loader.checker_object = counted
right = []

def work():
    f = Module.from_object(data)["relu"]
    gc.collect()
    a, c = np.ones(64, "float32"), np.zeros(64, "float32")
    f(a, c)
    right.append(bool((c == 1).all()))

threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
print(len(made), right)
"""


def test_threads_that_load_at_once_share_one_checker() -> None:
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "1 [True, True, True, True]"), done.stderr


def test_a_linked_file_is_no_object_of_another_machine(vadd_object: bytes) -> None:
    linked = vadd_object[:16] + (3).to_bytes(2, "little") + vadd_object[18:]
    with pytest.raises(RunError, match="it is not an object but a linked file") as refused:
        load_object(linked)
    assert not isinstance(refused.value, OtherMachineError)
