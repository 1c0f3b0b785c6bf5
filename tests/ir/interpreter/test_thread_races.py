"""Test errors of threads in lockstep: races, divergence at barriers, and all other rejected programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Binary, Call, Cast, const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.interpreter.threads import InterpretError, run_threads
from tunesmith.ir.poly import Var, floordiv, less_than, poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import Block, Evaluate, For, If, Iter, Seq, store
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import transform

F32 = np.float32


def kernel(text: str) -> PrimFunc:
    """A function from its text without the decorator."""
    func = parse("@T.prim_func\n" + text)
    assert isinstance(func, PrimFunc)
    return func


def numbers(*shape: int) -> np.ndarray:
    """Small integers."""
    return (np.arange(np.prod(shape)) % 5).astype(F32).reshape(shape)


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


# ---- races


def refused(text: str, match: str, *arrays: Any) -> None:
    func = kernel(text)
    verify(func)
    with pytest.raises(InterpretError, match=match):
        run_threads(func, list(arrays))


def test_a_race_names_buffer_index_threads_and_statements() -> None:
    with pytest.raises(InterpretError) as caught:
        run_threads(without_barrier(REVERSED, 0), [numbers(64)])
    assert str(caught.value) == (
        "a race: S[31] (shared) is written by thread 31 and read by thread 0 with no barrier between\n"
        "written by: S[tx] = A[tx + bx * 32]\n"
        "read by: B[bx * 32 + tx] = S[31 - tx]\n"
        "in function reverse, at /bx/tx, where bx = 0, tx = 0, in thread 0 of block (0, 0, 0)"
    )


def test_a_read_before_a_write_races_for_every_reader() -> None:
    """All threads read the cell; the writer is the first, the last or another thread."""
    for writer in (0, 3, 7):
        refused(
            f"""
def late(A: T.Buffer((8,), "float32")):
    S = T.alloc_buffer((1,), "float32", scope="shared")
    for tx in T.thread_binding(8, "threadIdx.x"):
        if tx < 1:
            S[0] = T.float32(1)
        T.evaluate(T.barrier())
        A[tx] = S[0]
        if (tx - {writer}) * (tx - {writer}) < 1:
            S[0] = T.float32(2)
""",
            rf"S\[0\] \(shared\) is read by thread {0 if writer == 7 else 7} and written by thread {writer} with no",
        )


def test_stores_of_the_same_value_to_one_cell_race() -> None:
    refused(
        """
def same(A: T.Buffer((8,), "float32")):
    for tx in T.thread_binding(8, "threadIdx.x"):
        A[tx // 2] = T.float32(1)
""",
        r"a race: A\[0\] \(global\) is written by thread 0 and by thread 1 at once\nby: A\[tx // 2\] = T.float32\(1.0\)",
    )
    refused(
        """
def everyone(A: T.Buffer((8,), "float32")):
    for tx in T.thread_binding(8, "threadIdx.x"):
        A[tx] = T.float32(1)
        A[3] = T.float32(1)
""",
        r"a race: A\[3\] \(global\) is written by thread 3 and by thread 0 with no barrier between",
    )


def test_lanes_race_too() -> None:
    refused(
        """
def overlap(A: T.Buffer((9,), "float32")):
    for tx in T.thread_binding(2, "threadIdx.x"):
        A.vstore([tx * 4], T.Broadcast(T.float32(1), 5))
""",
        r"A\[4\] \(global\) is written by thread 0 and by thread 1 at once",
    )


@pytest.mark.parametrize(
    ("first", "second", "how"),
    [
        ("A[bx] = T.float32(0)", "B[bx] = A[1 - bx]", "read by thread 0 of block (0, 0, 0) and written by thread 0 of block (1, 0, 0)"),
        ("A[0] = T.float32(0)", "B[bx] = T.float32(1)", "written by thread 0 of block (0, 0, 0) and by thread 0 of block (1, 0, 0)"),
        (
            "B[bx] = A[0]",
            "if bx > 0:\n            A[0] = B[1]",
            "read by thread 0 of block (0, 0, 0) and written by thread 0 of block (1, 0, 0)",
        ),
        (
            "if bx < 1:\n            A[0] = T.float32(0)",
            "B[bx] = A[0]",
            "written by thread 0 of block (0, 0, 0) and read by thread 0 of block (1, 0, 0)",
        ),
    ],
)
def test_blocks_of_one_kernel_race(first: str, second: str, how: str) -> None:
    text = f"""
def blocks(A: T.Buffer((2,), "float32"), B: T.Buffer((2,), "float32")):
    for bx in T.thread_binding(2, "blockIdx.x"):
        {first}
        T.evaluate(T.barrier())
        {second}
"""
    with pytest.raises(InterpretError) as caught:
        run_threads(kernel(text), [np.zeros(2, F32)])
    assert f"is {how} and no barrier orders the blocks of a kernel\n" in str(caught.value)


def test_a_block_reads_what_it_has_read_and_another_writes() -> None:
    """The first reader is remembered even if the writer's block reads the cell later."""
    refused(
        """
def blocks(A: T.Buffer((1,), "float32"), B: T.Buffer((2,), "float32")):
    for bx in T.thread_binding(2, "blockIdx.x"):
        B[bx] = A[0]
        T.evaluate(T.barrier())
        if bx > 0:
            A[0] = B[bx]
""",
        r"A\[0\] \(global\) is read by thread 0 of block \(0, 0, 0\) and written by thread 0 of block \(1, 0, 0\)",
        np.zeros(1, F32),
    )


def test_private_memory_and_barriers_prevent_races() -> None:
    func = kernel("""
def turns(A: T.Buffer((4,), "float32")):
    for tx in T.thread_binding(4, "threadIdx.x"):
        R = T.allocate((1,), "float32", scope="local")
        for k in range(4):
            R[0] = A[(tx + k) % 4] + 1.0
            T.evaluate(T.barrier())
            A[(tx + k + 1) % 4] = R[0]
            T.evaluate(T.barrier())
""")
    np.testing.assert_array_equal(run_threads(func, [np.arange(4, dtype=F32)])[0], np.arange(4) + 4)
    with pytest.raises(InterpretError, match="race"):
        run_threads(without_barrier(func, 0), [np.zeros(4, F32)])


def test_unwritten_private_memory_is_refused() -> None:
    text = """
def unwritten(A: T.Buffer((4,), "float32")):
    for tx in T.thread_binding(4, "threadIdx.x"):
        R = T.allocate((2,), "float32", scope="local")
        if tx < 2:
            R[1] = T.float32(1)
        if tx < {limit}:
            A[tx] = R[{index}]
"""
    np.testing.assert_array_equal(run_threads(kernel(text.format(limit=2, index="1")), [np.zeros(4, F32)])[0], [1, 1, 0, 0])
    for index in ("1", "1 + tx // 4", "1 + tx // 3"):
        refused(text.format(limit=3, index=index), r"R\[1\] \(local\) is read by thread 2, which has not written it\n.*tx = 2")
    lanes = text.format(limit=3, index="1").replace("R[1]\n", "T.reduce_add(R.vload([0], lanes=2, stride=1, mask=tx))\n")
    refused(lanes, r"R\[0\] \(local\) is read by thread 1, which has not written it")


def test_undefined_shared_lanes_are_refused() -> None:
    refused(
        """
def unwritten(A: T.Buffer((4,), "float32")):
    S = T.alloc_buffer((8,), "float32", scope="shared")
    for tx in T.thread_binding(4, "threadIdx.x"):
        S[tx] = T.float32(1)
        T.evaluate(T.barrier())
        A[tx] = T.reduce_add(S.vload([1], lanes=4))
""",
        r"S\[4\] \(shared\) is read by thread 0, and no thread of the block has written it\nby: A\[tx\] = T.reduce_add",
    )


# ---- divergence


def test_a_barrier_in_a_divergent_branch_is_refused() -> None:
    refused(
        """
def part(A: T.Buffer((8,), "float32")):
    for ty in T.thread_binding(2, "threadIdx.y"):
        for tx in T.thread_binding(4, "threadIdx.x"):
            if tx < 3:
                A[ty * 4 + tx] = T.float32(1)
                T.evaluate(T.barrier())
""",
        r"a barrier is reached by thread 0 \(x = 0, y = 0\) and not by thread 3 \(x = 3, y = 0\); a barrier needs all threads",
    )


def test_a_barrier_is_refused_in_a_divergent_loop_and_accepted_in_a_uniform_one() -> None:
    text = """
def part(A: T.Buffer((8,), "float32")):
    for tx in T.thread_binding(8, "threadIdx.x"):
        for i in range({extent}):
            A[(tx + i) % 8] = T.float32(1)
            T.evaluate(T.barrier())
"""
    refused(text.format(extent="tx // 7 + 1"), r"a barrier is reached by thread 7 and not by thread 0; .*\n.* where tx = 7, i = 1")
    np.testing.assert_array_equal(run_threads(kernel(text.format(extent="tx // 8 + 2")), [])[0], np.ones(8))


def test_a_barrier_in_a_uniform_branch_is_accepted() -> None:
    func = kernel("""
def together(A: T.Buffer((8,), "float32")):
    for tx in T.thread_binding(8, "threadIdx.x"):
        if tx < 8 + tx // 4:
            A[tx] = T.float32(1)
            T.evaluate(T.barrier())
            A[7 - tx] = T.float32(2)
        if tx > 8:
            T.evaluate(T.barrier())
""")
    np.testing.assert_array_equal(run_threads(func, [])[0], np.full(8, 2))


def test_a_shuffle_needs_whole_warps() -> None:
    text = """
def part(A: T.Buffer((96,), "float32")):
    for tx in T.thread_binding(96, "threadIdx.x"):
        if tx < {limit}:
            A[tx] = T.shuffle_xor_2(T.cast(tx, "float32"))
"""
    np.testing.assert_array_equal(run_threads(kernel(text.format(limit=64)), [])[0][:64], np.arange(64) ^ 2)
    refused(text.format(limit=60), r"shuffle_xor_2 is reached by thread 32 and not by thread 60; a shuffle needs all threads of a warp")


def test_a_shuffle_with_missing_threads_is_refused() -> None:
    text = """
def short(A: T.Buffer((40,), "float32")):
    for tx in T.thread_binding(40, "threadIdx.x"):
        A[tx] = T.shuffle_xor_{n}(T.cast(tx, "float32"))
"""
    np.testing.assert_array_equal(run_threads(kernel(text.format(n=4)), [])[0], np.arange(40) ^ 4)
    refused(text.format(n=8), "shuffle_xor_8 of thread 32 reads thread 40, and the block has 40 threads")


# ---- other refusals


def test_accesses_out_of_range_are_refused_with_their_thread() -> None:
    text = """
def far(A: T.Buffer((4, 4), "float32")):
    for bx in T.thread_binding(2, "blockIdx.x"):
        for tx in T.thread_binding(4, "threadIdx.x"):
            for i in range(2):
                {statement}
"""

    def far(statement: str, access: str, bx: int, tx: int, i: int) -> None:
        location = rf"in function far, at /bx/tx/i, where bx = {bx}, tx = {tx}, i = {i}, in thread {tx} of block \({bx}, 0, 0\)"
        with pytest.raises(InterpretError, match=rf"{access} is out of range: the shape is \(4, 4\)\n{location}"):
            run_threads(kernel(text.format(statement=statement)), [], check_races=False)

    far("A[bx, tx + bx + i] = T.float32(1)", r"store to A\[0, 4\]", 0, 3, 1)
    far("A[(bx * 2 + i) * (tx + 2) // 3, tx] = T.float32(1)", r"store to A\[4, 2\]", 1, 2, 1)
    far("A.vstore([bx, tx + bx + i], T.Broadcast(T.float32(1), 2), stride=4, mask=1)", r"vector store to A\[0, 4\]", 0, 3, 1)
    far("if tx < 3:\n                    A[bx, tx + bx + i] = T.float32(1)", r"store to A\[1, 4\]", 1, 2, 1)
    far("if bx * 4 + tx > 5 - i:\n                    A[0, 0] = A[bx, tx + bx + i]", r"load of A\[1, 4\]", 1, 3, 0)


def test_guarded_threads_may_have_indices_out_of_range() -> None:
    func = kernel("""
def edge(A: T.Buffer((5,), "float32"), B: T.Buffer((5,), "float32")):
    for tx in T.thread_binding(8, "threadIdx.x"):
        if tx < 5:
            B[tx] = A[4 - tx]
            B.vstore([tx], A.vload([4 - tx], lanes=1 + 1, mask=1), mask=1)
""")
    np.testing.assert_array_equal(run_threads(func, [numbers(5)])[1], numbers(5)[::-1])


def test_bindings_out_of_range_are_refused() -> None:
    vi, tx = Var("vi"), Var("tx")
    a = Buffer("A", (4,))
    block = Block("copy", (Iter(vi, poly(4), "S"),), (poly(tx) * 2,), (), None, store(a, (vi,), const(1, "float32")))
    message = r"the bindings \(4,\) are out of range: the extents are \(4,\); a guard is missing\n.*/tx/copy, where tx = 2, in thread 2"
    with pytest.raises(InterpretError, match=message):
        run_threads(PrimFunc("f", (a,), (), For(tx, poly(4), block, "thread", "threadIdx.x")), [])
    own = block.with_(iters=(Iter(vi, poly(tx) + 1, "S"),), bindings=(poly(tx),))
    np.testing.assert_array_equal(run_threads(PrimFunc("f", (a,), (), For(tx, poly(4), own, "thread", "threadIdx.x")), [])[0], np.ones(4))
    own = own.with_(bindings=(poly(tx) * 2,))
    with pytest.raises(InterpretError, match=r"the bindings \(2,\) are out of range: the extents are \(2,\)"):
        run_threads(PrimFunc("f", (a,), (), For(tx, poly(4), own, "thread", "threadIdx.x")), [])
    guarded = block.with_(predicate=(poly(tx) - 2,))
    done = run_threads(PrimFunc("f", (a,), (), For(tx, poly(4), guarded, "thread", "threadIdx.x")), [np.zeros(4, F32)])
    np.testing.assert_array_equal(done[0], [1, 0, 1, 0])


def test_extents_that_disagree_are_refused() -> None:
    text = """
def disagree(A: T.Buffer((8,), "float32")):
    for tx in T.thread_binding(8, "threadIdx.x"):
        A[tx] = T.float32(1)
        for ty in T.thread_binding({n}, "threadIdx.x"):
            A[ty] = T.float32(1)
"""
    refused(text.format(n=4), "extents of threadIdx.x differ in one kernel: 8 in the loop tx, 4 in the loop ty")
    np.testing.assert_array_equal(run_threads(kernel(text.format(n=8)), [])[0], np.ones(8))


def test_too_many_threads_are_refused() -> None:
    refused(
        """
def many(A: T.Buffer((8,), "float32")):
    for ty in T.thread_binding(128, "threadIdx.y"):
        for tx in T.thread_binding(64, "threadIdx.x"):
            A[0] = T.float32(1)
""",
        "a block of 8192 threads; this interpreter runs at most 4096",
    )


def test_no_threads_and_no_blocks_do_nothing() -> None:
    for extents in ((0, 2), (2, 0)):
        text = """
def none(A: T.Buffer((2,), "float32")):
    for bx in T.thread_binding({}, "blockIdx.x"):
        for tx in T.thread_binding({}, "threadIdx.x"):
            A[tx] = T.float32(1)
"""
        np.testing.assert_array_equal(run_threads(kernel(text.format(*extents)), [np.zeros(2, F32)])[0], [0, 0])


def test_integer_division_by_zero_is_zero_in_every_thread() -> None:
    a, b, tx = Buffer("A", (4,), "int32"), Buffer("B", (4,), "int32"), Var("tx")
    divide = store(b, (tx,), Binary("mod", const(7, "int32"), a[tx]))
    given = np.array([2, 3, 4, 0], np.int32)
    func = PrimFunc("f", (a, b), (), For(tx, poly(4), If(less_than(tx, 3), divide), "thread", "threadIdx.x"))
    np.testing.assert_array_equal(run_threads(func, [given])[1][:3], [1, 1, 3])
    np.testing.assert_array_equal(
        run_threads(PrimFunc("f", (a, b), (), For(tx, poly(4), divide, "thread", "threadIdx.x")), [given])[1], [1, 1, 3, 0]
    )
    indices = store(b, (tx,), Cast("int32", floordiv(poly(tx) + 3, poly(tx) - 1)))
    both = PrimFunc("f", (a, b), (), For(tx, poly(4), indices, "thread", "threadIdx.x"))
    np.testing.assert_array_equal(run_threads(both, [given])[1], [-3, 0, 5, 3])


def test_arguments_are_matched_as_by_the_serial_interpreter() -> None:
    with pytest.raises(InterpretError, match="no parameter is named C; buffer parameters are A, B"):
        run_threads(REVERSED, {"C": numbers(64)})
    with pytest.raises(InterpretError, match=r"the buffer A is float32 of shape \(64,\)"):
        run_threads(REVERSED, [numbers(32)])


def test_the_serial_interpreter_refers_to_run_threads() -> None:
    with pytest.raises(InterpretError, match="use ir.interpreter.threads.run_threads"):
        run(REVERSED, [numbers(64)])
