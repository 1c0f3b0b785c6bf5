"""Fuzz the primitives that copy, pad, partition and roll: random steps on random chains of stages, interpreted after each step.

The last program of a walk is also compiled, and its trace is applied with open sizes, which must give the same program (see test_law.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from tunesmith.codegen.llvm.build import build
from tunesmith.ir import structural
from tunesmith.ir.analysis.access_regions import reads, writes
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import conjunction, const, select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import ZERO, evaluate, less_than
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.ops import tensor_expression as te
from tunesmith.runtime.module import Module
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.primitive import apply_instruction
from tunesmith.schedule.schedule import Schedule, concretize
from tunesmith.support.errors import BuildError, RecordError, ScheduleError
from tunesmith.support.seeds import stream

PROGRAMS, WALKS, STEPS = 25, 3, 8
TARGETS = (Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=1"), Target("llvm -mcpu=x86-64-v3 -num-cores=2"))
SIZES = (1, 2, 3, 5, 6, 7, 9, 12)
Stage = Callable[[Any, list[int], int, str, np.random.Generator], Any]


# ---- programs


def scaled(x: Any, shape: list[int], axis: int, name: str, rng: np.random.Generator) -> Any:
    return te.compute(shape, lambda *i: x[i] * const(2, x.dtype) + const(axis, x.dtype), name=name)


def windows(x: Any, shape: list[int], axis: int, name: str, rng: np.random.Generator) -> Any:
    width, step = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    if shape[axis] < width:
        return scaled(x, shape, axis, name, rng)
    r = te.reduce_axis((0, width), name="r")
    out = [(e - width) // step + 1 if d == axis else e for d, e in enumerate(shape)]
    return te.compute(out, lambda *i: te.sum(x[tuple(e * step + r if d == axis else e for d, e in enumerate(i))], axis=r), name=name)


def padded(x: Any, shape: list[int], axis: int, name: str, rng: np.random.Generator) -> Any:
    before, n, pad = int(rng.integers(3)), shape[axis], const(int(rng.integers(2)) * 5, x.dtype)

    def value(*i: Any) -> Any:
        inside = conjunction((less_than(ZERO + before - 1, i[axis]), less_than(i[axis], ZERO + n + before)))
        return select(inside, x[tuple(e - before if d == axis else e for d, e in enumerate(i))], pad)

    return te.compute([e + before + 1 if d == axis else e for d, e in enumerate(shape)], value, name=name)


def reduced(x: Any, shape: list[int], axis: int, name: str, rng: np.random.Generator) -> Any:
    r = te.reduce_axis((0, shape[axis]), name="r")
    out = [1 if d == axis else e for d, e in enumerate(shape)]
    return te.compute(out, lambda *i: te.sum(x[tuple(r if d == axis else e for d, e in enumerate(i))], axis=r), name=name)


def flattened(x: Any, shape: list[int], axis: int, name: str, rng: np.random.Generator) -> Any:
    last = shape[-1]
    at: Callable[[Any], Any] = (lambda c: x[c // last, c % last]) if len(shape) == 2 else (lambda c: x[c])
    return te.compute([int(np.prod(shape))], lambda c: at(c) - const(1, x.dtype), name=name)


def product(x: Any, shape: list[int], axis: int, name: str, rng: np.random.Generator) -> Any:
    """The products of all pairs of rows, or the sum of the squares of a vector."""
    r = te.reduce_axis((0, shape[-1]), name="r")
    if len(shape) == 1:
        return te.compute([1], lambda i: te.sum(x[r] * x[r], axis=r), name=name)
    return te.compute([shape[0], shape[0]], lambda i, j: te.sum(x[i, r] * x[j, r], axis=r), name=name)


STAGES: Sequence[Stage] = (scaled, windows, windows, padded, padded, reduced, flattened, product)


def program(rng: np.random.Generator) -> PrimFunc:
    """A chain of up to four stages."""
    dtype = str(rng.choice(["int32", "float64", "int16"]))
    a: Any = te.placeholder([int(n) for n in rng.choice(SIZES, int(rng.integers(1, 3)))], dtype, name="A")
    x = a
    for n in range(int(rng.integers(1, 5))):
        shape = [e.as_int() for e in x.shape]
        x = STAGES[int(rng.integers(len(STAGES)))](x, shape, int(rng.integers(len(shape))), f"S{n}", rng)
    return te.create_prim_func([a, x])


# ---- steps


class Walk:
    """Random steps on a schedule."""

    def __init__(self, s: Schedule, rng: np.random.Generator) -> None:
        self.s, self.rng = s, rng
        self.block = s.get_block(self.one([b.name for b in s.blocks()]))

    def one(self, xs: Sequence[Any]) -> Any:
        if not xs:
            raise ScheduleError("walk", "choice", "nothing to choose from")
        return xs[int(self.rng.integers(len(xs)))]

    def factor(self) -> Any:
        return self.s.sample_categorical(SIZES, decision=[self.one(SIZES)]) if self.rng.random() < 0.7 else self.one((1, 2, 4))

    def loop(self, block: BlockRV | None = None) -> LoopRV:
        loop: LoopRV = self.one(self.s.get_loops(block or self.block))
        return loop

    def neighbour(self, consumer: bool) -> BlockRV:
        found: BlockRV = self.one(self.s.get_consumers(self.block) if consumer else self.s.get_producers(self.block))
        return found

    def made(self) -> str:
        return writes(self.s.block(self.block))[0].buffer.name

    def read(self) -> str:
        return str(self.one([a.buffer.name for a in reads(self.s.block(self.block))]))

    def slide(self) -> None:
        self.s.compute_at(self.block, self.loop(self.neighbour(True)), index=self.one((-1, -2)))
        self.s.rolling_buffer(self.block, self.made())

    def partition(self) -> None:
        self.s.loop_partition(self.loop(), sorted({int(n) for n in self.rng.integers(1, 6, 2)}))


MOVES: dict[str, Callable[[Walk], object]] = {
    "split": lambda w: w.s.split(w.loop(), w.one(([None, w.factor()], [w.factor(), None]))),
    "reorder": lambda w: w.s.reorder([w.s.get_loops(w.block)[i] for i in w.rng.permutation(len(w.s.get_loops(w.block)))]),
    "vectorize": lambda w: w.s.vectorize(w.loop(), 64),
    "parallel": lambda w: w.s.parallel(w.loop()),
    "compute_at": lambda w: w.s.compute_at(w.block, w.loop(w.neighbour(True)), preserve_unit_loops=w.one((True, False)), index=-1),
    "reverse_compute_at": lambda w: w.s.reverse_compute_at(w.block, w.loop(w.neighbour(False)), index=w.one((-1, -2))),
    "cache_read": lambda w: w.s.cache_read(w.block, w.read(), "global"),
    "read_at": lambda w: w.s.read_at(w.loop(), w.block, w.read(), "workspace"),
    "write_at": lambda w: w.s.write_at(w.loop(), w.block, w.made(), "global"),
    "decompose_padding": lambda w: w.s.decompose_padding(w.block, w.loop()),
    "pad_einsum": lambda w: w.s.pad_einsum(w.block, [w.factor()] * len(w.s.block(w.block).iters)),
    "loop_partition": Walk.partition,
    "rolling_buffer": Walk.slide,
    "rfactor": lambda w: w.s.rfactor(w.loop(), w.one((0, -1))),
    "sample_compute_location": lambda w: w.s.compute_at(w.block, w.s.sample_compute_location(w.block)),
}


# ---- checks


def check_open_sizes(s: Schedule, func: PrimFunc) -> bool:
    """Whether the trace applies with open sizes; if so, the program with the decisions must be that of the schedule."""
    symbolic = Schedule(func, parametric=True)
    try:
        for i in s.trace.instructions:
            apply_instruction(symbolic, i, None)
    except (ScheduleError, RecordError):
        return False
    values = dict(zip(symbolic.params, s.trace.configuration(), strict=True))
    found = [(c.kind, evaluate(c.expr, values)) for c in symbolic.constraints]
    if not all(x == 0 if kind == "eq0" else x <= 0 for kind, x in found):
        return False
    assert structural.difference(concretize(symbolic.func, values), s.func) is None, s.trace
    return True


def check_compiled(s: Schedule, a: np.ndarray, expected: np.ndarray, target: Target) -> None:
    try:
        artifact = build(s.func, target)
    except BuildError:
        return
    out = np.full_like(expected, 77)
    Module.from_object(artifact.data)[artifact.functions[0]](a, out)
    np.testing.assert_array_equal(out, expected, err_msg=str(s.trace))


def test_walks() -> None:
    applied: Counter[str] = Counter()
    for seed in range(PROGRAMS):
        rng = stream(seed, "walks")
        func = program(rng)
        (x, _) = [b for b in func.params if isinstance(b, Buffer)]
        a = rng.integers(-3, 4, [e.as_int() for e in x.shape]).astype(x.dtype)
        expected = run(func, {"A": a})[1]
        for _ in range(WALKS):
            s = Schedule(func)
            for name in rng.choice(list(MOVES), STEPS):
                before = s.func
                with suppress(ScheduleError):
                    MOVES[name](Walk(s, rng))
                if s.func is not before:
                    verify(s.func)
                    np.testing.assert_array_equal(run(s.func, {"A": a})[1], expected, err_msg=f"after {name}\n{s.trace}")
                    applied[str(name)] += 1
            applied["open sizes"] += check_open_sizes(s, func)
            check_compiled(s, a, expected, TARGETS[int(rng.integers(2))])
    assert set(applied) == {*MOVES, "open sizes"}, "a move that is always refused tests nothing"
