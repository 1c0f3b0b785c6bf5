"""Stores at indirect indices: script, digests, checks, interpreters, compiled code, and schedules that compute the same."""

from __future__ import annotations

import itertools
from contextlib import suppress

import numpy as np
import pytest

import tunesmith
from tunesmith.codegen.device.build import emit_source
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectVar
from tunesmith.ir.interpreter import interpret
from tunesmith.ir.interpreter.memory import InterpretError
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import BindIndex
from tunesmith.ir.structural import digest, equal
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import transform
from tunesmith.lower.pipelines import CPU, GPU
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.analytic_schedule import analytic_schedule
from tunesmith.support.errors import BuildError, RunError, ScheduleError, ScriptError, UserError
from tunesmith.support.seeds import stream
from tunesmith.testing.program_fuzz.choices import Choices
from tunesmith.testing.program_fuzz.generate_steps import FUZZED, random_step
from tunesmith.testing.program_fuzz.steps import Replay

HISTOGRAM = """
@T.prim_func
def f(X: T.Buffer((23,), "int64"), Z: T.Buffer((11,), "int32")):
    B = T.alloc_buffer((23,), "int64")
    Y = T.alloc_buffer((11,), "int32")
    for i in T.serial(23):
        with T.block("B"):
            vi = T.axis.spatial(23, i)
            B[vi] = X[vi] * 3 % 11
    for i in T.serial(11):
        with T.block("initial"):
            vi = T.axis.spatial(11, i)
            Y[vi] = 1
    for k in T.serial(23):
        with T.block("count"):
            vk = T.axis.spatial(23, k)
            with T.lookup(B[vk], 11) as b:
                Y[b] += 1
    for i in T.serial(11):
        with T.block("Z"):
            vi = T.axis.spatial(11, i)
            Z[vi] = Y[vi] * 2 + Y[10 - vi]
"""
ROWS = """
@T.prim_func
def f(X: T.Buffer((13, 10), "int32"), I: T.Buffer((13,), "int64"), Z: T.Buffer((7, 10), "int32")):
    A = T.alloc_buffer((13, 10), "int32")
    for k, c in T.grid(13, 10):
        with T.block("A"):
            vk, vc = T.axis.remap("SS", [k, c])
            A[vk, vc] = X[vk, vc] * 3
    for i, c in T.grid(7, 10):
        with T.block("initial"):
            vi, vc = T.axis.remap("SS", [i, c])
            Z[vi, vc] = 0
    for k, c in T.grid(13, 10):
        with T.block("add"):
            vk, vc = T.axis.remap("SS", [k, c])
            with T.lookup(I[vk] % 7, 7) as b:
                Z[b, vc] += A[vk, vc]
"""
LAST = """
@T.prim_func
def f(X: T.Buffer((13, 6), "int32"), I: T.Buffer((13,), "int64"), Y: T.Buffer((9, 6), "int32"), Z: T.Buffer((9,), "int32")):
    for i, c in T.grid(9, 6):
        with T.block("initial"):
            vi, vc = T.axis.remap("SS", [i, c])
            Y[vi, vc] = -1
    for k, c in T.grid(13, 6):
        with T.block("put"):
            vk, vc = T.axis.remap("RS", [k, c])
            with T.lookup(I[vk] % 9, 9) as b:
                if X[vk, vc] > 3:
                    Y[b, vc] = X[vk, vc] + Y[8 - b, vc]
    for i, r in T.grid(9, 6):
        with T.block("Z"):
            vi, vr = T.axis.remap("SR", [i, r])
            with T.init():
                Z[vi] = 0
            Z[vi] += Y[vi, vr]
"""
PAIRS = """
@T.prim_func
def f(X: T.Buffer((4, 13), "int64"), V: T.Buffer((4, 13), "int32"), Z: T.Buffer((4, 8), "int32")):
    Y = T.alloc_buffer((4, 8), "int32")
    for n, i in T.grid(4, 8):
        with T.block("initial"):
            vn, vi = T.axis.remap("SS", [n, i])
            Y[vn, vi] = 5
    for n, k in T.grid(4, 13):
        with T.block("put"):
            vn, vk = T.axis.remap("SS", [n, k])
            with T.lookup(X[vn, vk] % 4, 4) as a:
                with T.lookup(X[vn, 12 - vk] % 2, 2) as b:
                    Y[vn, a * 2 + b] = V[vn, vk]
    for n, i in T.grid(4, 8):
        with T.block("Z"):
            vn, vi = T.axis.remap("SS", [n, i])
            Z[vn, vi] = Y[vn, vi] + Y[3 - vn, vi]
"""
PROGRAMS = {"histogram": HISTOGRAM, "rows": ROWS, "last": LAST, "pairs": PAIRS}


def inputs(f: PrimFunc, seed: int = 0) -> list[np.ndarray]:
    rng = stream(seed, "bind index")
    return [
        rng.integers(0, 40, [d.as_int() for d in b.shape]).astype(b.dtype) for b in f.params if isinstance(b, Buffer) and b.name in "XIV"
    ]


def outputs(f: PrimFunc, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [np.zeros([d.as_int() for d in b.shape], b.dtype) for b in f.params[len(arrays) :] if isinstance(b, Buffer)]


def expected(name: str, arrays: list[np.ndarray]) -> np.ndarray:
    """The last output, computed by numpy."""
    x = arrays[0]
    if name == "histogram":
        y = 1 + np.bincount(x * 3 % 11, minlength=11)
        return y * 2 + y[::-1]
    if name == "rows":
        z = np.zeros((7, 10), np.int32)
        np.add.at(z, arrays[1] % 7, x * 3)
        return z
    if name == "last":
        y = np.full((9, 6), -1, np.int32)
        for k, c in itertools.product(range(13), range(6)):
            b = arrays[1][k] % 9
            y[b, c] = x[k, c] + y[8 - b, c] if x[k, c] > 3 else y[b, c]
        return y.sum(1)
    y = np.full((4, 8), 5, np.int32)
    for n, k in itertools.product(range(4), range(13)):
        y[n, x[n, k] % 4 * 2 + x[n, 12 - k] % 2] = arrays[1][n, k]
    return y + y[::-1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_oracles_agree(name: str) -> None:
    f = parse(PROGRAMS[name])
    arrays = inputs(f)
    want = expected(name, arrays)
    np.testing.assert_array_equal(interpret.run(f, arrays)[-1], want)
    flat = [a.ravel() for a in arrays]
    np.testing.assert_array_equal(interpret.run(CPU(f, Target.detect()), flat)[-1].reshape(want.shape), want)
    for made in (tunesmith.build(f), tunesmith.build(f, bounds_check=True), tunesmith.compile(f)):
        out = outputs(f, arrays)
        made["f"](*arrays, *out)
        np.testing.assert_array_equal(out[-1], want)
    for target in (Target("opencl"), Target("cuda -arch=sm_90")):
        g = analytic_schedule(f, target)
        np.testing.assert_array_equal(run_threads(g, arrays)[-1], want)
        np.testing.assert_array_equal(run_threads(GPU(g, target), flat)[-1].reshape(want.shape), want)
        assert "const int b = (int)" in emit_source(g, target)[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_scripts_and_digests(name: str) -> None:
    f = parse(PROGRAMS[name])
    again = parse(str(f))
    assert equal(f, again) and digest(f) == digest(again)
    other = parse(PROGRAMS[name].replace("T.lookup(", "T.lookup(0 * "))
    assert not equal(f, other) and digest(f) != digest(other)


def test_values_out_of_range() -> None:
    f = parse(ROWS.replace("I[vk] % 7, 7", "I[vk], 7"))
    x, i, z = np.ones((13, 10), np.int32), np.arange(13), np.zeros((7, 10), np.int32)
    with pytest.raises(InterpretError, match="the indirect index 7 is out of range: its extent is 7"):
        interpret.run(f, [x, i])
    with pytest.raises(RunError, match="the value of the indirect index b in block add is 7, and the extent is 7"):
        tunesmith.build(f, bounds_check=True)["f"](x, i, z)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROWS.replace("as b", ""), "this index has no name, or several"),
        (ROWS.replace("as b", "as (b, d)"), "this index has no name, or several"),
        (ROWS.replace("as b", "as vk"), "`vk` already names a variable"),
        (ROWS.replace("I[vk] % 7, 7", "X[vk, vc], 7"), "the value of T.lookup must be int64, got int32"),
        (ROWS.replace(", 7) as b", ") as b"), "extent"),
    ],
)
def test_scripts_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        parse(text)


def test_programs_that_are_refused() -> None:
    f = parse(ROWS)

    def with_changes(**changes: object) -> PrimFunc:
        return f.with_(body=transform(f.body, {BindIndex: lambda n, _: n.with_(**changes)}))

    for g, message in (
        (with_changes(value=f.body), "a value expression was expected"),
        (with_changes(var=Var("v")), "an indirect index binds an IndirectVar"),
        (with_changes(body=f.body), "contains a block: bind it inside the block"),
        (f.with_(body=BindIndex(IndirectVar("b"), poly(7), poly(0), f.body)), "contains a block: bind it inside the block"),
    ):
        with pytest.raises(ScriptError, match=message):
            verify(g)


@pytest.mark.parametrize("step", ["parallel", "vectorize"])
def test_loops_over_updates_of_one_element_are_refused(step: str) -> None:
    s = Schedule(parse(HISTOGRAM))
    with pytest.raises(ScheduleError, match="different iterations of loop k may access one element of Y"):
        getattr(s, step)(s.get_loops(s.get_block("count"))[0])


def test_columns_are_parallel_and_vectorised() -> None:
    s = Schedule(parse(ROWS))
    k, c = s.get_loops(s.get_block("add"))
    outer, inner = s.split(c, [None, 5])
    s.reorder([outer, k, inner])
    s.parallel(outer)
    s.vectorize(inner)
    lowered = str(CPU(s.func, Target("llvm -mcpu=x86-64-v3 -num-cores=2")))
    assert "lanes=5" in lowered or "lanes=8" in lowered
    arrays = inputs(s.func)
    out = outputs(s.func, arrays)
    tunesmith.build(s)["f"](*arrays, *out)
    np.testing.assert_array_equal(out[-1], expected("rows", arrays))


OMITTED = {"unsafe_set_dtype", "annotate", "set_scope", "bind"}
"""Steps that change results by intention, or need another target."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_random_schedules_compute_the_same(name: str) -> None:
    f = parse(PROGRAMS[name])
    arrays = inputs(f)
    want, target, taken = expected(name, arrays), Target("llvm -mcpu=x86-64-v3 -num-cores=2"), 0
    for seed in range(25):
        s, choices = Schedule(f), Choices(seed, "bind index")
        for _ in range(12):
            with suppress(UserError):
                step = random_step(choices, s, 0, sorted(FUZZED) if choices.chance(0.5) else ())
                if step.primitive not in OMITTED:
                    Replay(s, target).apply(step)
                    taken += 1
        verify(s.func)
        np.testing.assert_array_equal(interpret.run(s.func, arrays)[-1], want, err_msg=str(s.func))
        out = outputs(f, arrays)
        with suppress(BuildError):  # buffers of a thread that another one reads
            tunesmith.build(s, target)["f"](*arrays, *out)
            np.testing.assert_array_equal(out[-1], want, err_msg=str(s.func))
    assert taken > 50
