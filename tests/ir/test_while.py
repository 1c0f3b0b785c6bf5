"""While statements: script, verifier, interpreters, lowering, LLVM, device code, and random programs."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import tunesmith
from tunesmith.codegen.c.dialect import CUDA, OPENCL
from tunesmith.codegen.c.kernel import print_kernels
from tunesmith.ir.expr import Const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import Evaluate, Seq, While
from tunesmith.ir.structural import difference, digest
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.simplify import simplify
from tunesmith.lower.pipelines import CPU, GPU
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import BuildError, RunError, ScriptError
from tunesmith.support.seeds import stream

COLLATZ = """
@T.prim_func
def steps(N: T.Buffer((40,), "int32"), C: T.Buffer((40,), "int32")):
    for i in T.serial(40):
        with T.block("C"):
            vi = T.axis.spatial(40, i)
            n = T.allocate((1,), "int32", scope="register")
            n[0] = N[vi]
            C[vi] = 0
            while n[0] > 1:
                C[vi] = C[vi] + 1
                if n[0] % 2 == 0:
                    n[0] = n[0] // 2
                else:
                    n[0] = n[0] * 3 + 1
"""


def collatz(n: int) -> int:
    steps = 0
    while n > 1:
        n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
    return steps


GIVEN = np.arange(40, dtype=np.int32)
WANT = np.array([collatz(int(n)) for n in GIVEN], np.int32)


def function() -> PrimFunc:
    found = parse(COLLATZ)
    assert isinstance(found, PrimFunc)
    return found


def test_round_trip_and_equality() -> None:
    f = function()
    again = parse(str(f))
    assert difference(f, again) is None and digest(f) == digest(again)
    other = parse(COLLATZ.replace("n[0] > 1:", "n[0] > 2:"))
    assert difference(f, other) is not None and digest(f) != digest(other)
    assert sum(type(n) is While for n in walk(f.body)) == 1


def test_the_interpreter_and_llvm_agree() -> None:
    f = function()
    np.testing.assert_array_equal(run(f, [GIVEN, WANT * 0])[-1], WANT)
    out = np.zeros_like(WANT)
    tunesmith.build(f)["steps"](GIVEN, out)
    np.testing.assert_array_equal(out, WANT)
    np.testing.assert_array_equal(run(CPU(f, Target("llvm")), [GIVEN, WANT * 0])[-1], WANT)


@pytest.mark.parametrize("step", ["parallel", "vectorize", "unroll"])
def test_loops_around_a_while_can_be_marked(step: str) -> None:
    s = Schedule(function())
    _, inner = s.split(s.get_loops(s.get_block("C"))[0], [None, 8])
    getattr(s, step)(s.get_loops(s.get_block("C"))[0] if step == "parallel" else inner)
    out = np.zeros_like(WANT)
    tunesmith.build(s.func)["steps"](GIVEN, out)
    np.testing.assert_array_equal(out, WANT)


def test_threads_leave_a_while_at_different_times() -> None:
    s = Schedule(function())
    outer, inner = s.split(s.get_loops(s.get_block("C"))[0], [None, 8])
    s.bind(outer, "blockIdx.x")
    s.bind(inner, "threadIdx.x")
    np.testing.assert_array_equal(run_threads(s.func, [GIVEN, WANT * 0])[-1], WANT)
    for dialect, target in ((CUDA, "cuda -arch=sm_80"), (OPENCL, "opencl")):
        kernel = GPU(s.func, Target(target))
        np.testing.assert_array_equal(run_threads(kernel, [GIVEN, WANT * 0])[-1], WANT)
        (printed,), _ = print_kernels(kernel, Target(target), dialect)
        assert "for (;;) {" in printed.text and "break;" in printed.text


def test_bounds_are_checked_in_each_iteration() -> None:
    text = """
@T.prim_func
def find(A: T.Buffer((8,), "int32"), B: T.Buffer((1,), "int64")):
    with T.block("B"):
        B[0] = T.index(0)
        while T.lookup(B[0], 9, lambda v: A[v]) != 5:
            B[0] = B[0] + T.index(1)
"""
    f = parse(text)
    checked = tunesmith.build(f, bounds_check=True)
    out = np.zeros(1, np.int64)
    checked["find"](np.arange(8, dtype=np.int32), out)
    assert out[0] == 5
    with pytest.raises(RunError, match="load of A in block B is 8, and the extent is 8"):
        checked["find"](np.zeros(8, np.int32), out)


def test_conditions_are_simplified() -> None:
    f = function()
    (found,) = [n for n in walk(f.body) if type(n) is While]
    never = f.with_(body=Seq((While(Const(False, "bool"), found.body), f.body)))
    assert sum(type(n) is While for n in walk(simplify(never, Target("llvm")).body)) == 1


def test_malformed_nodes_are_refused() -> None:
    f = function()
    with pytest.raises(ScriptError, match="the condition of a While must be a bool, got int32"):
        verify(f.with_(body=While(Const(1, "int32"), Evaluate(Const(1, "int32")))))
    with pytest.raises(ScriptError, match="a While contains the block C: put the While inside"):
        verify(f.with_(body=While(Const(False, "bool"), f.body)))
    loop = '    while N[0] > 1:\n        for t in T.thread_binding(4, "threadIdx.x"):\n            C[t] = 0\n'
    inner = parse(COLLATZ.partition("    for i")[0] + loop)
    with pytest.raises(ScriptError, match="a While contains the loop t, which is bound to threadIdx.x"):
        verify(inner)


def test_a_barrier_inside_a_while_is_refused() -> None:
    text = """
@T.prim_func
def f(A: T.Buffer((32,), "int32"), B: T.Buffer((32,), "int32")):
    for t in T.thread_binding(32, "threadIdx.x"):
        S = T.allocate((32,), "int32", scope="shared")
        S[t] = A[t]
        while S[31 - t] > 0:
            S[t] = S[t] - 1
        B[t] = S[t]
"""
    with pytest.raises(BuildError, match="a barrier is needed in a branch or a loop that not all threads"):
        GPU(parse(text), Target("cuda -arch=sm_80"))


def test_shared_stores_of_one_thread_are_refused() -> None:
    text = """
@T.prim_func
def f(A: T.Buffer((32,), "int32"), B: T.Buffer((32,), "int32")):
    for b in T.thread_binding(1, "blockIdx.x"):
        with T.seq():
            while A[0] > B[0]:
                B[0] = B[0] + 1
            for t in T.thread_binding(32, "threadIdx.x"):
                if t > 0:
                    B[t] = A[t]
"""
    with pytest.raises(BuildError, match="a while loop stores to memory that threads share, outside of the loops of threadIdx.x"):
        GPU(parse(text), Target("cuda -arch=sm_80"))


@pytest.mark.parametrize("seed", range(12))
def test_random_while_programs_agree(seed: int) -> None:
    rng = stream(seed, "while programs")

    def value(depth: int) -> str:
        leaf = ["x[0]", "k[0]", "A[i]", f"T.int32({rng.integers(-5, 6)})", "B[i]"][rng.integers(5)]
        if depth == 0:
            return leaf
        op = ["+", "-", "*", "&", "|"][rng.integers(5)]
        return f"({value(depth - 1)} {op} {leaf})"

    def body(depth: int, pad: str) -> list[str]:
        out = [f"{pad}{['x[0]', 'B[i]'][rng.integers(2)]} = {value(2)}" for _ in range(rng.integers(1, 3))]
        if depth and rng.integers(2):
            out += [f"{pad}if {value(1)} < {value(1)}:", *body(depth - 1, pad + "    "), f"{pad}else:", *body(depth - 1, pad + "    ")]
        if depth and rng.integers(2):
            out += [f"{pad}m[0] = 0", f"{pad}while m[0] < {rng.integers(1, 5)}:", f"{pad}    m[0] = m[0] + 1", *body(0, pad + "    ")]
        if rng.integers(2):
            out += [
                f"{pad}for j in T.serial(3):",
                f"{pad}    B[i] = B[i] + j * {rng.integers(1, 4)}".replace("j *", 'T.cast("int32", j) *'),
            ]
        return out

    lines = [
        "@T.prim_func",
        'def f(A: T.Buffer((9,), "int32"), B: T.Buffer((9,), "int32")):',
        f"    for i in T.{['serial', 'parallel', 'vectorized'][rng.integers(3)]}(9):",
        *[f'        {n} = T.allocate((1,), "int32", scope="{["register", "global"][rng.integers(2)]}")' for n in ("x", "k", "m")],
        "        x[0] = A[i]",
        "        k[0] = 0",
        "        m[0] = 0",
        "        B[i] = 1",
        f"        while k[0] < 6 and {value(1)} != {value(1)}:",
        "            k[0] = k[0] + 1",
        *body(2, "            "),
        "        B[i] = B[i] + x[0] * k[0]",
    ]
    f = parse("\n".join(lines))
    assert isinstance(f, PrimFunc) and difference(f, parse(str(f))) is None
    given = rng.integers(-9, 9, 9).astype(np.int32)
    with np.errstate(over="ignore"):
        want = run(f, [given, given * 0], check_races=False)[-1]
    out = np.zeros(9, np.int32)
    tunesmith.build(f)["f"](given, out)
    np.testing.assert_array_equal(out, want)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_c() -> None:
    found = np.zeros(40, np.int32)
    tunesmith.build(function(), "c")(GIVEN, found)
    assert found.tolist() == WANT.tolist()
