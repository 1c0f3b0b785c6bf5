"""insert_barriers: barriers between conflicting accesses of threads, and no others."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.threads import InterpretError, run_threads
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import Evaluate, If, Seq, Stmt, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.insert_barriers import insert_barriers
from tunesmith.lower.pipelines import GPU
from tunesmith.search.space.rules import gpu_fallback
from tunesmith.search.space.rules_table import generate
from tunesmith.search.space.sketch import collect
from tunesmith.support.errors import BuildError
from tunesmith.support.seeds import stream

Threaded = Callable[..., PrimFunc]
Golden = Callable[..., None]
OPENCL, CUDA = Target("opencl"), Target("cuda -arch=sm_90")


def barriers(func: PrimFunc) -> list[Evaluate]:
    """The barriers of a function, in order."""
    return [n for n in walk(func.body) if type(n) is Evaluate]


def without(func: PrimFunc, which: int) -> PrimFunc:
    """The function without one of its barriers."""
    gone = barriers(func)[which]

    def go(n: Stmt) -> Stmt:
        if type(n) is Seq:
            return seq([go(k) for k in n.stmts if k is not gone])
        return n.map_children(lambda k: go(k) if isinstance(k, Stmt) else k)  # type: ignore[no-any-return]

    return func.with_(body=go(func.body))


def kernel(body: str, shared: str = "S", size: int = 32, threads: int = 32, blocks: int = 1) -> PrimFunc:
    """A kernel with the given number of threads x; A is read, C is written."""
    lines = "\n".join("            " + line for line in body.strip("\n").split("\n"))
    allocate = "".join([f'        {s} = T.allocate(({size},), "float32", scope="shared")\n' for s in shared])
    return parse(
        f'@T.prim_func\ndef f(A: T.Buffer((256,), "float32"), C: T.Buffer((256,), "float32")):\n'
        f'    for b in T.thread_binding({blocks}, "blockIdx.x"):\n{allocate}'
        f'        for x in T.thread_binding({threads}, "threadIdx.x"):\n{lines}\n'
    )


def test_insert_barriers(threaded: Threaded, assert_golden: Golden) -> None:
    """Between a tile and its readers, and in each iteration before the next copy; none for a thread that reads its own values."""
    func = kernel(
        """
L = T.allocate((1,), "float32", scope="local")
L[0] = 0.0
for k in T.serial(3):
    S[x] = A[b * 96 + k * 32 + x]
    L[0] = L[0] + S[x]
    L[0] = L[0] + S[31 - x]
for u in T.unroll(2):
    R[x] = L[0]
    C[b * 128 + u * 32 + x] = R[x]
""",
        "SR",
        blocks=2,
    )
    assert_golden(str(threaded(func, insert_barriers, check_races=True)))


PAIRS = "S.vstore([x * 2], A.vload([x * 2], lanes=2, stride=1), stride=1)\n"


@pytest.mark.parametrize(
    ("body", "count"),
    [
        # values of the same thread, and memory that is never written or never read
        ("S[x] = A[x]\nC[x] = S[x]", 0),
        ("C[x] = A[31 - x]\nC[32 + x] = A[x]", 0),
        ("S[x] = A[x]\nS[x] = A[x + 1]\nC[x] = 1.0", 0),
        # written, then read; read, then written; both
        ("S[x] = A[x]\nC[x] = S[31 - x]", 1),
        ("S[x] = A[x]\nC[x] = S[x]\nif x < 31:\n    S[x + 1] = A[x]\nC[x + 32] = S[x + 0]", 2),
        # one barrier orders two tiles
        ("S[x] = A[x]\nR[x] = A[x + 1]\nC[x] = S[31 - x] + R[31 - x]", 1),
        # an existing barrier counts
        ("S[x] = A[x]\nT.evaluate(T.barrier())\nC[x] = S[31 - x]", 1),
        ("for k in T.serial(3):\n    S[x] = A[x + k]\n    T.evaluate(T.barrier())\n    C[x] = S[31 - x]\n    T.evaluate(T.barrier())", 2),
        # groups of threads with separate memory
        ("S[x] = A[x]\nC[x] = S[x // 1]", 0),
        # in a loop: before the first statement, if it conflicts with the last one
        ("for k in T.serial(3):\n    S[x] = A[x + k]\n    C[x] = S[31 - x]", 2),
        ("for k in T.serial(1):\n    S[x] = A[x + k]\n    C[x] = S[31 - x]", 1),
        ("for k in T.serial(3):\n    S[x] = A[x + k]\n    C[x + k * 16] = S[x]", 0),
        # two versions: one barrier per iteration
        ("for k in T.serial(4):\n    S[k % 2 * 16 + x] = A[x + k]\n    C[x] = S[k % 2 * 16 + 15 - x]", 1),
        # a uniform branch
        ("if b < 1:\n    S[x] = A[x]\n    C[x] = S[31 - x]\nC[b * 16 + x + 64] = 1.0", 1),
        ("S[x] = A[x]\nif b < 1:\n    C[x] = S[31 - x]\nelse:\n    C[x + 128] = S[31 - x]", 1),
        # vectors
        (
            f"{PAIRS}C.vstore([x * 2], S.vload([x * 2], lanes=2, stride=1), stride=1)",
            0,
        ),
        (f"{PAIRS}C[x] = S[x]", 1),
        ("S.vstore([x], A.vload([x], lanes=2, stride=16), stride=16)\nC[x] = S[x + 16]", 0),
    ],
)
def test_positions_of_barriers(threaded: Threaded, body: str, count: int) -> None:
    """16 threads; the interpreter detects no race."""
    func = kernel(body.replace("31", "15"), "SR" if "R[" in body else "S", threads=16, blocks=2 if "b < 1" in body else 1)
    assert len(barriers(threaded(func, insert_barriers, check_races=True))) == count


@T.prim_func
def global_memory(A: T.Buffer((64,), "float32"), W: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
    for b in T.thread_binding(2, "blockIdx.x"):
        for x in T.thread_binding(32, "threadIdx.x"):
            W[b * 32 + x] = A[b * 32 + x]
            C[b * 32 + x] = W[b * 32 + 31 - x]


def test_conflicts_in_global_memory_within_a_block(threaded: Threaded) -> None:
    """Each block uses its own part of the buffer."""
    assert len(barriers(threaded(global_memory, insert_barriers, check_races=True))) == 1


@T.prim_func
def alone(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    for _b in T.thread_binding(1, "blockIdx.x"):
        S = T.allocate((8,), "float32", scope="shared")
        for _x in T.thread_binding(1, "threadIdx.x"):
            for i in T.serial(8):
                S[i] = A[i]
            for i in T.serial(8):
                C[i] = S[7 - i]


def test_one_thread_needs_no_barrier(threaded: Threaded) -> None:
    assert threaded(alone, insert_barriers) is alone


@T.prim_func
def two_dimensions(A: T.Buffer((4, 8), "float32"), C: T.Buffer((4, 8), "float32"), D: T.Buffer((4, 8), "float32")):
    for _b in T.thread_binding(1, "blockIdx.x"):
        S = T.allocate((32,), "float32", scope="shared")
        for y in T.thread_binding(4, "threadIdx.y"):
            for x in T.thread_binding(8, "threadIdx.x"):
                S[y * 8 + x] = A[y, x]
                D[y, x] = S[y * 8 + x]
                C[y, x] = S[y * 8 + 7 - x]


def test_threads_of_two_axes(threaded: Threaded) -> None:
    assert len(barriers(threaded(two_dimensions, insert_barriers, check_races=True))) == 1


# ---- iterations of nested loops

RING = """
for o in T.serial(3):
    for k in T.serial({steps}):
        S[k % {versions} * 16 + x] = A[o * {steps} + k + x]
        C[o * 64 + k * 16 + x] = S[k % {versions} * 16 + 15 - x]
"""


@pytest.mark.parametrize(
    ("steps", "versions", "count"),
    [
        # a second barrier if the last iteration and the first one of the next outer iteration use the same version
        (4, 2, 1),
        (3, 2, 2),
        (4, 3, 2),
        (3, 3, 1),
    ],
)
def test_versions_by_the_iteration_of_an_inner_loop(threaded: Threaded, steps: int, versions: int, count: int) -> None:
    """The inner loop restarts: only its last iteration conflicts with the next outer iteration, in the version of that iteration."""
    done = threaded(kernel(RING.format(steps=steps, versions=versions), size=48, threads=16), insert_barriers, check_races=True)
    assert len(barriers(done)) == count


def test_a_ring_buffer_that_restarts(threaded: Threaded) -> None:
    """The first iteration of the next outer iteration must not overwrite a version that is still read."""
    func = kernel(
        """
for u in T.serial(3):
    S[u * 16 + x] = 0.0
for o in T.serial(3):
    for k in T.serial(5):
        S[k % 3 * 16 + x] = A[o * 5 + k + x]
        C[x] = S[k % 3 * 16 + 15 - x]
        R[k % 3 * 16 + x] = A[o * 5 + k + x]
        C[o * 80 + k * 16 + x] = R[k % 3 * 16 + 15 - x] + S[(k + 2) % 3 * 16 + 15 - x]
""",
        "SR",
        size=48,
        threads=16,
    )
    threaded(func, insert_barriers, check_races=True)


def test_an_inner_loop_without_barriers_conflicts_in_every_iteration(threaded: Threaded) -> None:
    """A thread reads its own values in one outer iteration, and those of another thread in the next."""
    func = kernel(
        """
for o in T.serial(2):
    for k in T.serial(2):
        S[(k + o) % 2 * 16 + (x + o * 8) % 16] = A[x + k]
        C[o * 32 + k * 16 + x] = S[(k + o) % 2 * 16 + (x + o * 8) % 16]
""",
        threads=16,
    )
    assert len(barriers(threaded(func, insert_barriers, check_races=True))) == 1


def test_conditions_that_read_shared_memory(threaded: Threaded) -> None:
    """A barrier is needed before a condition that reads shared memory, and before later stores to that memory."""
    func = kernel("S[x] = A[x]\nif S[15 - x] < 1.0:\n    C[x] = 1.0\nS[x] = A[x + 1]\nC[x + 16] = S[x]", threads=16)
    assert len(barriers(threaded(func, insert_barriers, check_races=True))) == 2


# ---- refusals


@pytest.mark.parametrize(
    "body",
    [
        "if x < 7:\n    S[x] = A[x]\n    C[x] = S[6 - x]",
        "for k in T.serial(x):\n    S[x] = A[x]\n    C[x] = S[31 - x]",
        "for k in T.serial(x):\n    C[x] = S[k]\n    S[x] = A[x]",
        "if A[b] < 1.0:\n    S[x] = A[x]\n    C[x] = S[31 - x]",
        "if S[31 - x] < 1.0:\n    S[x] = A[x]",
        "if b < 1:\n    if x < 4:\n        for k in T.serial(2):\n            S[x] = A[x]\n            C[x] = S[3 - x]",
    ],
)
def test_barriers_in_divergent_code_are_refused(body: str) -> None:
    with pytest.raises(BuildError) as caught:
        insert_barriers(kernel(body), OPENCL)
    assert str(caught.value) == (
        "f: a barrier is needed in a branch or a loop that not all threads of a block take. Make its condition independent of the thread"
    )


def test_a_barrier_may_precede_the_branch(threaded: Threaded) -> None:
    func = kernel("S[x] = A[x]\nif x < 7:\n    C[x] = S[31 - x]")
    done = threaded(func, insert_barriers, check_races=False)
    assert len(barriers(done)) == 1 and all(not barriers(func.with_(body=n)) for n in walk(done.body) if type(n) is If)


# ---- guards that make barriers unnecessary


@pytest.mark.parametrize("guard", ["1 < k", "k < 2", "0 < k", "k < 1", "x < 8"])
def test_guards_on_iterations_hold_in_other_iterations(threaded: Threaded, guard: str) -> None:
    """One period of the versions is enumerated; a guard on the iteration may hold in another period."""
    func = kernel(
        f"""
for u in T.unroll(2):
    S[u * 16 + x] = A[x]
T.evaluate(T.barrier())
for k in T.serial(6):
    if {guard}:
        S[k % 2 * 16 + x] = A[x + k]
    C[k * 16 + x] = S[k % 2 * 16 + 15 - x]
""",
        threads=16,
    )
    done = insert_barriers(func, OPENCL)
    run_threads(done, [np.arange(256, dtype=np.float32), np.zeros(256, np.float32)])


def test_threads_that_a_guard_excludes_do_not_conflict(threaded: Threaded) -> None:
    """A tile copied in several rounds: a guarded round beyond the end points to elements that other threads wrote."""
    func = kernel(
        """
for u in T.unroll(3):
    if u * 16 + x < 40:
        S[(u * 16 + x) % 40] = A[u * 16 + x]
C[x] = 1.0
C[x + 32] = S[x]
""",
        size=40,
        threads=16,
    )
    assert len(barriers(threaded(func, insert_barriers))) == 0


@pytest.mark.parametrize(
    "text",
    [
        *("matmul(m=1,n=13,k=7,tb=1)", "matmul(m=1,n=100,k=5000)", "mean(shape=1x1,axis=-1)"),
        "conv2d(n=1,h=3,w=5,ci=7,co=3,kh=1,kw=1)",
    ],
)
def test_a_reduction_in_global_memory_under_a_guard(schedules: ModuleType, text: str) -> None:
    """Each thread has its own element, except threads that the guard excludes."""
    w = schedules.named(text)
    (sketch,) = collect(gpu_fallback.sketches(w.func, OPENCL), w.func)
    assert barriers(GPU(sketch.concretize((64,)), OPENCL)) == []


# ---- kernels without blocks


@T.prim_func
def no_blocks(A: T.Buffer((32,), "float32"), C: T.Buffer((32,), "float32")):
    S = T.allocate((32,), "float32", scope="shared")
    for x in T.thread_binding(32, "threadIdx.x"):
        S[x] = A[x]
        C[x] = S[31 - x]


def test_a_kernel_that_begins_with_an_allocation(threaded: Threaded) -> None:
    """Without a block loop, the allocation of shared memory encloses the whole kernel."""
    assert len(barriers(threaded(no_blocks, insert_barriers))) == 1


# ---- kernels of the sketch rules: each barrier is needed, and no barrier is missing

KERNELS = (
    "matmul(m=17,n=19,k=5)",
    "conv2d(n=1,h=5,w=6,ci=3,co=5,kh=3,kw=3,pad=1,stride=2,bias=1,relu=1)",
    "softmax(m=5,n=40)",
    "layer_norm(m=3,n=70)",
    "sum(shape=5x40,axis=1)",
    "sum(shape=300)",
)


def lowered_rows(schedules: ModuleType, text: str, target: Target, count: int) -> list[tuple[Any, PrimFunc]]:
    w = schedules.named(text)
    rng = stream(2, "barriers", text)
    return [
        (sketch.name, GPU(sketch.concretize(tuple(map(int, row))), target))
        for sketch in generate(w.func, target).sketches
        for row in sketch.space.sample(count, rng)
    ]


@pytest.mark.parametrize("target", [OPENCL, CUDA], ids=str)
@pytest.mark.parametrize("text", KERNELS)
def test_barriers_are_sufficient_and_each_is_needed(schedules: ModuleType, text: str, target: Target) -> None:
    w = schedules.named(text)
    inputs = schedules.integers(w)
    expected = w.reference(inputs)

    def call(func: PrimFunc) -> list[np.ndarray]:
        outputs = [np.full(r.size, np.nan, r.dtype) for r in expected]
        return run_threads(func, [*[x.reshape(-1) for x in inputs], *outputs])[len(inputs) :]

    removed = races = 0
    for name, func in lowered_rows(schedules, text, target, 3):
        for got, want in zip(call(func), expected, strict=True):
            np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-4, atol=1e-5, err_msg=name)
        for n in range(len(barriers(func))):
            removed += 1
            try:
                call(without(func, n))
            except InterpretError as e:
                assert "a race" in str(e)
                races += 1
    assert races == removed, f"{removed - races} of {removed} barriers are not needed"


def test_some_kernels_have_barriers(schedules: ModuleType) -> None:
    """Otherwise the test above would be vacuous."""
    counts = {text: sum(len(barriers(f)) for _, f in lowered_rows(schedules, text, OPENCL, 3)) for text in KERNELS}
    assert min(counts.values()) > 0
