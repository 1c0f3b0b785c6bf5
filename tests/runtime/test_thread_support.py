"""Thread counts of parallel loops: in this process, in libraries, and in forked children."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tunesmith
from tunesmith.codegen.llvm.build import build
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.runtime.module import Module
from tunesmith.support.errors import UserError

PARALLEL = """
@T.prim_func
def f(A: T.Buffer((37, 20), "float32"), C: T.Buffer((37, 20), "float32")):
    B = T.alloc_buffer((37, 20), "float32")
    for i, j in T.grid(37, 20):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2.0)
    for i, j in T.grid(37, 20):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[36 - vi, 19 - vj] + T.float32(1.0)
"""
A = np.arange(37 * 20, dtype="float32").reshape(37, 20)
WANT = A[::-1, ::-1] * 2 + 1


def parallel(cores: int) -> tuple[PrimFunc, tunesmith.Target]:
    """Both blocks in parallel loops, for a target with this number of cores."""
    s = tunesmith.Schedule(parse(PARALLEL))
    for block in "BC":
        s.parallel(s.get_loops(s.get_block(block))[0])
    return s.func, tunesmith.Target.detect().with_attributes(num_cores=cores)


@pytest.fixture(autouse=True)
def no_limit() -> Iterator[None]:
    yield
    tunesmith.set_num_threads(None)


@pytest.mark.parametrize("cores", (2, 16))
def test_results_are_correct_for_every_number_of_threads(cores: int) -> None:
    f = Module.from_object(build(*parallel(cores)).data)["f"]
    for count in (1, 2, 3, 16, None):
        tunesmith.set_num_threads(count)
        assert count is None or tunesmith.num_threads() == count
        c = np.full_like(A, np.nan)
        f(A, c)
        np.testing.assert_array_equal(c, WANT)


SEEN = """
import ctypes, sys, tunesmith
from tunesmith.runtime import object_loader, thread_support
loaded = object_loader.load_object(object_loader.generic_object('''
@counter = global i32 0
declare i32 @tunesmith_threads_v1(i32)
define i32 @ask(i32 %most) {
  %n = call i32 @tunesmith_threads_v1(i32 %most)
  ret i32 %n
}
'''))
ask = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(loaded.address("ask"))
"""


def run(code: str, **variables: str) -> str:
    """Output of a fresh interpreter, which must exit normally."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_set_num_threads_overrides_the_environment() -> None:
    code = SEEN + (
        "print(ask(8), ask(2), tunesmith.num_threads()); tunesmith.set_num_threads(5); print(ask(8), ask(2)); "
        "tunesmith.set_num_threads(None); print(ask(8))"
    )
    assert run(code, OMP_NUM_THREADS="3").split() == ["3", "2", "3", "5", "2", "3"]
    assert run(code, OMP_NUM_THREADS="1").split() == ["1", "1", "1", "5", "2", "1"]


def test_counts_are_validated() -> None:
    tunesmith.set_num_threads(np.int64(3))
    assert tunesmith.num_threads() == 3
    tunesmith.set_num_threads(None)
    with pytest.raises(UserError, match=r"cannot run on 9223372036854775808 threads: give an int >= 1 and below 2\*\*31"):
        tunesmith.set_num_threads(2**63)
    for count in (0, -1, 2**31, 1.5, "2", True):
        with pytest.raises(UserError, match="cannot run on .* threads: give an int >= 1"):
            tunesmith.set_num_threads(count)  # type: ignore[arg-type]


FORK = """
import os, signal, sys, numpy as np, tunesmith
from tunesmith.support.errors import RunError
sys.path.insert(0, {folder!r})
from test_thread_support import A, WANT, parallel
from tunesmith.ir.script.parser import parse
from tunesmith.codegen.llvm.build import build
from tunesmith.runtime.module import Module, load_module
func, target = parallel(2)
tunesmith.set_num_threads(2)
serial = tunesmith.build(parse({serial!r}))["f"]
{load}
c = np.zeros_like(A)
if {used}:
    used = Module.from_object(build(func, target).data)["f"]
    used(A, c)
    assert np.array_equal(c, WANT)
pid = os.fork()
if pid == 0:
    signal.alarm(60)  # kills a child that hangs
    c[:] = 0
    serial(A, c)
    print("serial", np.array_equal(c, WANT), flush=True)
    c[:] = 0
    try:
        f(A, c)
        print("ran", np.array_equal(c, WANT), flush=True)
    except RunError as error:
        print("refused", "this process was forked" in str(error) and "spawn" in str(error) and not c.any(), flush=True)
    tunesmith.set_num_threads(1)
    f(A, c)
    print("single", np.array_equal(c, WANT), flush=True)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def forked(load: str, used: bool) -> str:
    folder = str(Path(__file__).parent)
    return run(FORK.format(folder=folder, serial=PARALLEL, load=load, used=used)).replace("\n", ", ")


def test_a_forked_child_refuses_calls_that_would_hang() -> None:
    assert forked('f = Module.from_object(build(func, target).data)["f"]', True) == "serial True, refused True, single True"


def test_a_child_may_be_the_first_to_start_threads() -> None:
    assert forked('f = Module.from_object(build(func, target).data)["f"]', False) == "serial True, ran True, single True"


@pytest.mark.skipif(not (shutil.which("ld") or shutil.which("cc")), reason="needs a linker")
def test_a_library_follows_the_limit_and_detects_threads_started_elsewhere(tmp_path: Path) -> None:
    from tunesmith.codegen.llvm.export import export_library

    library = export_library(tmp_path / "f.so", [build(*parallel(2)).data])
    assert forked(f'f = load_module({str(library)!r})["f"]', True) == "serial True, refused True, single True"
