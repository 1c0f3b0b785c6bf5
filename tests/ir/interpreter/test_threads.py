"""Test threads in lockstep: correct kernels, the same kernels with each barrier removed, and agreement with the serial interpreter."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Broadcast, Call, IsNegative, Select, const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex, IndirectVar
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.interpreter.threads import InterpretError, run_threads
from tunesmith.ir.poly import Param, Var, less_than, poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import Allocate, Block, BufferStore, Evaluate, For, If, Seq, Stmt, seq, store
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import transform, walk
from tunesmith.lower.pipelines import CPU
from tunesmith.support.seeds import stream

F32 = np.float32


def kernel(text: str) -> PrimFunc:
    """A function from its text without the decorator."""
    func = parse("@T.prim_func\n" + text)
    assert isinstance(func, PrimFunc)
    return func


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Small integers, so that sums are exact in any order."""
    return stream(seed, "threads").integers(-3, 4, shape).astype(F32)


def is_barrier(s: Any) -> bool:
    return type(s) is Evaluate and type(s.value) is Call and s.value.name == "barrier"


def without_barrier(func: PrimFunc, n: int) -> PrimFunc:
    """The function without its barrier number `n`."""
    seen = -1

    def on_seq(s: Seq, recurse: Any) -> Seq:
        nonlocal seen
        out = []
        for x in s.stmts:
            seen += is_barrier(x)
            if not (is_barrier(x) and seen == n):
                out.append(recurse(x))
        return Seq(tuple(out))

    return func.with_(body=transform(func.body, {Seq: on_seq}))


REVERSED = kernel("""
def reverse(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for bx in T.thread_binding(2, "blockIdx.x"):
        S = T.allocate((32,), "float32", scope="shared")
        for tx in T.thread_binding(32, "threadIdx.x"):
            S[tx] = A[bx * 32 + tx]
            T.evaluate(T.barrier())
            B[bx * 32 + tx] = S[31 - tx]
""")

DOUBLE_BUFFERED = kernel("""
def rotate(A: T.Buffer((5, 32), "float32"), B: T.Buffer((5, 32), "float32")):
    S = T.alloc_buffer((2, 32), "float32", scope="shared")
    for tx in T.thread_binding(32, "threadIdx.x"):
        S[0, tx] = A[0, tx]
        for k in range(5):
            T.evaluate(T.barrier())
            if k < 4:
                S[(k + 1) % 2, tx] = A[k + 1, tx]
            B[k, tx] = S[k % 2, (tx + 1) % 32]
""")

COOPERATIVE = kernel("""
def shared_copy(A: T.Buffer((4, 6), "float32"), B: T.Buffer((24,), "float32")):
    S = T.alloc_buffer((4, 6), "float32", scope="shared")
    for ty in T.thread_binding(4, "threadIdx.y"):
        for tx in T.thread_binding(3, "threadIdx.x"):
            for n in range(2):
                for ty2 in T.thread_binding(4, "threadIdx.y"):
                    for tx2 in T.thread_binding(3, "threadIdx.x"):
                        S[(n * 12 + ty2 * 3 + tx2) // 6, (n * 12 + ty2 * 3 + tx2) % 6] = A[ty2, n * 3 + tx2]
            T.evaluate(T.barrier())
            for n in range(2):
                B[n * 12 + ty * 3 + tx] = S[3 - (n * 12 + ty * 3 + tx) // 6, 5 - (n * 12 + ty * 3 + tx) % 6]
""")

TREE = kernel("""
def total(A: T.Buffer((3, 64), "float32"), B: T.Buffer((3,), "float32")):
    for bx in T.thread_binding(3, "blockIdx.x"):
        S = T.allocate((64,), "float32", scope="shared")
        for tx in T.thread_binding(64, "threadIdx.x"):
            S[tx] = A[bx, tx]
            T.evaluate(T.barrier())
            if tx < 32:
                S[tx] = S[tx] + S[tx + 32]
            T.evaluate(T.barrier())
            if tx < 16:
                S[tx] = S[tx] + S[tx + 16]
            T.evaluate(T.barrier())
            if tx < 1:
                R = T.allocate((1,), "float32", scope="local")
                R[0] = T.float32(0)
                for n in range(16):
                    R[0] = R[0] + S[n]
                B[bx] = R[0]
""")

SHUFFLED = kernel("""
def total(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
    S = T.alloc_buffer((4,), "float32", scope="shared")
    for tx in T.thread_binding(128, "threadIdx.x"):
        R = T.allocate((1,), "float32", scope="local")
        R[0] = A[tx]
        R[0] = R[0] + T.shuffle_xor_16(R[0])
        R[0] = R[0] + T.shuffle_xor_8(R[0])
        R[0] = R[0] + T.shuffle_xor_4(R[0])
        R[0] = R[0] + T.shuffle_xor_2(R[0])
        R[0] = R[0] + T.shuffle_xor_1(R[0])
        if tx % 32 < 1:
            S[tx // 32] = R[0]
        T.evaluate(T.barrier())
        B[tx] = S[0] + S[1] + S[2] + S[3]
""")

MATMUL = kernel("""
def matmul(A: T.Buffer((16, 12), "float32"), B: T.Buffer((12, 16), "float32"), C: T.Buffer((16, 16), "float32")):
    for by in T.thread_binding(2, "blockIdx.y"):
        for bx in T.thread_binding(2, "blockIdx.x"):
            SA = T.allocate((8, 4), "float32", scope="shared")
            SB = T.allocate((4, 8), "float32", scope="shared.dyn")
            for ty in T.thread_binding(4, "threadIdx.y"):
                for tx in T.thread_binding(4, "threadIdx.x"):
                    acc = T.allocate((2, 2), "float32", scope="local")
                    for i, j in T.grid(2, 2):
                        acc[i, j] = T.float32(0)
                    for k0 in range(3):
                        for f in range(2):
                            SA[ty * 2 + f, tx] = A[by * 8 + ty * 2 + f, k0 * 4 + tx]
                            SB[ty, tx * 2 + f] = B[k0 * 4 + ty, bx * 8 + tx * 2 + f]
                        T.evaluate(T.barrier())
                        for k, i, j in T.grid(4, 2, 2):
                            acc[i, j] = acc[i, j] + SA[ty * 2 + i, k] * SB[k, tx * 2 + j]
                        T.evaluate(T.barrier())
                    for i, j in T.grid(2, 2):
                        C[by * 8 + ty * 2 + i, bx * 8 + tx * 2 + j] = acc[i, j]
""")

RIGHT: dict[str, tuple[PrimFunc, list[np.ndarray], np.ndarray]] = {
    "reversed": (REVERSED, [numbers(64)], numbers(64).reshape(2, 32)[:, ::-1].reshape(64)),
    "double_buffered": (DOUBLE_BUFFERED, [numbers(5, 32)], np.roll(numbers(5, 32), -1, axis=1)),
    "cooperative": (COOPERATIVE, [numbers(4, 6)], np.concatenate([numbers(4, 6)[:, :3].ravel(), numbers(4, 6)[:, 3:].ravel()])[::-1]),
    "tree": (TREE, [numbers(3, 64)], numbers(3, 64).sum(axis=1)),
    "shuffled": (SHUFFLED, [numbers(128)], np.full(128, numbers(128).sum(), F32)),
    "matmul": (MATMUL, [numbers(16, 12), numbers(12, 16, seed=1)], numbers(16, 12) @ numbers(12, 16, seed=1)),
}
BARRIERS = [(name, n) for name, (func, _, _) in RIGHT.items() for n in range(sum(map(is_barrier, walk(func.body))))]


# ---- results of programs


@pytest.mark.parametrize("check_races", [True, False])
@pytest.mark.parametrize("name", RIGHT)
def test_correct_kernels_compute_their_reference(name: str, check_races: bool) -> None:
    func, inputs, wanted = RIGHT[name]
    verify(func)
    kept = [a.copy() for a in inputs]
    done = run_threads(func, inputs, check_races=check_races)
    np.testing.assert_array_equal(done[-1], wanted)
    for given, before in zip(inputs, kept, strict=True):
        np.testing.assert_array_equal(given, before)


@pytest.mark.parametrize(("name", "n"), BARRIERS)
def test_every_barrier_is_needed(name: str, n: int) -> None:
    func, inputs, _ = RIGHT[name]
    with pytest.raises(InterpretError, match=r"a race: .* with no barrier between\n"):
        run_threads(without_barrier(func, n), inputs)


def test_lockstep_is_correct_before_barriers_are_inserted() -> None:
    func, inputs, wanted = RIGHT["cooperative"]
    np.testing.assert_array_equal(run_threads(without_barrier(func, 0), inputs, check_races=False)[-1], wanted)


def test_a_shuffle_over_one_warp() -> None:
    func = kernel("""
def swap(A: T.Buffer((32,), "float32"), B: T.Buffer((32,), "float32")):
    for tx in T.thread_binding(32, "threadIdx.x"):
        B[tx] = T.shuffle_xor_4(A[tx]) + T.shuffle_xor_1(T.float32(100))
""")
    a = numbers(32)
    np.testing.assert_array_equal(run_threads(func, [a])[1], a[np.arange(32) ^ 4] + 100)


def test_warps_follow_the_linear_index_of_two_dimensional_blocks() -> None:
    func = kernel("""
def swap(A: T.Buffer((4, 16), "float32"), B: T.Buffer((4, 16), "float32")):
    for ty in T.thread_binding(4, "threadIdx.y"):
        for tx in T.thread_binding(16, "threadIdx.x"):
            B[ty, tx] = T.shuffle_xor_16(A[ty, tx])
""")
    a = numbers(4, 16)
    np.testing.assert_array_equal(run_threads(func, [a])[1], a[[1, 0, 3, 2]])


def test_blocks_and_threads_of_three_dimensions() -> None:
    func = kernel("""
def place(A: T.Buffer((2, 3, 2, 3, 2, 4), "int32")):
    for bz in T.thread_binding(2, "blockIdx.z"):
        for by in T.thread_binding(3, "blockIdx.y"):
            for bx in T.thread_binding(2, "blockIdx.x"):
                for tz in T.thread_binding(3, "threadIdx.z"):
                    for ty in T.thread_binding(2, "threadIdx.y"):
                        for tx in T.thread_binding(4, "threadIdx.x"):
                            A[bz, by, bx, tz, ty, tx] = T.cast(((bz * 3 + by) * 2 + bx) * 24 + (tz * 2 + ty) * 4 + tx, "int32")
""")
    np.testing.assert_array_equal(run_threads(func, [])[0].ravel(), np.arange(288))


def test_divergent_loops_and_branches() -> None:
    """Threads run different numbers of iterations and take different sides of an if."""
    func = kernel("""
def count(A: T.Buffer((7,), "int64"), B: T.Buffer((7,), "int64")):
    for tx in T.thread_binding(7, "threadIdx.x"):
        R = T.allocate((2,), "int64", scope="local")
        R[0] = T.int64(0)
        R[1] = T.int64(0)
        for i in range(tx * 2 % 5):
            for j in range(i + 1):
                if (tx + i) % 2 < 1:
                    R[0] = R[0] + 1
                else:
                    if j < tx:
                        R[1] = R[1] + j
        A[tx] = R[0]
        B[tx] = R[1]
""")
    wanted = np.zeros((2, 7), np.int64)
    for tx in range(7):
        for i in range(tx * 2 % 5):
            for j in range(i + 1):
                if (tx + i) % 2 < 1:
                    wanted[0, tx] += 1
                elif j < tx:
                    wanted[1, tx] += j
    done = run_threads(func, [])
    np.testing.assert_array_equal(done, wanted)


def test_virtual_threads_are_run_by_each_thread() -> None:
    func = kernel("""
def copy(A: T.Buffer((24,), "float32"), B: T.Buffer((24,), "float32")):
    for vx in T.thread_binding(3, "vthread.x"):
        for tx in T.thread_binding(8, "threadIdx.x"):
            for vy in T.thread_binding(1, "vthread.y"):
                R = T.allocate((1,), "float32", scope="register")
                R[0] = A[vx * 8 + tx]
                B[vx * 8 + tx] = R[0] + R[vy]
""")
    np.testing.assert_array_equal(run_threads(func, [numbers(24)])[1], 2 * numbers(24))


def test_vector_accesses() -> None:
    func = kernel("""
def scale(A: T.Buffer((4, 32), "float32"), B: T.Buffer((128,), "float32"), C: T.Buffer((70,), "float32"), D: T.Buffer((8,), "float32")):
    S = T.alloc_buffer((130,), "float32", scope="shared")
    for tx in T.thread_binding(32, "threadIdx.x"):
        R = T.allocate((8,), "float32", scope="local")
        S.vstore([tx * 4], A.vload([tx // 8, tx % 8 * 4], lanes=4))
        T.evaluate(T.barrier())
        R.vstore([0], S.vload([tx], lanes=4, stride=32))
        R.vstore([4], R.vload([3], lanes=4, stride=-1))
        B.vstore([tx], R.vload([0], lanes=4), stride=32)
        C.vstore([tx * 4], R.vload([4], lanes=4), mask=70 - tx * 4)
        if tx < 2:
            D.vstore([tx * 4], S.vload([124], lanes=4))
""")
    a = numbers(4, 32)
    _, b, c, d = run_threads(func, [a])
    np.testing.assert_array_equal(b, a.ravel())
    np.testing.assert_array_equal(c, a[::-1].T.ravel()[:70])
    np.testing.assert_array_equal(d, np.tile(a[3, 28:], 2))


def test_blocks_with_init_and_predicate_bound_to_threads() -> None:
    func = kernel("""
def rows(A: T.Buffer((13, 9), "float32"), B: T.Buffer((13,), "float32")):
    for bx in T.thread_binding(4, "blockIdx.x"):
        for tx in T.thread_binding(4, "threadIdx.x"):
            for k0, k1 in T.grid(3, 4):
                with T.block("sum"):
                    vi = T.axis.spatial(13, bx * 4 + tx)
                    vk = T.axis.reduce(9, k0 * 4 + k1)
                    T.where(bx * 4 + tx < 13)
                    T.where(k0 * 4 + k1 < 9)
                    with T.init():
                        B[vi] = T.float32(0)
                    B[vi] = B[vi] + A[vi, vk]
""")
    np.testing.assert_array_equal(run_threads(func, [numbers(13, 9)])[1], numbers(13, 9).sum(axis=1))


def test_kernels_run_in_order_and_each_has_its_own_threads() -> None:
    func = kernel("""
def twice(A: T.Buffer((12,), "float32"), C: T.Buffer((12,), "float32")):
    B = T.alloc_buffer((12,), "float32")
    for tx in T.thread_binding(12, "threadIdx.x"):
        B[11 - tx] = A[tx]
    for bx in T.thread_binding(3, "blockIdx.x"):
        for tx in T.thread_binding(4, "threadIdx.x"):
            C[bx * 4 + tx] = B[bx * 4 + tx]
    for i in range(12):
        C[i] = C[i] * 2.0
""")
    np.testing.assert_array_equal(run_threads(func, {"A": numbers(12)})[1], 2 * numbers(12)[::-1])


def test_only_the_chosen_side_of_a_select_is_evaluated() -> None:
    """Per thread, per lane, and both: the other side contains undefined loads and divisions."""
    a, b, c, tx = Buffer("A", (6,), "int32"), Buffer("B", (8,), "int32"), Buffer("C", (16,), "int32"), Var("tx")
    x = poly(tx)
    seven = const(7, "int32")
    inner = Select(less_than(x, 4), Binary("floordiv", seven, a[x]), a[x - 4])
    whole = Select(less_than(x, 6), inner, const(-1, "int32"))
    lanes = IsNegative(x * 2 - 5, 2, poly(1))
    vector = Select(lanes, Binary("floordiv", Broadcast(seven, 2), BufferLoad(a, (x * 2,), 2)), Broadcast(const(9, "int32"), 2))
    scalar = Select(less_than(x, 1), BufferLoad(a, (x * 2,), 2), vector)
    body = seq([store(b, (x,), whole), BufferStore(c, (x * 2,), scalar)])
    func = PrimFunc("f", (a, b, c), (), For(tx, poly(8), body, "thread", "threadIdx.x"))
    verify(func)
    given = np.array([1, 2, 3, 4, 5, 0], np.int32)
    _, done, pairs = run_threads(func, [given])
    np.testing.assert_array_equal(done, [7, 3, 2, 1, 1, 2, -1, -1])
    np.testing.assert_array_equal(pairs, [1, 2, 2, 1, 1, *[9] * 11])


def test_indirect_indices_differ_between_threads() -> None:
    a, rows, out, tx, at = Buffer("A", (5,)), Buffer("R", (4,), "int64"), Buffer("B", (4,)), Var("tx"), IndirectVar("at")
    value = IndirectIndex(at, poly(5), rows[tx], a[at])
    func = PrimFunc("f", (a, rows, out), (), For(tx, poly(4), If(less_than(tx, 3), store(out, (tx,), value)), "thread", "threadIdx.x"))
    verify(func)
    table = np.array([4, 0, 2, 99])
    done = run_threads(func, [numbers(5), table, np.zeros(4, F32)])[2]
    np.testing.assert_array_equal(done, [*numbers(5)[[4, 0, 2]], 0])
    with pytest.raises(InterpretError, match=r"the indirect index 5 is out of range: its extent is 5\n.*tx = 1, in thread 1"):
        run_threads(func, [numbers(5), np.array([0, 5, 0, 0])])


def test_bfloat16_rounds_in_each_thread() -> None:
    a, b, tx = Buffer("A", (4,), "bfloat16"), Buffer("B", (4,), "bfloat16"), Var("tx")
    func = PrimFunc("f", (a, b), (), For(tx, poly(4), store(b, (tx,), a[tx] * a[tx]), "thread", "threadIdx.x"))
    serial = PrimFunc("f", (a, b), (), For(tx, poly(4), store(b, (tx,), a[tx] * a[tx])))
    given = np.array([1.0078125, 3.140625, -0.1, 250.0], F32)
    done = run_threads(func, [given])[1]
    np.testing.assert_array_equal(done, run(serial, [given])[1])
    assert not np.array_equal(done, given * given)


def test_reductions_over_lanes() -> None:
    func = kernel("""
def rows(A: T.Buffer((6, 4), "float32"), B: T.Buffer((6,), "float32")):
    for tx in T.thread_binding(6, "threadIdx.x"):
        B[tx] = T.reduce_add(A.vload([tx, 0], lanes=4)) + T.reduce_max(A.vload([0, 0], lanes=4))
""")
    a = numbers(6, 4)
    np.testing.assert_array_equal(run_threads(func, [a])[1], a.sum(axis=1) + a[0].max())


def test_shared_memory_is_poisoned_at_the_start_of_each_block() -> None:
    func = kernel("""
def leak(A: T.Buffer((2, 4), "float32")):
    for bx in T.thread_binding(2, "blockIdx.x"):
        for tx in T.thread_binding(4, "threadIdx.x"):
            S = T.allocate((4,), "float32", scope="shared")
            if bx < 1:
                S[tx] = T.float32(1)
            A[bx, tx] = S[tx]
""")
    np.testing.assert_array_equal(run_threads(func, [], check_races=False)[0], [[1] * 4, [np.nan] * 4])
    with pytest.raises(InterpretError, match=r"S\[0\] \(shared\) is read by thread 0, and no thread of the block has written it\nby: A"):
        run_threads(func, [])


def test_a_shared_allocation_in_a_loop_is_the_same_memory_each_time() -> None:
    func = kernel("""
def rotate(A: T.Buffer((3, 4), "float32"), B: T.Buffer((3, 4), "float32")):
    for tx in T.thread_binding(4, "threadIdx.x"):
        for k in range(3):
            S = T.allocate((4,), "float32", scope="shared")
            S[tx] = A[k, tx]
            T.evaluate(T.barrier())
            B[k, tx] = S[3 - tx]
""")
    with pytest.raises(InterpretError, match=r"a race: S\[0\] \(shared\) is read by thread 3 and written by thread 0 with no barrier"):
        run_threads(func, [numbers(3, 4)])
    np.testing.assert_array_equal(run_threads(func, [numbers(3, 4)], check_races=False)[1], numbers(3, 4)[:, ::-1])


def test_scratch_whose_shape_depends_on_a_loop() -> None:
    n, i, j, tx = Var("n"), Var("i"), Var("j"), Var("tx")
    out = Buffer("A", (3, 4), "int64")
    scratch = Buffer("L", (poly(n) + 1, poly(2)), "int64", "local")
    fill = For(i, poly(n) + 1, store(scratch, (i, 1), poly(i) * 10 + poly(tx)))
    body = Allocate(scratch, seq([fill, store(out, (n, tx), scratch[n, 1])]))
    func = PrimFunc("f", (out,), (), For(tx, poly(4), For(n, poly(3), body), "thread", "threadIdx.x"))
    verify(func)
    np.testing.assert_array_equal(run_threads(func, [])[0], np.arange(3)[:, None] * 10 + np.arange(4))
    bad = Buffer("L", (poly(tx) + 1,), "int64", "local")
    func = PrimFunc("f", (out,), (), For(tx, poly(4), Allocate(bad, store(out, (0, tx), poly(j) - poly(j))), "thread", "threadIdx.x"))
    with pytest.raises(InterpretError, match=r"the shape of L \(local\), \(1 \+ tx,\), must be numbers that are the same for all threads"):
        run_threads(func, [])


# ---- agreement with the serial interpreter


@pytest.mark.parametrize("name", ["matmul", "matmul_bias_relu", "conv_relu", "conv_relu_strided", "softmax", "tiled_matmul"])
def test_programs_without_threads_mean_the_same(programs: ModuleType, name: str) -> None:
    program = programs.SMALL[name]()
    arrays = program.arrays(1)
    for ours, theirs in zip(run_threads(program.func, arrays), run(program.func, arrays), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def in_threads(func: PrimFunc) -> PrimFunc:
    """The program with the first loop of each nest bound to threads and the second to blocks, if both are parallel."""

    def bind(s: Any) -> Stmt:
        parallel = _spatial(s) and _spatial(s.body)
        if not parallel:
            return s.with_(kind="thread", thread="threadIdx.x") if _spatial(s) else s
        return s.with_(kind="thread", thread="threadIdx.x", body=s.body.with_(kind="thread", thread="blockIdx.x"))

    return func.with_(body=seq([bind(s) for s in (func.body.stmts if isinstance(func.body, Seq) else (func.body,))]))


def _spatial(s: Any) -> bool:
    blocks = [b for b in walk(s) if type(b) is Block]
    used = [i.kind == "S" for b in blocks for i, e in zip(b.iters, b.bindings, strict=True) if type(s) is For and s.var in e.vars]
    return bool(used) and all(used)


@pytest.mark.parametrize("name", ["matmul", "matmul_bias_relu", "conv_relu", "softmax", "tiled_matmul"])
def test_loops_bound_to_threads_mean_the_same(programs: ModuleType, name: str) -> None:
    program = programs.SMALL[name]()
    arrays, bound = program.arrays(1), in_threads(program.func)
    assert sum(n.thread == "threadIdx.x" for n in walk(bound.body) if type(n) is For) >= 1
    for ours, theirs in zip(run_threads(bound, arrays), run(program.func, arrays), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("n", [0, 3, 5, 8])
def test_every_stage_of_lowering_means_the_same(schedules: ModuleType, n: int) -> None:
    """Schedules of the CPU rules, which lower to vectors, masks, guards and expanded intrinsics."""
    text = schedules.WORKLOADS[n]
    case = schedules.rule_cases(text)[-1]
    row = schedules.biased_rows(case.sketch, case.workload.func, 1, stream(n, "threads", text))[0]
    func, inputs = case.sketch.concretize(row), schedules.integers(case.workload, n)
    for p in (None, *CPU.passes):
        func = func if p is None else p(func, schedules.target())
        flat = len(func.params[0].shape) == 1  # type: ignore[union-attr]
        given = [a.reshape(-1) if flat else a for a in inputs]
        for ours, theirs in zip(run_threads(func, given), run(func, given), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_more_loops_than_python_nests_inside_threads() -> None:
    loops = [Var(f"i{n}") for n in range(40)]
    tx, total = Var("tx"), sum((poly(v) for v in loops), poly(0))
    a = Buffer("A", (41, 3), "int32")
    body: Stmt = store(a, (total, tx), Binary("add", a[total, tx], const(1, "int32")))
    for n, v in enumerate(reversed(loops)):
        body = For(v, poly(2 if n % 8 == 0 else 1), If(less_than(poly(v), 2), If(less_than(poly(v) - poly(tx), 2), body)))
    done = run_threads(PrimFunc("f", (a,), (), For(tx, poly(3), body, "thread", "threadIdx.x")), [np.zeros((41, 3), np.int32)])
    np.testing.assert_array_equal(done[0][:6].T, [[1, 5, 10, 10, 5, 1]] * 3)


def test_params_and_symbolic_shapes_take_values() -> None:
    p, n, tx, i = Param("p", (2, 4)), Var("n"), Var("tx"), Var("i")
    a = Buffer("A", (poly(n) * p,), "int64")
    body = For(tx, poly(p), For(i, poly(n), store(a, (poly(i) * p + tx,), poly(tx) * 10 + i)), "thread", "threadIdx.x")
    func = PrimFunc("f", (a, n), (), body)
    np.testing.assert_array_equal(run_threads(func, [], {p: 2, n: 3})[0], [0, 10, 1, 11, 2, 12])
    with pytest.raises(InterpretError, match=r"the value 3 is not in the domain of the Param p: \(2, 4\)"):
        run_threads(func, [], {p: 3, n: 3})
    with pytest.raises(InterpretError, match="the loop tx is bound to threadIdx.x, so its extent must be a number, got p"):
        run_threads(PrimFunc("f", (Buffer("A", (4,)),), (), body), [], {n: 3})
