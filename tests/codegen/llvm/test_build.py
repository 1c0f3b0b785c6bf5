"""Machine code of scheduled functions equals the interpreter: types, threads, scratch memory, deterministic bytes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import assembly, build, emit_text
from tunesmith.codegen.llvm.kernel.function import STACK_BYTES
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Expr, cast, const, maximum, minimum
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import Param, Var, poly
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import Allocate, Block, Iter, Stmt, nest, seq, store
from tunesmith.ir.target.target import Target
from tunesmith.lower.pipelines import CPU
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError
from tunesmith.support.seeds import stream

TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=2")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")


def arrays(func: PrimFunc, seed: int = 0) -> list[np.ndarray]:
    """An array of small integers for each parameter, outputs too; for unsigned types every other value is just below the maximum."""
    out = []
    for b in func.params:
        assert isinstance(b, Buffer)
        low = 0 if dt.is_unsigned(b.dtype) else -3
        values = stream(seed, "codegen", b.name).integers(low, 6, [e.as_int() for e in b.shape])
        array = values.astype(dt.to_numpy(b.dtype))
        if dt.is_unsigned(b.dtype):
            array.reshape(-1)[::2] = np.iinfo(array.dtype).max - array.reshape(-1)[::2]
        out.append(array)
    return out


def check(func: PrimFunc, target: Target = TARGET, seed: int = 0) -> None:
    """Check that the compiled function leaves the same values in all arrays as the interpreter."""
    given = arrays(func, seed)
    expected = run(func, given)
    Module.from_object(build(func, target).data)[func.name](*given)
    for actual, reference in zip(given, expected, strict=True):
        np.testing.assert_array_equal(actual, reference)


def scheduled(func: PrimFunc, steps: Callable[[Schedule], object]) -> PrimFunc:
    s = Schedule(func)
    steps(s)
    return s.func


# ---- types


def pointwise(name: str, buffers: list[Buffer], value: Expr, at: list[Var]) -> Block:
    """A block that stores `value`, an expression of its iteration variables `at`, into the last buffer."""
    iters = tuple([Iter(v, e, "S") for v, e in zip(at, buffers[-1].shape, strict=True)])
    return Block(name, iters, tuple([poly(v) for v in LOOPS]), (), None, store(buffers[-1], at, value))


LOOPS = (Var("i"), Var("j"))


def arithmetic(dtype: str, kind: str) -> PrimFunc:
    """C = max(A * B + A, B) - 1, of 3 rows of 11."""
    a, b, c = [Buffer(n, (3, 11), dtype) for n in "ABC"]
    at = [Var("vi"), Var("vj")]
    value = maximum(a[at[0], at[1]] * b[at[0], at[1]] + a[at[0], at[1]], minimum(b[at[0], at[1]], const(4, dtype))) + const(1, dtype)
    func = PrimFunc("f", (a, b, c), (), nest(list(zip(LOOPS, (3, 11), strict=True)), pointwise("C", [a, b, c], value, at)))
    return scheduled(func, lambda s: kind == "vector" and s.vectorize(s.get_loops(s.get_block("C"))[1]))


@pytest.mark.parametrize("kind", ["scalar", "vector"])
@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
def test_arithmetic(dtype: str, kind: str) -> None:
    check(arithmetic(dtype, kind))


def reduction(dtype: str, op: str) -> PrimFunc:
    """The sum, minimum or maximum of each of 3 rows of 11, by vector lanes that are folded."""
    a, c = Buffer("A", (3, 11), dtype), Buffer("C", (3,), dtype)
    i, k, vi, vk = Var("i"), Var("k"), Var("vi"), Var("vk")
    combine = {"add": lambda x, y: x + y, "min": minimum, "max": maximum}[op]
    body = store(c, (vi,), combine(c[vi], a[vi, vk]))
    iters = (Iter(vi, poly(3), "S"), Iter(vk, poly(11), "R"))
    block = Block("C", iters, (poly(i), poly(k)), (), store(c, (vi,), const(2, dtype)), body)

    def steps(s: Schedule) -> None:
        b = s.get_block("C")
        loop = s.get_loops(b)[1]
        s.decompose_reduction(b, loop)
        s.vectorize(loop)

    return scheduled(PrimFunc("f", (a, c), (), nest([(i, 3), (k, 11)], block)), steps)


@pytest.mark.parametrize("op", ["add", "min", "max"])
@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
def test_horizontal_reductions(dtype: str, op: str) -> None:
    check(reduction(dtype, op))


@pytest.mark.parametrize("to", [*INTS, *FLOATS])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint32", *FLOATS])
def test_casts(dtype: str, to: str) -> None:
    a, c = Buffer("A", (2, 11), dtype), Buffer("C", (2, 11), to)
    at = [Var("vi"), Var("vj")]
    value = cast(to, maximum(a[at[0], at[1]], const(0, dtype)))
    func = PrimFunc("f", (a, c), (), nest(list(zip(LOOPS, (2, 11), strict=True)), pointwise("C", [a, c], value, at)))
    check(scheduled(func, lambda s: s.vectorize(s.get_loops(s.get_block("C"))[1])))


def test_bools_must_be_lowered_to_bytes() -> None:
    a, c = Buffer("A", (2, 11), "bool"), Buffer("C", (2, 11), "bool")
    at = [Var("vi"), Var("vj")]
    func = PrimFunc("f", (a, c), (), nest(list(zip(LOOPS, (2, 11), strict=True)), pointwise("C", [a, c], a[at[0], at[1]], at)))
    with pytest.raises(BuildError, match="does not support tensors of bools; run the lowering pipeline first"):
        build(func, TARGET, CPU.without("legalize_bool_storage"))


# ---- shapes


@T.prim_func
def scalars(A: T.Buffer((), "float32"), B: T.Buffer((1,), "float32"), C: T.Buffer((), "float32"), D: T.Buffer((1, 1), "float32")):
    with T.block("C"):
        C[()] = A[()] + B[0]
    for i, j in T.grid(1, 1):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[()] * 2.0


@T.prim_func
def total(A: T.Buffer((37,), "float32"), C: T.Buffer((), "float32")):
    for i in T.serial(37):
        with T.block("C"):
            vi = T.axis.reduce(37, i)
            with T.init():
                C[()] = 0.0
            C[()] = C[()] + A[vi]


@pytest.mark.parametrize("func", [scalars, total], ids=lambda f: f.name)
def test_tensors_of_one_element(func: PrimFunc) -> None:
    check(func)


# ---- threads and scratch memory


@T.prim_func
def cube(A: T.Buffer((3, 11, 5), "float32"), C: T.Buffer((3, 11, 5), "float32")):
    for i, j, k in T.grid(3, 11, 5):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            C[vi, vj, vk] = A[2 - vi, vj, vk] + T.cast("float32", vi * 100 + vj * 10 + vk)


@pytest.mark.parametrize("at", [(0,), (1,), (2,), (0, 1), (1, 0), (0, 1, 2)])
def test_parallel_loops_anywhere(at: tuple[int, ...]) -> None:
    """Inside serial loops, whose variables the threads use, and nested, where the outer one is parallel."""

    def steps(s: Schedule) -> None:
        loops = s.get_loops(s.get_block("C"))
        for n in at:
            s.parallel(loops[n])

    check(scheduled(cube, steps))


@pytest.mark.parametrize("cores", [1, 2, 3, 7])
def test_more_and_fewer_threads_than_iterations(cores: int) -> None:
    func = scheduled(cube, lambda s: s.parallel(s.get_loops(s.get_block("C"))[0]))
    check(func, Target(f"llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores={cores}"))


@T.prim_func
def stages(A: T.Buffer((12, 40), "float32"), D: T.Buffer((12, 40), "float32")):
    B = T.alloc_buffer((12, 40), "float32")
    C = T.alloc_buffer((12, 40), "float32")
    for i, j in T.grid(12, 40):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(12, 40):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[11 - vi, 39 - vj] + 1.0
    for i, j in T.grid(12, 40):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, 39 - vj] + B[vi, vj]


def private_and_shared(s: Schedule) -> None:
    """B is computed by all threads and shared; C by each thread, one row at a time."""
    s.parallel(s.get_loops(s.get_block("B"))[0])
    i, _ = s.get_loops(s.get_block("D"))
    s.set_scope(s.get_block("C"), "workspace")
    s.compute_at(s.get_block("C"), i)
    s.parallel(i)


def test_memory_shared_and_private() -> None:
    check(scheduled(stages, private_and_shared))


def test_copies_of_a_scratch_buffer_are_disjoint() -> None:
    """Each unrolled iteration has an allocation of its own."""

    def steps(s: Schedule) -> None:
        i, j = s.get_loops(s.get_block("D"))
        _, inner = s.split(i, [None, 3])
        s.compute_at(s.get_block("C"), inner)
        s.vectorize(j)
        s.unroll(inner)

    check(scheduled(stages, steps))


def test_concurrent_calls_from_python_threads(in_threads: Callable[..., None]) -> None:
    """One call uses the static arena, the others allocate memory."""
    func = scheduled(stages, private_and_shared)
    compiled = Module.from_object(build(func, TARGET).data)["stages"]
    start = threading.Barrier(4)

    def call(seed: int) -> None:
        a, out = arrays(func, seed)
        expected = run(func, [a, out])[1]
        start.wait()
        for _ in range(200):
            out.fill(np.nan)
            compiled(a, out)
            np.testing.assert_array_equal(out, expected)

    in_threads(call, range(4))


@pytest.mark.parametrize("scope", ["register", "workspace"])
def test_thread_local_memory_is_not_shared(scope: str) -> None:
    def steps(s: Schedule) -> None:
        s.set_scope(s.get_block("C"), scope)
        s.parallel(s.get_loops(s.get_block("C"))[0])

    message = (
        f"stages: the buffer C of scope {scope} is private to a thread, but it is allocated outside the parallel loop i and used inside"
    )
    with pytest.raises(BuildError, match=message):
        build(scheduled(stages, steps), TARGET)


def test_private_parameters_are_refused() -> None:
    a, i = Buffer("A", (4,), "float32", "workspace"), Var("i")
    with pytest.raises(BuildError, match="f: parameter A is in scope workspace; arrays of a caller are in global memory"):
        build(PrimFunc("f", (a,), (), nest([(i, 4)], store(a, (i,), const(0, "float32")))), TARGET)


def reversed_twice(*sizes: int) -> PrimFunc:
    """For each size: C = A + 1 reversed, through a register buffer that cannot become SSA values, in a loop of its own."""
    parts: list[Stmt] = []
    params: list[Buffer] = []
    for n in sizes:
        a, r, c = [Buffer(f"{x}{n}", (n,), "float32", "register" if x == "R" else "global") for x in "ARC"]
        i, j = Var("i"), Var("j")
        copies = seq([nest([(i, n)], store(r, (n - 1 - poly(i),), a[i])), nest([(j, n)], store(c, (j,), r[j] + const(1, "float32")))])
        parts.append(Allocate(r, copies))
        params += [a, c]
    return PrimFunc("f", tuple(params), (), seq(parts))


@pytest.mark.parametrize(
    ("sizes", "on_stack"),
    [((1000,), [1000]), ((4_000_000,), []), ((STACK_BYTES // 4,), [STACK_BYTES // 4]), ((40_000, 30_000, 20_000), [40_000, 20_000])],
)
def test_large_register_buffers_are_not_on_the_stack(sizes: tuple[int, ...], on_stack: list[int]) -> None:
    func = reversed_twice(*sizes)
    text = emit_text(func, TARGET)[0]
    assert [int(n) for n in re.findall(r"alloca \[(\d+) x float\]", text)] == on_stack
    given = [np.arange(n, dtype=np.float32) for n in sizes for _ in "AC"]
    Module.from_object(build(func, TARGET).data)["f"](*given)
    for n, c in zip(sizes, given[1::2], strict=True):
        np.testing.assert_array_equal(c, np.arange(n, 0, -1, dtype=np.float32))


# ---- deterministic bytes

_SCRIPT = """
import hashlib, importlib.util, sys
spec = importlib.util.spec_from_file_location("schedules", sys.argv[1])
schedules = importlib.util.module_from_spec(spec)
sys.modules["schedules"] = schedules
spec.loader.exec_module(schedules)
from tunesmith.codegen.llvm.build import build
from tunesmith.support.seeds import stream
for text in ("conv2d(n=1,h=5,w=6,ci=3,co=5,kh=3,kw=3,pad=1,stride=2,bias=1,relu=1)", "softmax(m=5,n=13)"):
    case = schedules.rule_cases(text)[-1]
    (row,) = schedules.biased_rows(case.sketch, case.workload.func, 1, stream(0, "bytes"))
    print(hashlib.sha256(build(case.sketch.concretize(row), schedules.target()).data).hexdigest())
"""


def test_bytes_do_not_depend_on_the_process() -> None:
    path = Path(__file__).parents[2] / "schedules.py"
    printed = {
        subprocess.run(
            [sys.executable, "-c", _SCRIPT, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "77")
    }
    assert len(printed) == 1 and len(printed.pop().split()) == 2


def test_bytes_do_not_depend_on_earlier_builds(schedules: ModuleType) -> None:
    case = schedules.rule_cases(schedules.WORKLOADS[0])[0]
    (row,) = schedules.biased_rows(case.sketch, case.workload.func, 1, stream(0, "bytes"))
    first = build(case.sketch.concretize(row), TARGET)
    build(stages, TARGET)
    again = build(case.sketch.concretize(row), TARGET)
    assert sha256(first.data).digest() == sha256(again.data).digest()


# ---- the interface


def test_a_module_becomes_one_object() -> None:
    artifact = build(IRModule({"first": cube, "second": stages}), TARGET)
    module = Module.from_object(artifact.data)
    assert artifact.functions == ("first", "second") and module.functions == ("first", "second")
    a, d = arrays(stages)
    expected = run(stages, [a, d])[1]
    module["second"](a, d)
    np.testing.assert_array_equal(d, expected)


def test_facts_and_texts() -> None:
    artifact = build([cube, stages], TARGET)
    assert artifact.functions == ("cube", "stages")
    assert artifact.facts["object_bytes"] == len(artifact.data) and artifact.facts["ir_lines"] > 20
    text, names = emit_text(cube, TARGET)
    assert names == ["cube"] and "define void @cube_kernel(" in text
    assert "cube_kernel" in assembly(cube, TARGET)


def test_symbolic_programs_are_refused() -> None:
    n = Param("n", [4, 8])
    a, i = Buffer("A", (poly(n),)), Var("i")
    with pytest.raises(BuildError, match="f: parameter A: .* has no constant shape; bind symbolic sizes before building"):
        build(PrimFunc("f", (a,), (), nest([(i, n)], store(a, (i,), const(0, "float32")))), TARGET)
    scalar = PrimFunc("g", (Var("n"), Buffer("A", (4,))), (), seq([]))
    with pytest.raises(BuildError, match="g: parameter n has no constant shape"):
        build(scalar, TARGET)
