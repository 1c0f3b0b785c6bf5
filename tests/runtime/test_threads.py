from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunesmith.runtime import threads
from tunesmith.support.errors import RunError, UserError


def run(code: str, **variables: str) -> str:
    """Output of a fresh interpreter, which must exit normally."""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_entry_points_are_found() -> None:
    assert threads.openmp_address("GOMP_parallel")
    assert threads.openmp_address("GOMP_no_such_entry") is None
    assert threads.is_openmp_symbol("omp_get_thread_num")
    assert not threads.is_openmp_symbol("memcpy")
    assert threads.load_openmp() is threads.load_openmp()


def test_a_copy_in_use_is_preferred() -> None:
    code = """
import ctypes, tunesmith.runtime.threads as threads
before = list(threads._candidates())
ctypes.CDLL("libgomp.so.1")
after = list(threads._candidates())
assert "/" not in before[0], before
assert "libgomp.so.1" in after[0] and after[0].startswith("/"), after
print(threads.load_openmp()._name)
"""
    assert run(code).startswith("/")


def test_num_threads_follows_the_environment() -> None:
    assert run("import tunesmith.runtime.threads as t; print(t.num_threads())", OMP_NUM_THREADS="3") == "3"


def test_pinning() -> None:
    assert threads.pin_threads(2) == {"OMP_NUM_THREADS": "2", "OMP_PROC_BIND": "close", "OMP_PLACES": "cores", "OMP_DYNAMIC": "false"}
    assert threads.pin_threads()["OMP_NUM_THREADS"] == str(len(os.sched_getaffinity(0)))
    assert threads.pin_threads(2, wait="passive")["OMP_WAIT_POLICY"] == "passive"


def test_pinning_refusals() -> None:
    with pytest.raises(UserError, match="cannot pin 0 threads"):
        threads.pin_threads(0)
    with pytest.raises(UserError, match="unknown wait policy 'idle'"):
        threads.pin_threads(wait="idle")


def test_pinned_process_runs_each_thread_on_its_own_core() -> None:
    code = """
from tunesmith.runtime.threads import load_openmp, num_threads
library = load_openmp()
print(num_threads(), library.omp_get_proc_bind(), library.omp_get_num_places())
"""
    count, bind, places = map(int, run(code, **threads.pin_threads(1)).split())
    assert count == 1
    assert bind == 3  # omp_proc_bind_close
    assert places >= 1


def test_no_runtime_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    empty = tmp_path / "libgomp.so.1"
    empty.write_bytes(b"")
    monkeypatch.setattr(threads, "_candidates", lambda: iter([str(empty), "libm.so.6"]))
    with pytest.raises(RunError, match=r"no OpenMP runtime found(.|\n)*apt install libgomp1(.|\n)*libm.so.6: has no GOMP_parallel"):
        threads.load_openmp.__wrapped__()
