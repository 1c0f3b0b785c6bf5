"""The OpenMP runtime that parallel loops of compiled code run on: found once, loaded once, never unloaded.

Compiled code calls `GOMP_parallel`.  Importing torch or xgboost does not make their copy of libgomp visible to code
loaded later, so it is loaded here, before LLVM looks for it: RTLD_GLOBAL makes it visible, and RTLD_NODELETE keeps it
mapped at exit, when its idle workers still spin in it (without it the interpreter crashes at exit).  A copy that the
process already uses is preferred, so that one pool of threads serves both: import torch first, if at all.

A parallel loop runs on as many threads as the target has cores, and no more than `num_threads()`.  All compiled code asks
`runtime.thread_support`, of which each library that was exported has a copy; the limit is written to every copy that is loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tunesmith.support.arguments import as_count
from tunesmith.support.errors import RunError, UserError

_NODELETE = getattr(os, "RTLD_NODELETE", 0)
_ENTRIES = ("GOMP_parallel", "omp_get_thread_num", "omp_get_max_threads")
_STEMS = ("libgomp", "libiomp5")


@cache
def load_openmp() -> ctypes.CDLL:
    """The OpenMP runtime of this process, loaded on the first call.

    In order: a copy that is already mapped (torch's before others), the system's `libgomp.so.1`, the copies inside
    the installed packages torch and xgboost, Intel's `libiomp5.so`, which has the same entry points.

    Raises:
        RunError: none is found; the message holds the install line.
    """
    tried: list[str] = []
    for candidate in _candidates():
        try:
            library = ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL | _NODELETE)
        except OSError as error:
            tried.append(f"{candidate}: {error}")
            continue
        missing = [entry for entry in _ENTRIES if not hasattr(library, entry)]
        if not missing:
            return library
        tried.append(f"{candidate}: has no {', '.join(missing)}")
    raise RunError(
        "no OpenMP runtime found; parallel loops need one. Install it with:  apt install libgomp1  (Debian, Ubuntu), "
        "dnf install libgomp  (Fedora), or  pip install intel-openmp\n  tried " + "\n  tried ".join(tried)
    )


def openmp_address(symbol: str) -> int | None:
    """Address of an entry point such as `GOMP_parallel` in the runtime of this process, None when it has no such one."""
    function = getattr(load_openmp(), symbol, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


def is_openmp_symbol(symbol: str) -> bool:
    """Whether a name that compiled code needs belongs to the OpenMP runtime."""
    return symbol.startswith(("GOMP_", "omp_"))


def num_threads() -> int:
    """How many threads a parallel loop runs on at most.

    What `set_num_threads` set; otherwise what OpenMP says: OMP_NUM_THREADS, or the processors that this process may use.  Compiled code
    uses no more threads than its target has cores, whatever this says.
    """
    return _support.limit or int(load_openmp().omp_get_max_threads())


thread_count = num_threads
"""Its older name."""


def set_num_threads(count: int | None) -> None:
    """Limit the threads of the parallel loops of this process: of code compiled here, of loaded libraries, and of executors.

    It holds for calls from all Python threads, from their next call on.  The results of a call are right for every number; a
    schedule is fast on as many threads as it was tuned for.

    Args:
        count: the most threads that a parallel loop runs on; None for what OpenMP says.
    Raises:
        UserError: the count is no int from 1 to 2**31 - 1.
    """
    if count is None:
        _support.set(0)
        return
    try:
        number = as_count("count", count)
    except UserError:
        raise UserError(f"cannot run on {count!r} threads: give an int >= 1, or None for what OMP_NUM_THREADS says") from None
    if number >= 2**31:
        raise UserError(f"cannot run on {number} threads: give an int >= 1 and below 2**31")
    _support.set(number)


@contextlib.contextmanager
def allowed_threads(count: int) -> Iterator[None]:
    """A `with` block in which the limit is another one."""
    before = _support.limit
    set_num_threads(count)
    try:
        yield
    finally:
        _support.set(before)


def add_support(state: int, started: int) -> None:
    """Let a copy of `runtime.thread_support`, which stays loaded, follow `set_num_threads`, and know of forks.

    Args:
        state: address of its state.
        started: address of the function that notes that threads may have been started.
    """
    _support.add(state, started)


class _Support:
    """The copies of `runtime.thread_support` in this process, by the addresses of their states."""

    def __init__(self) -> None:
        self.limit = 0
        self._copies: dict[int, int] = {}
        self._lock = threading.Lock()

    def set(self, limit: int) -> None:
        with self._lock:
            self.limit = limit
            for state in self._copies:
                ctypes.c_int32.from_address(state).value = limit

    def add(self, state: int, started: int) -> None:
        with self._lock:
            if not self._copies:
                os.register_at_fork(before=self._before_fork, after_in_child=self._after_in_child)
            self._copies[state] = started
            ctypes.c_int32.from_address(state).value = self.limit

    def _before_fork(self) -> None:
        """Threads that one copy has started, or another package, are missing in the child for all."""
        copies = list(self._copies.items())
        if not _OPENMP_USERS.isdisjoint(sys.modules) or any(ctypes.c_void_p.from_address(state + 8).value for state, _ in copies):
            for _, started in copies:
                ctypes.CFUNCTYPE(None)(started)()

    def _after_in_child(self) -> None:
        self._lock = threading.Lock()


_support = _Support()
_OPENMP_USERS = frozenset(("torch", "xgboost", "lightgbm", "sklearn"))
"""Packages that start threads of the OpenMP runtime by themselves."""


def pin_threads(count: int | None = None, wait: str | None = None) -> dict[str, str]:
    """Environment variables for a process that measures: one thread a core, each staying on its core.

    The OpenMP runtime reads them once, while it is loaded: set them before the process starts.  On the 2-core machine
    where this was measured an idle pool wakes up in 4-7 ms unpinned and 0.15 ms pinned; a pool in use forks and joins
    in 0.7 us either way.

    Args:
        count: threads a parallel loop runs on; by default the cores this process may use.
        wait: OMP_WAIT_POLICY.  None keeps the runtime's own (spin for some milliseconds, then sleep), which is best
            for measuring: "active" takes a core from everybody else for as long as the process lives, "passive" makes
            each parallel loop 100 times as dear.
    Raises:
        UserError: a count below 1, or an unknown policy.
    """
    if count is not None and count < 1:
        raise UserError(f"cannot pin {count} threads: give a number of threads >= 1")
    if wait not in (None, "active", "passive"):
        raise UserError(f"unknown wait policy {wait!r}. Known: active, passive, or None for the runtime's own")
    threads = len(os.sched_getaffinity(0)) if count is None else count
    variables = {"OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "close", "OMP_PLACES": "cores", "OMP_DYNAMIC": "false"}
    return variables | ({"OMP_WAIT_POLICY": wait} if wait else {})


def _candidates() -> Iterator[str]:
    """Names and paths to try, best first."""
    mapped = [path for path in _mapped() if path.name.startswith(_STEMS)]
    yield from (str(path) for path in sorted(mapped, key=lambda path: "torch" not in path.parts))
    yield "libgomp.so.1"
    for package, folders in (("torch", ("lib", "../torch.libs")), ("xgboost", ("../xgboost_cpu.libs", "../xgboost.libs"))):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        for folder in folders:
            found = (Path(spec.origin).parent / folder).resolve()
            yield from (str(path) for path in sorted(found.glob("libgomp*.so*")))
    yield "libiomp5.so"
    yield str(Path(sys.prefix) / "lib" / "libiomp5.so")


def _mapped() -> list[Path]:
    """Files mapped into this process, in the order of their addresses; none where the system does not tell."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    return [Path(path) for path in dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if "/" in line)]
