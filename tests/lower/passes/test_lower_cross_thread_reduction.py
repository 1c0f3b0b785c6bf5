"""lower_cross_thread_reduction: reductions over threads by warp shuffles and by trees in shared memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import For
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import transform
from tunesmith.lower.passes.lower_cross_thread_reduction import lower_cross_thread_reduction
from tunesmith.lower.pipelines import GPU
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError
from tunesmith.support.seeds import stream

Golden = Callable[..., None]
OPENCL, CUDA = Target("opencl"), Target("cuda -arch=sm_90")
SPELLING = {"add": "{} + {}", "mul": "{} * {}", "max": "T.max({}, {})", "min": "T.min({}, {})"}


def reduction(threads: int, op: str = "add", dtype: str = "float32", init: str = "0", scope: str = "global", rows: int = 3) -> PrimFunc:
    """`threads` threads reduce each row, one row per block; the final store doubles a result in a local or shared buffer."""
    out = SPELLING[op].format("R[vi]", "A[vi, vk]")
    kept = scope != "global"
    name = "R" if kept else "C"
    text = f'''
@T.prim_func
def rows(A: T.Buffer(({rows}, {threads}), "{dtype}"), C: T.Buffer(({rows},), "{dtype}")):
    {f'R = T.alloc_buffer(({rows},), "{dtype}", scope="{scope}")' if kept else ""}
    for i in T.thread_binding({rows}, "blockIdx.x"):
        for k in T.thread_binding({threads}, "threadIdx.x"):
            with T.block("R"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    {name}[vi] = T.{dtype}({init})
                {name}[vi] = {out.replace("R[", f"{name}[")}
'''
    doubled = f"""
        for t in T.thread_binding({threads}, "threadIdx.x"):
            with T.block("C"):
                vi = T.axis.spatial({rows}, i)
                T.where(t < 1)
                C[vi] = R[vi] + R[vi]
"""
    return parse(text + (doubled.lstrip("\n") if kept else ""))


def values(func: PrimFunc, op: str) -> np.ndarray:
    a = func.params[0]
    shape = [e.as_int() for e in a.shape]  # type: ignore[union-attr]
    rng = stream(0, "combine", str(shape))
    drawn = rng.choice([-1, 1, 2], shape, p=[0.2, 0.7, 0.1]) if op == "mul" else rng.integers(-5, 6, shape)
    return np.asarray(drawn, dt.to_numpy(a.dtype))  # type: ignore[union-attr]


def expected(a: np.ndarray, op: str, init: float) -> np.ndarray:
    fold = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[op]
    return np.asarray(fold(fold.reduce(a, axis=1, dtype=a.dtype), np.asarray(init, a.dtype)), a.dtype)


def check(func: PrimFunc, target: Target, op: str = "add", init: float = 0, double: bool = False) -> PrimFunc:
    """The whole pipeline, with barriers: no race, and the same sums as numpy."""
    a = values(func, op)
    done = GPU(func, target)
    verify(done)
    got = run_threads(done, [a.reshape(-1), np.zeros(len(a), a.dtype)])[1]
    want = expected(a, op, init)
    np.testing.assert_array_equal(got, want + want if double else want)
    return done


@pytest.mark.parametrize(("threads", "target"), [(6, OPENCL), (8, CUDA), (96, CUDA), (6, CUDA)], ids=["tree", "warp", "warps", "odd"])
def test_lower_cross_thread_reduction(assert_golden: Golden, threads: int, target: Target) -> None:
    done = lower_cross_thread_reduction(reduction(threads, scope="local"), target)
    verify(done)
    assert_golden(str(done))
    assert lower_cross_thread_reduction(done, target) is done


@pytest.mark.parametrize("target", [OPENCL, CUDA], ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3, 5, 7, 8, 16, 31, 32, 33, 48, 64, 96, 100, 256])
def test_any_number_of_threads(threads: int, target: Target) -> None:
    check(reduction(threads), target)


@pytest.mark.parametrize("target", [OPENCL, CUDA], ids=str)
@pytest.mark.parametrize("scope", ["global", "local", "shared"])
@pytest.mark.parametrize("threads", [1, 6, 8, 64])
def test_threads_that_store_the_result(threads: int, scope: str, target: Target) -> None:
    """Every thread stores the result to local memory, only the first thread to other memory."""
    check(reduction(threads, scope=scope), target, double=scope != "global")


@pytest.mark.parametrize("target", [OPENCL, CUDA], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int8", "uint8", "int64"])
@pytest.mark.parametrize(
    ("op", "init"), [("add", 0), ("add", 3), ("max", -100), ("max", 4), ("min", 100), ("min", 2), ("mul", 1), ("mul", 2)]
)
def test_operations_types_and_inits(op: str, init: int, dtype: str, target: Target) -> None:
    """Also inits that change the result."""
    if init < 0 and dtype == "uint8":
        init = 0
    func = reduction(12 if dtype.endswith("8") else 32, op, dtype, str(init))
    a = values(func, op)
    if dtype == "uint8":
        func = reduction(12, op, dtype, str(init))
        a = np.abs(a.astype(np.int8)).astype(np.uint8)
        done = GPU(func, target)
        got = run_threads(done, [a.reshape(-1), np.zeros(len(a), a.dtype)])[1]
        np.testing.assert_array_equal(got, expected(a, op, init))
    else:
        check(func, target, op, init)


@pytest.mark.parametrize("init", ["float('-inf')", "float('inf')"])
def test_infinities_are_the_identity_of_min_and_max(init: str) -> None:
    op = "max" if "-" in init else "min"
    value = float(init[7:-2])
    done = check(reduction(8, op, init=f'"{value}"'), CUDA, op, value)
    assert "inf" not in str(done)
    other = "min" if op == "max" else "max"
    assert "inf" in str(check(reduction(8, other, init=f'"{value}"'), CUDA, other, value))


@T.prim_func
def groups(A: T.Buffer((6, 24), "float32"), C: T.Buffer((6,), "float32"), D: T.Buffer((6,), "float32")):
    R = T.alloc_buffer((6,), "float32", scope="local")
    for b in T.thread_binding(2, "blockIdx.x"):
        for y in T.thread_binding(3, "threadIdx.y"):
            for k in T.thread_binding(24, "threadIdx.x"):
                with T.block("R"):
                    vi = T.axis.spatial(6, b * 3 + y)
                    vk = T.axis.reduce(24, k)
                    with T.init():
                        R[vi] = 0.0
                    R[vi] = R[vi] + A[vi, vk]
            for k in T.thread_binding(24, "threadIdx.x"):
                with T.block("C"):
                    vi = T.axis.spatial(6, b * 3 + y)
                    vk = T.axis.reduce(24, k)
                    with T.init():
                        C[vi] = 1.0
                    C[vi] = T.max(C[vi], A[vi, vk] - R[vi])
            for k in T.thread_binding(24, "threadIdx.x"):
                with T.block("D"):
                    vi = T.axis.spatial(6, b * 3 + y)
                    T.where(k < 1)
                    D[vi] = R[vi]


@pytest.mark.parametrize("target", [OPENCL, CUDA], ids=str)
def test_groups_of_threads_reduce_separately(target: Target) -> None:
    """A two-dimensional thread block; a second reduction uses the results of the first."""
    a = stream(0, "groups").integers(-3, 4, (6, 24)).astype(np.float32)
    done = GPU(groups, target)
    _, c, d = run_threads(done, [a.reshape(-1), np.zeros(6, np.float32), np.zeros(6, np.float32)])
    np.testing.assert_array_equal(d, a.sum(1))
    np.testing.assert_array_equal(c, np.maximum((a - a.sum(1, keepdims=True)).max(1), 1))


def test_shuffles_need_floats_full_warps_and_cuda() -> None:
    def shuffles(*args: object, target: Target = CUDA) -> bool:
        return "T.shuffle_xor" in str(lower_cross_thread_reduction(reduction(*args), target))  # type: ignore[arg-type]

    assert [n for n in (1, 2, 3, 8, 12, 32, 33, 48, 64, 1024) if shuffles(n)] == [2, 8, 32, 64, 1024]
    assert not shuffles(32, target=OPENCL)
    assert [d for d in ("float16", "float32", "float64", "int32") if shuffles(32, "add", d)] == ["float32", "float64"]


def test_threads_without_reductions_are_unchanged() -> None:
    func = reduction(4)
    done = lower_cross_thread_reduction(func, OPENCL)
    assert lower_cross_thread_reduction(done, OPENCL) is done


def test_a_dynamic_number_of_threads_is_refused() -> None:
    n = Var("n")
    func = reduction(4)

    def on_for(f: For, recurse: object) -> For:
        return f.map_children(recurse) if f.thread != "threadIdx.x" else f.with_(extent=poly(n))  # type: ignore[arg-type]

    func = func.with_(params=(*func.params, n), body=transform(func.body, {For: on_for}))
    with pytest.raises(BuildError, match="rows: block R is combined by n threads; the number must be constant"):
        lower_cross_thread_reduction(func, OPENCL)


@T.prim_func
def in_its_own_axis(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8,), "float32")):
    for i in T.thread_binding(8, "threadIdx.x"):
        for k in T.thread_binding(8, "threadIdx.x"):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = 0.0
                C[vi] += A[vi, vk]


@T.prim_func
def not_alone(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32"), C: T.Buffer((8,), "float32")):
    for i in T.thread_binding(8, "blockIdx.x"):
        for k in T.thread_binding(8, "threadIdx.x"):
            with T.block("B"):
                vi, vk = T.axis.remap("SS", [i, k])
                B[vi, vk] = A[vi, vk]
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = 0.0
                C[vi] += B[vi, vk]


@T.prim_func
def no_beginning(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8,), "float32")):
    for i in T.thread_binding(8, "blockIdx.x"):
        for k in T.thread_binding(8, "threadIdx.x"):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                C[vi] += A[vi, vk]


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (in_its_own_axis, "in_its_own_axis: block C is combined by the loop k of threadIdx.x, which is inside another loop of threadIdx.x"),
        (not_alone, "not_alone: block C reduces over the loop k of threadIdx.x, but is not the only block in it"),
        (no_beginning, "no_beginning: block C reduces over the loop k of threadIdx.x, but is not `C\\[i\\] = C\\[i\\] op x` with an init"),
    ],
    ids=lambda x: getattr(x, "name", "message"),
)
@pytest.mark.parametrize("target", [OPENCL, CUDA], ids=["tree", "shuffles"])
def test_reductions_that_threads_cannot_combine_are_refused(func: PrimFunc, message: str, target: Target) -> None:
    with pytest.raises(BuildError, match=message):
        lower_cross_thread_reduction(func, target)


# ---- guards


@T.prim_func
def guarded_rows(A: T.Buffer((5, 8), "float32"), C: T.Buffer((5,), "float32")):
    for b in T.thread_binding(2, "blockIdx.x"):
        for y in T.thread_binding(4, "threadIdx.y"):
            for k in T.thread_binding(8, "threadIdx.x"):
                with T.block("C"):
                    vi = T.axis.spatial(5, b * 4 + y)
                    vk = T.axis.reduce(8, k)
                    T.where(b * 4 + y < 5)
                    with T.init():
                        C[vi] = 0.0
                    C[vi] = C[vi] + A[vi, vk]


@T.prim_func
def guarded_terms(A: T.Buffer((3, 8), "float32"), C: T.Buffer((3,), "float32")):
    for b in T.thread_binding(3, "blockIdx.x"):
        for k in T.thread_binding(8, "threadIdx.x"):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [b, k])
                T.where(k < 5)
                with T.init():
                    C[vi] = 0.0
                C[vi] = C[vi] + A[vi, vk]


@pytest.mark.parametrize("target", [OPENCL, CUDA], ids=str)
@pytest.mark.parametrize("func", [guarded_rows, guarded_terms], ids=lambda f: f.name)
def test_guards_of_the_block_are_kept(func: PrimFunc, target: Target) -> None:
    """Rows beyond the last are not read, and terms beyond the last are not added."""
    a = values(func, "add")
    want = a.sum(1) if func is guarded_rows else a[:, :5].sum(1)
    done = GPU(func, target)
    np.testing.assert_array_equal(run_threads(done, [a.reshape(-1), np.zeros(len(a), np.float32)])[1], want)
