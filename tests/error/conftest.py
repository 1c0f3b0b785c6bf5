"""Provide programs for refusal tests, and `refuse`, which checks the guarantees common to all refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.syntax import T
from tunesmith.ir.verify import verify
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import ScheduleError, UserError


@T.prim_func
def row(A: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
    for i in T.serial(16):
        with T.block("C"):
            vi = T.axis.spatial(16, i)
            C[vi] = A[vi] + 1.0


@T.prim_func
def chain(A: T.Buffer((4, 6), "float32"), C: T.Buffer((4, 6), "float32"), D: T.Buffer((4, 6), "float32")):
    B = T.alloc_buffer((4, 6), "float32")
    for i, j in T.grid(4, 6):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(4, 6):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + 1.0
    for i, j in T.grid(4, 6):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj] - 1.0


@T.prim_func
def dense(
    A: T.Buffer((8, 6), "float32"),
    W: T.Buffer((6, 9), "float32"),
    bias: T.Buffer((9,), "float32"),
    D: T.Buffer((8, 9), "float32"),
):
    C = T.alloc_buffer((8, 9), "float32")
    for i, j, k in T.grid(8, 9, 6):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * W[vk, vj]
    for i, j in T.grid(8, 9):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj] + bias[vj]


@T.prim_func
def sums(A: T.Buffer((4, 6), "float32"), b: T.Buffer((4,), "float32"), C: T.Buffer((4,), "float32"), E: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 6):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]
    for i, k in T.grid(4, 6):
        with T.block("E"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                E[vi] = b[vi]
            E[vi] = E[vi] + A[vi, vk]


@T.prim_func
def triangle(A: T.Buffer((4, 4), "float32"), C: T.Buffer((4, 4), "float32")):
    B = T.alloc_buffer((4,), "float32")
    for i in T.serial(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            B[vi] = A[vi, 0] * 2.0
    for i in T.serial(4):
        for j in T.serial(i + 1):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj] + B[vj]


@T.prim_func
def triangular_sums(A: T.Buffer((4, 4, 5), "float32"), C: T.Buffer((4, 4), "float32"), D: T.Buffer((4, 4), "float32")):
    for i in T.serial(4):
        for j in T.serial(i + 1):
            for k in T.serial(5):
                with T.block("C"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        C[vi, vj] = 0.0
                    C[vi, vj] = C[vi, vj] + A[vi, vj, vk]
    for i, j in T.grid(4, 4):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj] + 1.0


@T.prim_func
def odd(A: T.Buffer((4, 4), "float32"), C: T.Buffer((4,), "float32"), D: T.Buffer((4,), "float32"), F: T.Buffer((8,), "float32")):
    U = T.alloc_buffer((4,), "float32")
    P = T.alloc_buffer((4, 4), "float32")
    S = T.alloc_buffer((8,), "float32")
    for i in T.serial(4):
        with T.block("two"):
            vi = T.axis.spatial(4, i)
            C[vi] = A[vi, 0]
            D[vi] = A[vi, 1]
    for i in T.serial(4):
        with T.block("unread"):
            vi = T.axis.spatial(4, i)
            U[vi] = A[vi, 0]
    for i in T.serial(4):
        with T.block("diagonal"):
            vi = T.axis.spatial(4, i)
            P[vi, vi] = A[vi, vi]
    for i in T.serial(8):
        with T.block("S"):
            vi = T.axis.spatial(8, i)
            S[vi] = A[0, vi // 2]
    for i in T.serial(4):
        with T.block("in_place"):
            vi = T.axis.spatial(4, i)
            F[vi] = F[vi] + P[vi, vi] + S[vi]


@T.prim_func
def half(A: T.Buffer((8,), "float32"), C: T.Buffer((4,), "float32"), K: T.Buffer((4,), "float32"), E: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] * 2.0
    for i in T.serial(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = B[vi] + 1.0
    for i in T.serial(4):
        for j in T.serial(2):
            with T.block("E"):
                ve = T.axis.spatial(8, i * 2 + j)
                E[ve] = A[ve]


@T.prim_func
def flip(A: T.Buffer((4, 4), "float32"), C: T.Buffer((4, 4), "float32"), D: T.Buffer((4, 4), "float32")):
    B = T.alloc_buffer((4, 4), "float32")
    for i, j in T.grid(4, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(4, 4):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + B[vj, vi]
    for i, j in T.grid(4, 4):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = B[3 - vi, vj]


@T.prim_func
def mirror(A: T.Buffer((4, 4), "float32"), C: T.Buffer((4, 4), "float32"), E: T.Buffer((4,), "float32")):
    B = T.alloc_buffer((4, 4), "float32")
    D = T.alloc_buffer((4, 4), "float32")
    for i, j in T.grid(4, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(4, 4):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[3 - vi, vj]
    for i, j in T.grid(4, 4):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = A[vi, vj] * 3.0
    for i in T.serial(4):
        with T.block("E"):
            vi = T.axis.spatial(4, i)
            E[vi] = D[vi, vi]


@T.prim_func
def scaled(A: T.Buffer((4, 6), "float32"), D: T.Buffer((4, 6), "float32"), L: T.Buffer((4,), "float32")):
    S = T.alloc_buffer((4,), "float32")
    for i, k in T.grid(4, 6):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = 0.0
            S[vi] = S[vi] + A[vi, vk]
    for i, j in T.grid(4, 6):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = A[vi, vj] * S[vi]
    for i, k in T.grid(4, 6):
        with T.block("L"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                L[vi] = 0.0
            L[vi] = A[vi, vk] - L[vi]


@T.prim_func
def windows(A: T.Buffer((11, 6), "float32"), D: T.Buffer((9,), "float32")):
    S = T.alloc_buffer((11,), "float32")
    for i, k in T.grid(11, 6):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = 0.0
            S[vi] = S[vi] + A[vi, vk]
    for i in T.serial(9):
        with T.block("D"):
            vi = T.axis.spatial(9, i)
            D[vi] = S[vi] + S[vi + 1] + S[vi + 2]


@T.prim_func
def under_a_guard(A: T.Buffer((8, 6), "float32"), C: T.Buffer((8,), "float32")):
    for i_0, i_1, k in T.grid(4, 2, 6):
        with T.block("C"):
            vi = T.axis.spatial(8, i_0 * 2 + i_1)
            vk = T.axis.reduce(6, k)
            T.where(i_0 * 2 + i_1 + k < 9)
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]


PROGRAMS: dict[str, PrimFunc] = {
    f.name: f for f in (row, chain, dense, sums, triangle, triangular_sums, odd, half, flip, mirror, scaled, windows, under_a_guard)
}


@pytest.fixture
def on() -> Callable[[str], Schedule]:
    """`on("row")`: a schedule of the program with that name."""
    return lambda name: Schedule(PROGRAMS[name])


def refused(primitive: str, label: str, message: str, s: Schedule, step: Callable[[], object]) -> None:
    """Check that `primitive` refuses the step for `label`, with a message that contains `message`.

    The refused step changes nothing in the schedule and records only queries; its error shows the program when it is printed.
    """
    func, trace, params, constraints = s.func, s.trace, list(s.params), list(s.constraints)
    with pytest.raises(ScheduleError) as caught:
        step()
    error = caught.value
    assert (error.primitive, error.requirement) == (primitive, label), error.message
    assert message in error.message
    assert isinstance(error, UserError)
    assert s.func is func and s.params == params and s.constraints == constraints and s.depth == 0, "a refused step changed the schedule"
    assert s.trace.instructions[: len(trace.instructions)] == trace.instructions
    assert all(i.kind.startswith("get_") for i in s.trace.instructions[len(trace.instructions) :]), "a refused step is recorded"
    first, *shown = str(error).split("\n")
    assert first == f"{primitive} refused [{label}]: {error.message}"
    assert shown and shown[0] == "@T.prim_func"
    verify(s.func)


@pytest.fixture(scope="session")
def refuse() -> Callable[..., None]:
    """`refuse(primitive, label, message, schedule, step)`: see `refused`."""
    return refused
