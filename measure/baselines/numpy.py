"""Run operators with numpy, which calls OpenBLAS for matrix products; operators without a numpy function are not supported."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.operator_call import OperatorCall

_SYMBOLS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")
"""Symbol names of a function in the OpenBLAS builds that numpy ships."""


class NumpyBaseline(Baseline):
    """numpy with OpenBLAS.  Outputs are preallocated where numpy can."""

    name: ClassVar[str] = "openblas"
    package: ClassVar[str] = "numpy"

    def available(self) -> str | None:
        """None if this numpy is built on OpenBLAS."""
        blas = str(np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"])
        return None if "openblas" in blas else f"this numpy is built on {blas}"

    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """One variant per operator that numpy supports."""
        run = _program(call)
        if run is None:
            return []
        core = _set_threads(self.threads)
        return [PreparedCall(f"numpy, {core}", run, np.asarray)]


def _program(call: OperatorCall) -> Callable[[], np.ndarray] | None:
    """The operator as numpy functions with a preallocated output where it can."""
    x = list(call.inputs.values())
    out = np.empty(call.output, call.dtype)
    if not call.is_common:
        return None
    if call.name in ("matmul", "batch_matmul"):
        return lambda: np.matmul(x[0], x[1], out=out)
    if call.name == "dense":
        return _dense(call, out)
    if call.name == "add":
        return lambda: np.add(x[0], x[1], out=out)
    if call.name == "relu":
        return lambda: np.maximum(x[0], 0, out=out)
    if call.name in ("sum", "prod"):
        axes, total = call.axes("axis") or None, np.sum if call.name == "sum" else np.prod
        return lambda: total(x[0], axis=axes, dtype=out.dtype, out=out)
    if call.name == "variance":
        axes, correction = call.axes("axis") or None, call.number("correction")
        return lambda: np.var(x[0], axis=axes, dtype=out.dtype, out=out, ddof=correction)
    if call.name in ("argmax", "argmin"):
        axis, find = call.number("axis"), np.argmax if call.name == "argmax" else np.argmin
        return lambda: find(x[0], axis=axis, out=out)
    if call.name in ("cumsum", "cumprod"):
        axis, accumulate = call.number("axis"), np.cumsum if call.name == "cumsum" else np.cumprod
        return lambda: accumulate(x[0], axis=axis, dtype=out.dtype, out=out)
    if call.name == "argsort" and not call.number("descending"):
        axis = call.number("axis")
        return lambda: np.argsort(x[0], axis, kind="stable")
    if call.name in ("gather", "embedding"):
        table, index = x if call.name == "gather" else x[::-1]
        return lambda: np.take(table, index, axis=0, out=out, mode="clip")
    return None


def _dense(call: OperatorCall, out: np.ndarray) -> Callable[[], np.ndarray] | None:
    x, w = call.inputs["A"], call.inputs["W"]
    bias = call.inputs.get("bias")
    activation = call.activation
    if activation == "gelu":  # numpy has no erf
        return None

    def run() -> np.ndarray:
        np.matmul(x, w, out=out)
        if bias is not None:
            np.add(out, bias, out=out)
        if activation == "relu":
            np.maximum(out, 0, out=out)
        return out

    return run


def _set_threads(count: int) -> str:
    """Set the number of threads of numpy's OpenBLAS, and return the name of its kernels.

    Tables show that name, because an OpenBLAS that does not recognise the CPU uses kernels of an older one (OPENBLAS_CORETYPE selects them
    before the process starts).
    """
    control = _openblas()
    if control is None:
        return "threads and kernels of OpenBLAS unknown"
    set_threads, corename = control
    set_threads(count)
    return f"OpenBLAS kernels {corename().decode()}"


@cache
def _openblas() -> tuple[Callable[[int], None], Callable[[], bytes]] | None:
    """Two functions of the OpenBLAS loaded by numpy; scipy may have loaded another copy."""
    np.dot(np.ones((2, 2)), np.ones((2, 2)))
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    paths = {line.split(maxsplit=5)[5] for line in mapped if "openblas" in line and "/" in line}
    for path in sorted(paths, key=lambda p: ("numpy" not in p, p)):
        library = ctypes.CDLL(path)
        set_threads, corename = _function(library, "set_num_threads"), _function(library, "get_corename")
        if set_threads is not None and corename is not None:
            set_threads.argtypes, set_threads.restype = [ctypes.c_int], None
            corename.argtypes, corename.restype = [], ctypes.c_char_p
            return set_threads, corename
    return None


def _function(library: ctypes.CDLL, name: str) -> Any:
    """The C function under any of its symbol names, or None."""
    found = (getattr(library, symbol.format(name), None) for symbol in _SYMBOLS)
    return next((function for function in found if function is not None), None)
