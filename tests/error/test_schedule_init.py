"""Test refusals of decompose_reduction: each refused step would change the results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.visit import walk
from tunesmith.schedule.primitives import decompose_reduction
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.seeds import stream

Refuse = Callable[..., None]


@T.prim_func
def unused(A: T.Buffer((4, 8), "float32"), C: T.Buffer((4,), "float32")):
    for i, _t, k in T.grid(4, 3, 8):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func
def overlap(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8,), "float32")):
    for i, j, k in T.grid(4, 5, 8):
        with T.block("C"):
            vi = T.axis.spatial(8, i + j)
            vk = T.axis.reduce(8, k)
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func
def coarse(A: T.Buffer((4, 8), "float32"), C: T.Buffer((2,), "float32")):
    for i, k in T.grid(4, 8):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi // 2] = 0.0
            C[vi // 2] = C[vi // 2] + A[vi, vk]


@T.prim_func
def unstored(A: T.Buffer((4, 8), "float32"), C: T.Buffer((1,), "float32")):
    for i, k in T.grid(4, 8):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[0] = 0.0
            C[0] = C[0] + A[vi, vk]


@T.prim_func
def backwards(A: T.Buffer((4, 8), "float32"), C: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            vk = T.axis.reduce(8, 7 - k)
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func
def guarded(A: T.Buffer((4, 8), "float32"), C: T.Buffer((4,), "float32")):
    for i, t, k in T.grid(4, 3, 8):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            T.where(0 < t)
            T.where(t < 2)
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func
def chained(A: T.Buffer((4, 8), "float32"), C: T.Buffer((4,), "float32")):
    for i in T.serial(4):
        with T.block("F"):
            vi = T.axis.spatial(4, i)
            C[vi] = 7.0
    for i, k in T.grid(4, 8):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk] + T.select(vi < 3, C[vi + 1], T.float32(0.0))


@T.prim_func
def looked_at(A: T.Buffer((4, 8), "float32"), C: T.Buffer((4,), "float32"), D: T.Buffer((4,), "float32")):
    for i in T.serial(4):
        with T.block("F"):
            vi = T.axis.spatial(4, i)
            C[vi] = 7.0
    for i in T.serial(4):
        with T.block("D"):
            vd = T.axis.spatial(4, i)
            D[vd] = C[vd]
        for k in T.serial(8):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = 0.0
                C[vi] = C[vi] + A[vi, vk]


@T.prim_func
def started(A: T.Buffer((4, 8), "float32"), C: T.Buffer((4,), "float32"), D: T.Buffer((4,), "float32")):
    for i in T.serial(4):
        with T.block("D"):
            vd = T.axis.spatial(4, i)
            D[vd] = A[vd, 1] + 1.0
        for k in T.serial(8):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = D[vi]
                C[vi] = C[vi] + A[vi, vk]


CASES: dict[str, tuple[PrimFunc, int, str, str]] = {
    "unused": (unused, 0, "once", "loop i computes elements of C more than once"),
    "overlap": (overlap, 0, "once", "loop i computes elements of C more than once"),
    "coarse": (coarse, 0, "once", "several instances of block C may accumulate into one element of C"),
    "unstored": (unstored, 0, "once", "several instances of block C may accumulate into one element of C"),
    "backwards": (
        backwards,
        1,
        "first",
        "the reduction of block C may not start in the first iteration of its loops, or may start more than once",
    ),
    "guarded": (guarded, 1, "once", "loop t computes elements of C more than once"),
    "chained": (chained, 0, "unseen", "block C reads elements of its output that would already be initialised"),
    "looked_at": (looked_at, 0, "unseen", "block C cannot be initialised before loop i: block D in it accesses C"),
    "started": (started, 0, "unseen", "block C cannot be initialised before loop i: block D in it accesses D"),
}
"""The function, which loop of the block, and the label and words of the refusal."""


def decompose(s: Schedule, at: int) -> None:
    b = s.get_block("C")
    s.decompose_reduction(b, s.get_loops(b)[at])


@pytest.mark.parametrize("name", CASES)
def test_an_init_that_comes_too_early(refuse: Refuse, name: str) -> None:
    func, at, label, message = CASES[name]
    s = Schedule(func)
    refuse("decompose_reduction", label, message, s, lambda: decompose(s, at))


def result(func: PrimFunc) -> list[np.ndarray]:
    """The outputs after a call with small integers."""
    written = {n.buffer for n in walk(func.body) if type(n) is BufferStore}
    rng = stream(0, "init")
    inputs = [p for p in func.params if isinstance(p, Buffer) and p not in written]
    return run(func, {b.name: rng.integers(-9, 10, [e.as_int() for e in b.shape]).astype(b.dtype) for b in inputs})


@pytest.mark.parametrize("name", CASES)
def test_the_refused_step_would_change_the_results(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Without the check the step runs, and the interpreter computes other results."""
    func, at, label, _ = CASES[name]
    for check in ("_check_once", "_check_unseen", "check_first_step"):
        monkeypatch.setattr(decompose_reduction, check, lambda *_: None)
    s = Schedule(func)
    decompose(s, at)
    assert not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(result(func), result(s.func), strict=True)), label


def test_decompose_reduction_first(refuse: Refuse) -> None:
    s = Schedule(backwards)
    refuse("decompose_reduction", "first", "may not start in the first iteration of its loops", s, lambda: decompose(s, 0))


def test_decompose_reduction_unseen(refuse: Refuse) -> None:
    s = Schedule(looked_at)
    refuse("decompose_reduction", "unseen", "block D in it accesses C", s, lambda: decompose(s, 0))


@T.prim_func
def triangle(A: T.Buffer((4, 4, 3), "float32"), C: T.Buffer((4, 4), "float32")):
    for i in T.serial(4):
        for j in T.serial(i + 1):
            for k in T.serial(3):
                with T.block("C"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        C[vi, vj] = 0.0
                    C[vi, vj] = C[vi, vj] + A[vi, vj, vk]


@T.prim_func
def shrinking(A: T.Buffer((4, 4), "float32"), C: T.Buffer((4,), "float32")):
    for k in T.serial(4):
        for i in T.serial(4 - k):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = 0.0
                C[vi] = C[vi] + A[vk, vi]


@pytest.mark.parametrize("func", [triangle, shrinking], ids=lambda f: f.name)
def test_extents_that_depend_on_loops(func: PrimFunc) -> None:
    """The init covers the elements of the first reduction step."""
    s = Schedule(func)
    decompose(s, 0)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(result(func), result(s.func), strict=True))
