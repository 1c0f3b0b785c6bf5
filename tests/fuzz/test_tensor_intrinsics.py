"""Random tensor intrinsics, described by random nests, on random programs and schedules.

A description has one to three loops around an update, and its buffers have the distances of the program's accesses, sometimes other
ones, and sometimes a size in place of a distance.  The implementation is the nest itself, unrolled, from the operands that matching found.
Either a step is refused, or the interpreter, the replayed trace, the parsed script and the compiled code agree with the unscheduled
program.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pytest

import tunesmith
from tunesmith.ir import structural
from tunesmith.ir.arith.linear import linear
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Cast, Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import ZERO, Poly, Var, poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import BufferStore, For, Stmt, seq
from tunesmith.ir.tensor_intrinsics.intrinsic import TENSOR_INTRINSICS, Operand, TensorIntrinsic
from tunesmith.ir.tensor_intrinsics.match import described_nest
from tunesmith.schedule.schedule import Schedule, replay
from tunesmith.support.errors import BuildError, UserError
from tunesmith.support.seeds import stream

SEEDS = range(120)
SUMS = {"int8": "int32", "uint8": "int32", "int32": "int32", "float32": "float32", "float64": "float64"}


X = TypeVar("X")


class Draw:
    """Random choices from a stream."""

    def __init__(self, *key: object) -> None:
        self._rng = stream(0, "tensor intrinsics", *key)

    def choice(self, items: Sequence[X]) -> X:
        return items[int(self._rng.integers(len(items)))]

    def sample(self, items: Sequence[X], count: int) -> list[X]:
        return [items[int(i)] for i in self._rng.permutation(len(items))[:count]]

    def integer(self, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        return int(self._rng.integers(low, high + 1))

    def happens(self, probability: float) -> bool:
        return bool(self._rng.random() < probability)


@dataclass(frozen=True)
class Case:
    """A program and a description.

    Attributes:
        program, description: script text.
        tile: extents of the description's loops, by axis.
        nest: these axes in the order of the description.
        axes: all axes of the program, in the order of its loops.
        reduced: the axes that the program sums over.
        masked: the implementation accepts a number of leading iterations.
    """

    program: str
    description: str
    tile: Mapping[str, int]
    nest: tuple[str, ...]
    axes: tuple[str, ...]
    reduced: frozenset[str]
    masked: bool


def made(rng: Draw) -> Case:
    tile = {f"d{n}": rng.choice([2, 3, 4, 5, 8]) for n in range(rng.integer(1, 3))}
    extents = {a: max(1, e * rng.integer(1, 3) + rng.choice([0, 0, 1, -1])) for a, e in tile.items()}
    extents |= {f"f{n}": rng.choice([1, 2, 3, 5]) for n in range(rng.integer(0, 2))}
    axes = rng.sample(list(extents), len(extents))
    reduced = frozenset([a for a in axes if rng.happens(0.4)])
    types = rng.choice(list(SUMS)), rng.choice(list(SUMS))
    out = SUMS[types[0]] if SUMS[types[0]] == SUMS[types[1]] else "float64"
    buffers = {
        "A": (types[0], rng.sample(axes, rng.integer(1, len(axes)))),
        "B": (types[1], rng.sample(axes, rng.integer(1, len(axes)))),
        "C": (out, rng.sample([a for a in axes if a not in reduced], len(axes) - len(reduced))),
    }
    terms = [f'T.cast("{out}", {{A}})', f'T.cast("{out}", {{B}})']
    value = rng.choice(["{C} + %s * %s", "{C} + %s * %s", "T.max({C}, %s - %s)", "{C} + (%s + %s)"]) % tuple(terms)

    def places(prefix: str) -> dict[str, str]:
        return {n: f"{n}[{', '.join([prefix + a for a in used]) or 0}]" for n, (_, used) in buffers.items()}

    def shape(used: list[str]) -> str:
        return "(" + "".join([f"{extents[a]}, " for a in used] or ["1,"]) + ")"

    params = ", ".join([f'{n}: T.Buffer({shape(used)}, "{t}")' for n, (t, used) in buffers.items()])
    at = places("v")
    lines = ["@T.prim_func", f"def program({params}):", *_loops(axes, extents, reduced, "    ")]
    if reduced and value.startswith("{C} +"):
        lines += ["            with T.init():", f"                {at['C']} = T.cast('{out}', T.int32(0))"]
    lines.append(f"            {at['C']} = {value.format(**at)}")
    nest = tuple(rng.sample(list(tile), len(tile)))
    described, places_of, sizes = [], {}, []
    for name, (dtype, used) in buffers.items():
        steps = {a: math.prod([extents[x] for x in used[used.index(a) + 1 :]]) if a in used else 0 for a in tile}
        if rng.happens(0.05):
            steps[rng.choice(list(tile))] += 1
        far = rng.choice([a for a in tile if steps[a]] or [""]) if rng.happens(0.4) else ""
        near = [a for a in tile if a != far]
        size = sum(steps[a] * (tile[a] - 1) for a in near) + 1
        index = " + ".join([f"v{a} * {steps[a]}" for a in near if steps[a]]) or "0"
        if far:
            sizes.append(f"pitch{name}")
            described.append(f'{name}: T.Buffer(({tile[far]}, pitch{name}), "{dtype}")')
            places_of[name] = f"{name}[v{far}, {index}]"
        else:
            described.append(f'{name}: T.Buffer(({size},), "{dtype}")')
            places_of[name] = f"{name}[{index}]"
    text = ["@T.prim_func", f"def nest({', '.join([*described, *[f'{s}: T.int64' for s in sizes]])}):"]
    text += [*_loops(nest, tile, reduced, "    "), f"            {places_of['C']} = {value.format(**places_of)}"]
    return Case("\n".join(lines), "\n".join(text), tile, nest, tuple(axes), reduced, rng.happens(0.5))


def _loops(axes: list[str] | tuple[str, ...], extents: Mapping[str, int], reduced: frozenset[str], indent: str) -> list[str]:
    """The lines of loops, and of a block with a variable for each."""
    if len(axes) == 1:
        kind = "reduce" if axes[0] in reduced else "spatial"
        loop, bound = f"T.serial({extents[axes[0]]})", f"v{axes[0]} = T.axis.{kind}({extents[axes[0]]}, {axes[0]})"
    else:
        loop = f"T.grid({', '.join([str(extents[a]) for a in axes])})"
        kinds = "".join(["R" if a in reduced else "S" for a in axes])
        bound = f'{", ".join([f"v{a}" for a in axes])} = T.axis.remap("{kinds}", [{", ".join(axes)}])'
    return [f"{indent}for {', '.join(axes)} in {loop}:", f'{indent}    with T.block("C"):', f"{indent}        {bound}"]


def implementation(intrinsic: list[TensorIntrinsic], operands: Mapping[str, Operand], active: Poly | None) -> Stmt:
    """The nest of the description, unrolled except for its outermost loop if a number of its iterations is given."""
    nest, sizes = described_nest(intrinsic[0])

    def placed(buffer: Buffer, indices: tuple[Poly, ...], point: tuple[Poly, ...]) -> BufferLoad:
        offset = ZERO
        for i, stride in zip(indices, buffer.strides, strict=True):
            offset = offset + i * stride
        index = operands[buffer.name].index
        for f, at in zip(nest.loops, point, strict=True):
            split = linear(offset, f.var, sizes)
            assert split is not None
            size = next((v for v in split[0].vars if v in sizes), None)
            index = index + (split[0] if size is None else operands[buffer.name].sizes[size.name]) * at
        return BufferLoad(operands[buffer.name].buffer, (index,))

    def value(e: Expr, point: tuple[Poly, ...]) -> Expr:
        if isinstance(e, BufferLoad):
            return placed(e.buffer, e.indices, point)
        if isinstance(e, Cast):
            return Cast(e.dtype, value(e.a, point))
        assert isinstance(e, Binary)
        return Binary(e.op, value(e.a, point), value(e.b, point))

    def store(point: tuple[Poly, ...]) -> Stmt:
        to = placed(nest.store.buffer, nest.store.indices, point)
        return BufferStore(to.buffer, to.indices, value(nest.store.value, point))

    first, *rest = [range(f.extent.as_int()) for f in nest.loops]
    inner = [tuple(map(poly, p)) for p in itertools.product(*rest)]
    if active is None:
        return seq([store((poly(x), *p)) for x in first for p in inner])
    at = Var("at")
    return For(at, active, seq([store((poly(at), *p)) for p in inner]))


@contextmanager
def registered(case: Case, name: str) -> Iterator[None]:
    """The intrinsic of a case, for a while."""
    holder: list[TensorIntrinsic] = []
    intrinsic = TensorIntrinsic(
        name, case.description, lambda operands, active: implementation(holder, operands, active), (frozenset(),), masked=case.masked
    )
    holder.append(intrinsic)
    TENSOR_INTRINSICS.register(name, intrinsic)
    try:
        yield
    finally:
        for table in (TENSOR_INTRINSICS._values, TENSOR_INTRINSICS._sources):
            table.pop(name)  # type: ignore[attr-defined]


def scheduled(case: Case, name: str, rng: Draw) -> Schedule:
    """The program with its inner loops tensorized.  ScheduleError if a step is refused."""
    s = Schedule(parse(case.program))
    block = s.get_block("C")
    outer, inner = [], {}
    for axis, loop in zip(case.axes, s.get_loops(block), strict=True):
        if axis in case.tile:
            over, inner[axis] = s.split(loop, [None, case.tile[axis]])
            outer.append(over)
        else:
            outer.append(loop)
    outer = rng.sample(outer, len(outer))
    s.reorder([*outer, *[inner[a] for a in case.nest]])
    if s.block(block).init is not None:
        s.decompose_reduction(block, s.get_loops(block)[0])
    s.tensorize(inner[case.nest[0]], name)
    if rng.happens(0.3):
        s.unroll(rng.choice(outer))
    return s


def inputs(func: PrimFunc, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    buffers = [p for p in func.params if isinstance(p, Buffer)]
    return [rng.integers(0 if b.dtype == "uint8" else -4, 5, [e.as_int() for e in b.shape]).astype(b.dtype) for b in buffers]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_intrinsics(seed: int) -> None:
    _is_executed(seed, f"fuzz.nest{seed}")


def _is_executed(seed: int, name: str) -> bool:
    """Check a case: whether it can be tensorized and compiled, with equal results of the interpreter and of the compiled program."""
    rng = Draw(seed)
    case = made(rng)
    func = parse(case.program)
    assert isinstance(func, PrimFunc)
    given = inputs(func, seed)
    want = run(func, given)
    with registered(case, name):
        try:
            s = scheduled(case, name, rng)
        except UserError as error:
            assert str(error)
            return False
        for got, expected in zip(run(s.func, given), want, strict=True):
            np.testing.assert_array_equal(got, expected)
        assert structural.equal(replay(s.trace, func).func, s.func)
        assert structural.equal(parse(str(s.func)), s.func)
        try:
            built = tunesmith.build(s)
        except BuildError as error:
            assert "every tile" in str(error) or "no longer matches" in str(error)
            return False
        arrays = [x.copy() for x in given]
        built["program"](*arrays)
        for got, expected in zip(arrays, want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    return True


def test_many_cases_are_executed() -> None:
    """The generator is not vacuous: of 60 cases a third at least is compiled, and gives the results of the interpreter."""
    assert sum(_is_executed(seed, f"fuzz.count{seed}") for seed in range(60)) >= 20
