"""Load the OpenMP runtime for parallel loops of compiled code, and limit and pin their threads.

Compiled code calls `GOMP_parallel`.  Importing torch or xgboost does not make their copy of libgomp visible to code
loaded later, so it is loaded here, before LLVM looks it up: RTLD_GLOBAL makes it visible, and RTLD_NODELETE keeps it
mapped at exit, when its idle threads still spin in it (otherwise the interpreter crashes at exit).  A copy that is
already loaded is preferred, so that one thread pool serves both: import torch first, if at all.

A parallel loop runs on as many threads as the target has cores, limited by `num_threads()`.  Compiled code calls
`runtime.thread_support`, of which each exported library has a copy; the limit is written to every loaded copy.
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

    Search order: a copy that is already mapped (torch's before others), the system's `libgomp.so.1`, the copies inside
    the installed packages torch and xgboost, Intel's `libiomp5.so`, which has the same entry points.

    Raises:
        RunError: no runtime is found; the message contains the install command.
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
    """Address of an entry point such as `GOMP_parallel` in the runtime of this process; None if it is not defined."""
    function = getattr(load_openmp(), symbol, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


def is_openmp_symbol(symbol: str) -> bool:
    """Whether a symbol needed by compiled code belongs to the OpenMP runtime."""
    return symbol.startswith(("GOMP_", "omp_"))


def num_threads() -> int:
    """Maximal number of threads of a parallel loop.

    The value of `set_num_threads`, or else the OpenMP default: OMP_NUM_THREADS, or the processors that this process may use.  Compiled
    code never uses more threads than its target has cores.
    """
    return _support.limit or int(load_openmp().omp_get_max_threads())


def set_num_threads(count: int | None) -> None:
    """Limit the threads of parallel loops in this process: in code compiled here, loaded libraries, and executors.

    The limit applies to the next call from any Python thread.  Results are correct for every number of threads; a schedule is
    fast on the number of threads that it was tuned for.

    Args:
        count: maximal number of threads of a parallel loop; None for the OpenMP default.
    Raises:
        UserError: the count is not an int from 1 to 2**31 - 1.
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
    """Change the limit within a `with` block."""
    before = _support.limit
    set_num_threads(count)
    try:
        yield
    finally:
        _support.set(before)


def add_support(state: int, started: int) -> None:
    """Register a copy of `runtime.thread_support`, which must stay loaded, for thread limits and fork detection.

    Args:
        state: address of its state.
        started: address of the function that records that threads may have been started.
    """
    _support.add(state, started)


class _ThreadSupportCopies:
    """Registered copies of `runtime.thread_support`: address of the state -> address of `started`."""

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
        """Mark all copies if threads may run: threads started by one copy or by a package are missing in the child for all."""
        copies = list(self._copies.items())
        if not _OPENMP_USERS.isdisjoint(sys.modules) or any(ctypes.c_void_p.from_address(state + 8).value for state, _ in copies):
            for _, started in copies:
                ctypes.CFUNCTYPE(None)(started)()

    def _after_in_child(self) -> None:
        self._lock = threading.Lock()


_support = _ThreadSupportCopies()
_OPENMP_USERS = frozenset(("torch", "xgboost", "lightgbm", "sklearn"))
"""Packages that start OpenMP threads themselves."""


def pin_threads(count: int | None = None, wait: str | None = None) -> dict[str, str]:
    """Environment variables of a measuring process: one thread per core, pinned to its core.

    The OpenMP runtime reads them once, when it is loaded: set them before the process starts.  On a 2-core machine an
    idle pool woke up in 4-7 ms unpinned and 0.15 ms pinned; a pool in use forks and joins in 0.7 us either way.

    Args:
        count: threads of a parallel loop; by default the cores this process may use.
        wait: OMP_WAIT_POLICY.  None keeps the default of the runtime (spin for some milliseconds, then sleep), which is
            best for measuring: "active" occupies a core until the process ends, "passive" makes each parallel loop
            100 times as expensive.
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
    """Names and paths to try, in order of preference."""
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
    """Files mapped into this process, in the order of their addresses; empty if the system has no /proc/self/maps."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    return [Path(path) for path in dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if "/" in line)]
