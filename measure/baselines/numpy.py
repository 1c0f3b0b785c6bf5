"""numpy, which for matrix products is OpenBLAS; what numpy has no function for is not offered."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.operators import OperatorCall

_SYMBOLS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")
"""The names of one function in the builds of OpenBLAS that numpy comes with."""


class NumpyBaseline(Baseline):
    """numpy with OpenBLAS.  All operators write to memory that was allocated before."""

    name: ClassVar[str] = "openblas"
    package: ClassVar[str] = "numpy"

    def available(self) -> str | None:
        """None if this numpy is built on OpenBLAS."""
        blas = str(np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"])
        return None if "openblas" in blas else f"this numpy is built on {blas}"

    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """One way for each operator numpy has."""
        run = _program(call)
        if run is None:
            return []
        core = _set_threads(self.threads)
        return [PreparedCall(f"numpy, {core}", run, np.asarray)]


def _program(call: OperatorCall) -> Callable[[], np.ndarray] | None:
    """The operator as numpy functions with outputs in place."""
    x = list(call.inputs.values())
    out = np.empty(call.output, call.dtype)
    if call.name in ("matmul", "batch_matmul"):
        return lambda: np.matmul(x[0], x[1], out=out)
    if call.name == "dense":
        return _dense(call, out)
    if call.name == "add":
        return lambda: np.add(x[0], x[1], out=out)
    if call.name == "relu":
        return lambda: np.maximum(x[0], 0, out=out)
    if call.name == "sum":
        axis = None if call.text("axis") == "all" else call.number("axis")
        return lambda: np.sum(x[0], axis=axis, dtype=out.dtype, out=out)
    return None


def _dense(call: OperatorCall, out: np.ndarray) -> Callable[[], np.ndarray] | None:
    x, w = call.inputs["X"], call.inputs["W"]
    bias = call.inputs.get("bias")
    activation = call.text("activation")
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
    """Set the threads of numpy's OpenBLAS; returns the name of the kernels it chose.

    That name belongs into every table: an OpenBLAS that does not know the CPU runs kernels of an older one (it can be told
    by OPENBLAS_CORETYPE before the process starts).
    """
    control = _openblas()
    if control is None:
        return "threads and kernels of OpenBLAS unknown"
    set_threads, corename = control
    set_threads(count)
    return f"OpenBLAS kernels {corename().decode()}"


@cache
def _openblas() -> tuple[Callable[[int], None], Callable[[], bytes]] | None:
    """Two functions of the OpenBLAS that numpy itself has loaded; scipy may have loaded one of its own."""
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
    """The C function of that name in whichever spelling the library has it, or None."""
    found = (getattr(library, symbol.format(name), None) for symbol in _SYMBOLS)
    return next((function for function in found if function is not None), None)
