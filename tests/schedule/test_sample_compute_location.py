"""Test sample_compute_location: draws, decisions, replay, and the locations that it offers."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.syntax import T
from tunesmith.schedule.schedule import Schedule, replay
from tunesmith.schedule.trace import Trace

Golden = Callable[..., None]


@T.prim_func
def fork(A: T.Buffer((6, 8), "float32"), C: T.Buffer((6, 8), "float32"), D: T.Buffer((6,), "float32")):
    B = T.alloc_buffer((6, 8), "float32")
    for i, j in T.grid(6, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i in T.serial(6):
        for j in T.serial(8):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[vi, vj] + 1.0
        for k in T.serial(8):
            with T.block("D"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    D[vi] = 0.0
                D[vi] = D[vi] + B[vi, vk]


@T.prim_func
def sums(A: T.Buffer((6, 8), "float32"), C: T.Buffer((6, 4), "float32")):
    B = T.alloc_buffer((6,), "float32")
    for i, k in T.grid(6, 8):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = 0.0
            B[vi] = B[vi] + A[vi, vk]
    for i, j in T.grid(6, 4):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi] * 3.0


@pytest.mark.parametrize(("func", "block", "expected"), [(fork, "B", [-2, -1, 0]), (sums, "B", [-1, 0, 1]), (sums, "C", [-1])])
def test_locations(func: PrimFunc, block: str, expected: list[int]) -> None:
    for parametric in (False, True):
        s = Schedule(func, parametric=parametric)
        b = s.get_block(block)
        trace = s.trace
        assert s.compute_locations(b) == expected
        assert s.func is func and s.trace is trace and not s.constraints


@pytest.mark.parametrize(("func", "location"), [(fork, -2), (fork, -1), (fork, 0), (sums, -1), (sums, 0), (sums, 1)])
def test_every_location(func: PrimFunc, location: int) -> None:
    s = Schedule(func)
    b = s.get_block("B")
    s.compute_at(b, s.sample_compute_location(b, decision=[location]))
    a = np.arange(48, dtype="float32").reshape(6, 8)
    for made, expected in zip(run(s.func, {"A": a}), run(func, {"A": a}), strict=True):
        np.testing.assert_array_equal(made, expected)
    read = Trace.from_json(json.loads(json.dumps(s.trace.to_json())))
    assert read == s.trace and read.configuration() == (location,)
    again = replay(read, func)
    assert again.trace == s.trace and structural.difference(again.func, s.func) is None
    pasted = Schedule(func)
    exec(s.trace.as_python(), {"sch": pasted})
    assert pasted.trace == s.trace
    assert ("B" in [c.name for c in s.blocks()]) == (location != -2)


def test_the_seed_decides_the_draw_among_the_locations() -> None:
    found = []
    for seed in (1, 1, *range(2, 12)):
        s = Schedule(fork, seed=seed)
        s.sample_compute_location(s.get_block("B"))
        found.append(s.trace.configuration())
    assert found[0] == found[1] and set(found) == {(-2,), (-1,), (0,)}


def test_decisions_of_the_schedule_and_of_a_configuration() -> None:
    s = Schedule(fork, decisions=[[0]])
    b = s.get_block("B")
    s.compute_at(b, s.sample_compute_location(b))
    assert len(s.loops_of("B")) == 3
    other = replay(s.trace.with_configuration([-2]), fork)
    assert [c.name for c in other.blocks()] == ["C", "D"]


def test_a_query_does_not_change_names() -> None:
    s = Schedule(fork)
    b = s.get_block("B")
    s.compute_locations(b)
    assert s.sample_compute_location(b, decision=[0]).name == "l0"
