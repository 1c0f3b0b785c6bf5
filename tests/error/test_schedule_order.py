"""Test refusals of moves past blocks that write or still read the same data: each move would change the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.visit import walk
from tunesmith.schedule.primitives import compute_at, compute_inline, reverse_compute_at
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.seeds import stream

Refuse = Callable[..., None]
Case = tuple[PrimFunc, Callable[[Schedule], object], str, str, str]


def loop(s: Schedule, block: str) -> Any:
    """The innermost loop around the block."""
    return s.get_loops(s.get_block(block))[-1]


@T.prim_func
def overwritten(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32"), F: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in T.serial(8):
        with T.block("F"):
            vi = T.axis.spatial(8, i)
            F[vi] = A[vi] + 1.0
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = F[vi] * 2.0
    for i in T.serial(8):
        with T.block("F_again"):
            vi = T.axis.spatial(8, i)
            F[vi] = F[vi] + 5.0
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi] + 1.0


@T.prim_func
def mirrored(A: T.Buffer((8,), "float32"), F: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in T.serial(8):
        with T.block("F"):
            vi = T.axis.spatial(8, i)
            F[vi] = A[vi] + 1.0
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = F[7 - vi] * 2.0
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            F[vi] = B[vi] + 1.0


@T.prim_func
def in_the_nest(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32"), F: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in T.serial(8):
        with T.block("F"):
            vi = T.axis.spatial(8, i)
            F[vi] = A[vi] + 1.0
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = F[vi] * 2.0
        with T.block("F_again"):
            vj = T.axis.spatial(8, 7 - i)
            F[vj] = 5.0
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi] + 1.0


@T.prim_func
def scratch(A: T.Buffer((4, 6), "float32"), C: T.Buffer((4, 6), "float32")):
    E = T.alloc_buffer((6,), "float32")
    B = T.alloc_buffer((4, 6), "float32")
    for t in T.serial(4):
        for i in T.serial(6):
            with T.block("E"):
                vt, vi = T.axis.remap("SS", [t, i])
                E[vi] = A[vt, vi] * 3.0
        for i in T.serial(6):
            with T.block("B"):
                vt, vi = T.axis.remap("SS", [t, i])
                B[vt, vi] = E[vi] + 1.0
        for i in T.serial(6):
            with T.block("C"):
                vt, vi = T.axis.remap("SS", [t, i])
                C[vt, vi] = B[vt, vi] + T.select(0 < vt, B[vt - 1, vi], T.float32(0.0))


@T.prim_func
def carried(A: T.Buffer((4, 6), "float32"), C: T.Buffer((4, 6), "float32")):
    B = T.alloc_buffer((6,), "float32")
    E = T.alloc_buffer((6,), "float32")
    for t in T.serial(4):
        for i in T.serial(6):
            with T.block("E"):
                vt, vi = T.axis.remap("SS", [t, i])
                E[vi] = A[vt, vi] * 2.0
        for i in T.serial(6):
            with T.block("C"):
                vt, vi = T.axis.remap("SS", [t, i])
                C[vt, vi] = T.select(0 < vt, B[vi], T.float32(0.0))
        for i in T.serial(6):
            with T.block("B"):
                vi = T.axis.spatial(6, i)
                B[vi] = E[vi] + 1.0


@T.prim_func
def prefix_sums(A: T.Buffer((6,), "float32"), D: T.Buffer((6, 3), "float32")):
    S = T.alloc_buffer((1,), "float32")
    for k in T.serial(6):
        for u in T.serial(1):
            with T.block("S"):
                vu, vk = T.axis.remap("SR", [u, k])
                with T.init():
                    S[vu] = 0.0
                S[vu] = S[vu] + A[vk]
        for j in T.serial(3):
            with T.block("D"):
                vk, vj = T.axis.remap("SS", [k, j])
                D[vk, vj] = S[0] * 2.0


@T.prim_func
def beside(A: T.Buffer((4, 6), "float32"), C: T.Buffer((4, 6), "float32")):
    E = T.alloc_buffer((4,), "float32")
    B = T.alloc_buffer((4, 6), "float32")
    for i in T.serial(4):
        with T.block("E"):
            vi = T.axis.spatial(4, i)
            E[vi] = A[vi, 0] * 3.0
        for j in T.serial(6):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] + 1.0
    for i, j in T.grid(4, 6):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + E[3 - vi]


@T.prim_func
def reused(A: T.Buffer((4, 6), "float32"), C: T.Buffer((4, 6), "float32")):
    B = T.alloc_buffer((6,), "float32")
    for t in T.serial(4):
        for i in T.serial(6):
            with T.block("B"):
                vt, vi = T.axis.remap("SS", [t, i])
                B[vi] = A[vt, vi] * 2.0
        for i in T.serial(6):
            with T.block("C"):
                vt, vi = T.axis.remap("SS", [t, i])
                C[vt, vi] = B[vi] + 1.0


@T.prim_func
def one_of_them(A: T.Buffer((4, 4), "float32"), C: T.Buffer((4,), "float32")):
    B = T.alloc_buffer((4,), "float32")
    for t in T.serial(4):
        for i in T.serial(4):
            with T.block("B"):
                vt, vi = T.axis.remap("SS", [t, i])
                B[vi] = A[vt, vi] * 2.0
        for u in T.serial(1):
            with T.block("C"):
                vt = T.axis.spatial(4, t + u)
                C[vt] = B[vt] + 1.0


@T.prim_func
def twice(A: T.Buffer((8,), "float32"), F: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in T.serial(8):
        with T.block("F"):
            vi = T.axis.spatial(8, i)
            F[vi] = A[vi] + 1.0
    for _ in T.serial(3):
        for i in T.serial(8):
            with T.block("B"):
                vi = T.axis.spatial(8, i)
                B[vi] = A[vi] * 2.0
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            F[vi] = F[vi] + B[vi]


@T.prim_func
def read_behind(A: T.Buffer((8,), "float32"), D: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in T.serial(8):
        with T.block("C_before"):
            vi = T.axis.spatial(8, i)
            C[vi] = A[vi] - 9.0
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] * 2.0
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi] + 1.0
        with T.block("D"):
            vj = T.axis.spatial(8, i)
            D[vj] = C[7 - vj]


@T.prim_func
def one_ahead(A: T.Buffer((8,), "float32"), C: T.Buffer((7,), "float32")):
    F = T.alloc_buffer((8,), "float32")
    B = T.alloc_buffer((7,), "float32")
    for i in T.serial(8):
        with T.block("F"):
            vi = T.axis.spatial(8, i)
            F[vi] = A[vi] + 1.0
    for i in T.serial(7):
        with T.block("F_again"):
            vi = T.axis.spatial(8, i)
            F[vi] = 5.0
        with T.block("B"):
            vj = T.axis.spatial(7, i)
            B[vj] = F[vj + 1] * 2.0
    for i in T.serial(7):
        with T.block("C"):
            vi = T.axis.spatial(7, i)
            C[vi] = B[vi] + 1.0


CASES: dict[str, Case] = {
    "compute_at of what is read before it is overwritten": (
        one_ahead,
        lambda s: s.compute_at(s.get_block("B"), loop(s, "C")),
        "compute_at",
        "unchanged",
        "block B, moved to block C, would read F after block F_again has written it",
    ),
    "compute_at past a writer": (
        overwritten,
        lambda s: s.compute_at(s.get_block("B"), loop(s, "C")),
        "compute_at",
        "unchanged",
        "block B, moved to block C, would read F after block F_again has written it",
    ),
    "compute_at beside a writer": (
        mirrored,
        lambda s: s.compute_at(s.get_block("B"), loop(s, "C")),
        "compute_at",
        "unchanged",
        "block B, moved to block C, would read F after block C has written it",
    ),
    "compute_at out of a nest with a writer": (
        in_the_nest,
        lambda s: s.compute_at(s.get_block("B"), loop(s, "C")),
        "compute_at",
        "unchanged",
        "block B, moved to block C, would read F after block F_again has written it",
    ),
    "compute_at of earlier iterations": (
        scratch,
        lambda s: s.compute_at(s.get_block("B"), loop(s, "C")),
        "compute_at",
        "unchanged",
        "would read E after block E has written it, in another iteration of the loops around both",
    ),
    "compute_at to what stands before": (
        carried,
        lambda s: s.compute_at(s.get_block("B"), loop(s, "C")),
        "compute_at",
        "unchanged",
        "block C is before block B, and reads values of an earlier iteration",
    ),
    "compute_at of a partial sum": (
        prefix_sums,
        lambda s: s.compute_at(s.get_block("S"), loop(s, "D")),
        "compute_at",
        "complete",
        "binds vk of block S, which does not index S",
    ),
    "compute_inline past a writer": (
        overwritten,
        lambda s: s.compute_inline(s.get_block("B")),
        "compute_inline",
        "unchanged",
        "block B, moved to block C, would read F after block F_again has written it",
    ),
    "compute_inline into a writer": (
        mirrored,
        lambda s: s.compute_inline(s.get_block("B")),
        "compute_inline",
        "unchanged",
        "block B, moved to block C, would read F after block C has written it",
    ),
    "compute_inline of earlier iterations": (
        scratch,
        lambda s: s.compute_inline(s.get_block("B")),
        "compute_inline",
        "unchanged",
        "would read E after block E has written it, in another iteration of the loops around both",
    ),
    "compute_inline into what stands before": (
        carried,
        lambda s: s.compute_inline(s.get_block("B")),
        "compute_inline",
        "unchanged",
        "block C is before block B, and reads values of an earlier iteration",
    ),
    "reverse_compute_at before a reader": (
        mirrored,
        lambda s: s.reverse_compute_at(s.get_block("C"), loop(s, "B")),
        "reverse_compute_at",
        "ready",
        "block C cannot move up before block B, which accesses the same data: F",
    ),
    "reverse_compute_at beside a writer": (
        beside,
        lambda s: s.reverse_compute_at(s.get_block("C"), loop(s, "B")),
        "reverse_compute_at",
        "ready",
        "block C cannot move up before block E, which accesses the same data: E",
    ),
    "reverse_compute_at of what is reused": (
        reused,
        lambda s: s.reverse_compute_at(s.get_block("C"), loop(s, "B")),
        "reverse_compute_at",
        "ready",
        "a loop around both binds vt of block C, and the elements it reads do not depend on this variable",
    ),
    "reverse_compute_at of a part": (
        one_of_them,
        lambda s: s.reverse_compute_at(s.get_block("C"), loop(s, "B")),
        "reverse_compute_at",
        "ready",
        "block C does not read exactly the elements that block B writes in an iteration of the loops around both",
    ),
    "reverse_compute_at of an update": (
        twice,
        lambda s: s.reverse_compute_at(s.get_block("C"), loop(s, "B")),
        "reverse_compute_at",
        "once",
        "block C reads the buffer it writes, and loop i may repeat block B for an element",
    ),
    "reverse_compute_at before a reader behind": (
        read_behind,
        lambda s: s.reverse_compute_at(s.get_block("C"), loop(s, "B")),
        "reverse_compute_at",
        "ready",
        "block C cannot move up before block D, which accesses the same data: C",
    ),
    "reverse_compute_inline before a reader": (
        mirrored,
        lambda s: s.reverse_compute_inline(s.get_block("C")),
        "reverse_compute_inline",
        "ready",
        "block C cannot move up before block B, which accesses the same data: F",
    ),
    "reverse_compute_inline before a reader behind": (
        read_behind,
        lambda s: s.reverse_compute_inline(s.get_block("C")),
        "reverse_compute_inline",
        "ready",
        "block C cannot move up before block D, which accesses the same data: C",
    ),
}
"""The function, the step, and the primitive, the label and words of its refusal."""


@pytest.mark.parametrize("name", CASES)
def test_a_move_past_a_conflict(refuse: Refuse, name: str) -> None:
    func, step, primitive, label, message = CASES[name]
    s = Schedule(func)
    refuse(primitive, label, message, s, lambda: step(s))


def result(func: PrimFunc) -> list[np.ndarray]:
    """The outputs after a call with small integers."""
    written = {n.buffer for n in walk(func.body) if type(n) is BufferStore}
    rng = stream(0, "order")
    inputs = [p for p in func.params if isinstance(p, Buffer) and p not in written]
    arrays = {b.name: rng.integers(-9, 10, [e.as_int() for e in b.shape]).astype(b.dtype) for b in inputs}
    return run(func, arrays)


@pytest.mark.parametrize("name", CASES)
def test_the_refused_step_would_change_the_results(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Without the check the step runs, and the interpreter computes other results."""
    func, step, *_ = CASES[name]
    for module in (compute_at, compute_inline, reverse_compute_at):
        for check in ("check_unchanged", "check_ready", "_check_whole", "_check_once", "move"):
            monkeypatch.setattr(module, check, lambda *_, **__: None, raising=False)
    s = Schedule(func)
    step(s)
    assert not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(result(func), result(s.func), strict=True))


# ---- one of each by name: the list that test_every_label_has_a_test reads


def test_compute_at_unchanged(refuse: Refuse) -> None:
    s = Schedule(overwritten)
    refuse("compute_at", "unchanged", "would read F after block F_again", s, lambda: s.compute_at(s.get_block("B"), loop(s, "C")))


def test_compute_at_complete(refuse: Refuse) -> None:
    s = Schedule(prefix_sums)
    refuse("compute_at", "complete", "binds vk of block S", s, lambda: s.compute_at(s.get_block("S"), loop(s, "D")))


def test_compute_inline_unchanged(refuse: Refuse) -> None:
    s = Schedule(overwritten)
    refuse("compute_inline", "unchanged", "would read F after block F_again", s, lambda: s.compute_inline(s.get_block("B")))


def test_reverse_compute_at_once(refuse: Refuse) -> None:
    s = Schedule(twice)
    refuse(
        "reverse_compute_at", "once", "block C reads the buffer it writes", s, lambda: s.reverse_compute_at(s.get_block("C"), loop(s, "B"))
    )


def test_reverse_compute_inline_ready(refuse: Refuse) -> None:
    s = Schedule(mirrored)
    refuse("reverse_compute_inline", "ready", "before block B", s, lambda: s.reverse_compute_inline(s.get_block("C")))
