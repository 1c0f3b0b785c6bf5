"""plan_allocations, flatten_buffers: the position and the size of allocations, and one index per access."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import Allocate, For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.flatten_buffers import flatten_buffers
from tunesmith.lower.passes.plan_allocations import MAX_NESTED, plan_allocations
from tunesmith.support.errors import BuildError

TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=1")
Lowered = Callable[..., PrimFunc]
Golden = Callable[..., None]


def shapes(func: PrimFunc) -> dict[str, list[int]]:
    """The shape of each allocation."""
    return {n.buffer.name: [e.as_int() for e in n.buffer.shape] for n in walk(func.body) if type(n) is Allocate}


@T.prim_func
def tile(A: T.Buffer((10, 9), "float32"), C: T.Buffer((10, 9), "float32")):
    B = T.alloc_buffer((10, 9), "float32", scope="workspace")
    R = T.alloc_buffer((10, 9), "float32", scope="register")
    for i_0 in T.serial(4):
        for i_1, j in T.grid(3, 9):
            if i_0 * 3 + i_1 < 10:
                B[i_0 * 3 + i_1, j] = A[i_0 * 3 + i_1, j] * 2.0
        for i_1 in T.serial(3):
            if i_0 * 3 + i_1 < 10:
                for j in T.serial(9):
                    R[i_0 * 3 + i_1, j] = B[i_0 * 3 + i_1, j]
                for j in T.serial(9):
                    C[i_0 * 3 + i_1, j] = R[i_0 * 3 + i_1, j] + 1.0


def test_plan_allocations(lowered: Lowered, assert_golden: Golden) -> None:
    """Each buffer in the innermost loop with its uses, with the footprint of one iteration; registers are full vectors."""
    done = lowered(tile, plan_allocations)
    assert shapes(done) == {"B": [3, 9], "R": [1, 12]}
    assert_golden(str(done))


@T.prim_func
def halo(A: T.Buffer((12,), "float32"), C: T.Buffer((10,), "float32")):
    B = T.alloc_buffer((12,), "float32")
    for i in T.serial(5):
        for r in T.serial(4):
            B[i * 2 + r] = A[i * 2 + r] * 2.0
        for k in T.serial(2):
            C[i * 2 + k] = B[i * 2 + k] + B[i * 2 + k + 2]


def test_a_footprint_contains_all_accesses(lowered: Lowered) -> None:
    assert shapes(lowered(halo, plan_allocations)) == {"B": [4]}


@T.prim_func
def two_nests(A: T.Buffer((6,), "float32"), C: T.Buffer((6,), "float32")):
    B = T.alloc_buffer((6,), "float32")
    for i in T.serial(6):
        B[i] = A[i] * 2.0
    for i in T.serial(6):
        C[i] = B[5 - i]


def test_memory_between_nests_keeps_its_size(lowered: Lowered) -> None:
    done = lowered(two_nests, plan_allocations)
    assert type(done.body) is Allocate and shapes(done) == {"B": [6]}


@T.prim_func
def scalar(A: T.Buffer((6,), "float32"), C: T.Buffer((6,), "float32")):
    B = T.alloc_buffer((), "float32", scope="register")
    for i in T.serial(6):
        B[()] = A[i] * 2.0
        C[i] = B[()]


def test_a_scalar(lowered: Lowered) -> None:
    assert shapes(lowered(scalar, plan_allocations)) == {"B": []}
    assert shapes(lowered(scalar, plan_allocations, flatten_buffers)) == {"B": [1]}


@T.prim_func
def written_inside(A: T.Buffer((4, 6), "float32"), C: T.Buffer((4, 6), "float32")):
    for n in T.serial(2):
        B = T.allocate((4, 6), "float32", scope="workspace")
        for i, j in T.grid(4, 6):
            if n < 1:
                B[i, j] = A[i, j]
        for p in T.parallel(4):
            for j in T.serial(6):
                B[p, j] = A[p, j] * 2.0
        for i, j in T.grid(4, 6):
            C[i, j] = B[i, j]


@T.prim_func
def read_inside(A: T.Buffer((6,), "float32"), C: T.Buffer((6,), "float32")):
    B = T.alloc_buffer((6,), "float32", scope="register")
    for i in T.serial(6):
        B[i] = A[i]
    for p in T.parallel(6):
        C[p] = B[p]


@T.prim_func
def two_loops(A: T.Buffer((6,), "float32"), C: T.Buffer((6,), "float32")):
    B = T.alloc_buffer((1,), "float32", scope="workspace")
    for p in T.parallel(3):
        B[0] = A[p]
        C[p] = B[0]
    for q in T.parallel(3):
        B[0] = A[q + 3]
        C[q + 3] = B[0]


@T.prim_func
def nested(A: T.Buffer((2, 3), "float32"), C: T.Buffer((2, 3), "float32")):
    B = T.alloc_buffer((2, 1), "float32", scope="local")
    for p in T.parallel(2):
        B[p, 0] = A[p, 0]
        for q in T.parallel(3):
            C[p, q] = B[p, 0]


@pytest.mark.parametrize(
    ("func", "buffer", "loop"),
    [
        (written_inside, "B of scope workspace", "p"),
        (read_inside, "B of scope register", "p"),
        (two_loops, "B of scope workspace", "p"),
        (nested, "B of scope local", "q"),
    ],
    ids=lambda x: x.name if isinstance(x, PrimFunc) else "",
)
def test_private_memory_outside_a_parallel_loop_is_refused(func: PrimFunc, buffer: str, loop: str) -> None:
    message = (
        f"{func.name}: the buffer {buffer} is private to a thread, but it is allocated outside the parallel loop {loop} and used inside, "
        "where other threads cannot read it. Give it the scope global (set_scope), or compute it inside the loop (compute_at), "
        "or leave the loop serial"
    )
    with pytest.raises(BuildError) as refused:
        plan_allocations(func, TARGET)
    assert str(refused.value) == message


@T.prim_func
def each_its_own(A: T.Buffer((4, 6), "float32"), C: T.Buffer((4, 6), "float32")):
    B = T.alloc_buffer((4, 6), "float32", scope="workspace")
    R = T.allocate((1,), "float32", scope="register")
    R[0] = A[0, 0]
    for p in T.parallel(4):
        for j in T.serial(6):
            B[p, j] = A[p, j] * 2.0
        for j in T.serial(6):
            C[p, j] = B[p, 5 - j]
    C[0, 0] = R[0]


def test_private_memory_of_an_iteration(lowered: Lowered) -> None:
    """Buffers are allocated in the loop with all their uses, or outside a parallel loop that does not use them."""
    assert shapes(lowered(each_its_own, plan_allocations)) == {"B": [1, 6], "R": [1]}


@T.prim_func
def grouped(A: T.Buffer((12,), "float32"), C: T.Buffer((12,), "float32")):
    B = T.alloc_buffer((4, 3), "float32")
    for i in T.serial(12):
        B[i // 3, i % 3] = A[i]
        C[i] = B[i // 3, i % 3]


def test_a_fused_loop_keeps_one_element(lowered: Lowered) -> None:
    assert shapes(lowered(grouped, plan_allocations)) == {"B": [1, 1]}


@T.prim_func
def flat(A: T.Buffer((3, 4, 5), "float32"), C: T.Buffer((60,), "float32")):
    B = T.alloc_buffer((3, 20), "float32")
    for i, j, k in T.grid(3, 4, 5):
        B[i, j * 5 + k] = A[i, j, k]
    for i in T.serial(60):
        x = T.allocate((2, 2), "float32")
        x[1, i // 30] = B[i // 20, i % 20]
        C[i] = x[1, i // 30]


@T.prim_func
def fused(A: T.Buffer((2, 13), "int32"), C: T.Buffer((2, 13), "int32")):
    R = T.alloc_buffer((2, 13), "int32", scope="register")
    for t_0 in T.parallel(5):
        for t_1 in T.serial(6):
            if (t_0 * 6 + t_1) // 13 < 2:
                R[(t_0 * 6 + t_1) // 13, (t_0 * 6 + t_1) % 13] = A[(t_0 * 6 + t_1) // 13, (t_0 * 6 + t_1) % 13] * 2
            if t_0 * 6 + t_1 < 26:
                C[(t_0 * 6 + t_1) // 13, (t_0 * 6 + t_1) % 13] = R[(t_0 * 6 + t_1) // 13, (t_0 * 6 + t_1) % 13]


def test_conditions_on_quotients(lowered: Lowered) -> None:
    """A condition on the outer of two fused axes is one on the fused loop, so that the parallel loop carries no value."""
    assert shapes(lowered(fused, plan_allocations)) == {"R": [1, 1]}


@T.prim_func
def tiles(A: T.Buffer((16, 16), "int32"), C: T.Buffer((16, 16), "int32")):
    P = T.alloc_buffer((16, 16), "int32")
    B = T.alloc_buffer((16, 16), "int32", scope="amx.tile")
    R = T.alloc_buffer((16, 16), "int32", scope="workspace")
    for i in T.parallel(16):
        for j in T.serial(16):
            P[i, j] = A[i, j]
    for i, j in T.grid(16, 16):
        B[i, j] = P[i, j]
    for i, j in T.grid(16, 16):
        R[i, j] = B[i, j]
    for i, j in T.grid(16, 16):
        C[i, j] = R[i, j]


def test_tile_registers_are_allocated_from_their_first_to_their_last_use(lowered: Lowered) -> None:
    """Their configuration belongs to a thread, so that no parallel loop may be inside."""
    found = [n for n in walk(lowered(tiles, plan_allocations).body) if type(n) is Allocate and n.buffer.scope == "amx.tile"]
    assert [[type(n) for n in walk(x.body) if type(n) in (Allocate, For)] for x in found] == [[For] * 4]


def test_tile_registers_that_would_stay_with_the_function_are_refused(lowered: Lowered) -> None:
    """At most `MAX_NESTED` allocations are nested; other buffers are in memory."""

    def passing(count: int) -> PrimFunc:
        lines = [f'    B{n} = T.alloc_buffer((16,), "int32", scope="{"amx.tile" if n == count else "global"}")' for n in range(count + 1)]
        for source, result in [("A", "B{n}"), ("B{n}", "C")]:
            for n in range(count + 1):
                lines += ["    for i in T.serial(16):", f"        {result.format(n=n)}[i] = {source.format(n=n)}[i]"]
        head = '@T.prim_func\ndef f(A: T.Buffer((16,), "int32"), C: T.Buffer((16,), "int32")):\n'
        made = parse(head + "\n".join(lines) + "\n")
        assert isinstance(made, PrimFunc)
        return made

    assert lowered(passing(MAX_NESTED - 1), plan_allocations).allocs == ()
    with pytest.raises(BuildError, match=r"several nests use the buffer B32 of scope amx\.tile, .*Compute the blocks .* in one nest"):
        lowered(passing(MAX_NESTED), plan_allocations)


def test_flatten_buffers(lowered: Lowered, assert_golden: Golden) -> None:
    """Row-major and simplified: an index that was split into two dimensions is one variable again."""
    done = lowered(flat, flatten_buffers)
    assert all(len(b.shape) == 1 for b in done.buffers)
    assert_golden(str(done))
