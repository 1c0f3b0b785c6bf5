"""Draw random graphs of tensor expressions, and compare every sketch that the rule `derived` makes of them with the unscheduled program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

import tunesmith
from tunesmith import te
from tunesmith.ir import structural
from tunesmith.ir.expr import call, select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import floordiv
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under, walk
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.schedule.schedule import replay
from tunesmith.search.space.rules import derived
from tunesmith.search.space.sketch import collect
from tunesmith.support.seeds import stream

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 20, 33, 40, 64)
INSTANCES = 1_000_000
"""Maximum number of instances of a block: larger graphs are skipped."""
UNARY: tuple[Callable[..., object], ...] = (
    lambda x: te.maximum(x, 0.0),
    lambda x: x * 0.5,
    lambda x: call("exp", te.minimum(x, 1.0)),
    lambda x: x * x,
    lambda x: 1.0 / (x * x + 1.0),
)
BINARY: tuple[Callable[..., object], ...] = (lambda a, b: a + b, lambda a, b: a * b * 0.1, te.maximum)
REDUCERS = (te.sum, te.max, te.min)


@dataclass
class Graph:
    """A graph under construction: tensors with an extent number for each dimension."""

    rng: np.random.Generator
    extents: list[int]
    tensors: list[tuple[Tensor, list[int]]] = field(default_factory=list)
    count: int = 0

    def choose(self, items: object) -> object:
        items = list(items)  # type: ignore[call-overload]
        return items[int(self.rng.integers(len(items)))]

    def name(self) -> str:
        self.count += 1
        return f"B{self.count}"

    def add(self, axes: list[int], element: Callable[..., object]) -> Tensor:
        made = te.compute(tuple(self.extents[a] for a in axes), element, self.name())
        self.tensors.append((made, axes))
        return made

    def new_extent(self, n: int) -> int:
        self.extents.append(n)
        return len(self.extents) - 1

    # ---- operations: each takes a tensor and its axes, and returns the new tensor, or None if it does not apply

    def unary(self, t: Tensor, axes: list[int]) -> Tensor | None:
        f = self.choose(UNARY)
        return self.add(axes, lambda *i: f(t[i]))

    def binary(self, t: Tensor, axes: list[int]) -> Tensor | None:
        u, others = self.choose(self.tensors)
        if len(set(axes)) < len(axes) or not set(others) <= set(axes):
            return None
        f = self.choose(BINARY)
        return self.add(axes, lambda *i: f(t[i], u[tuple(i[axes.index(a)] for a in others)]))

    def reduce(self, t: Tensor, axes: list[int]) -> Tensor | None:
        at = sorted(self.rng.choice(len(axes), size=int(self.rng.integers(1, len(axes) + 1)), replace=False).tolist())
        reduced = {p: te.reduce_axis(self.extents[axes[p]], f"r{p}") for p in at}
        kept = [p for p in range(len(axes)) if p not in reduced]
        f, squared = self.choose(REDUCERS), self.rng.random() < 0.3

        def element(*i: object) -> object:
            index = tuple(reduced[p] if p in reduced else i[kept.index(p)] for p in range(len(axes)))
            return f(t[index] * t[index] * 0.1 if squared else t[index], axis=list(reduced.values()))

        if kept:
            return self.add([axes[p] for p in kept], element)
        return te.compute((1,), lambda _: element(), self.name())

    def contract(self, t: Tensor, axes: list[int]) -> Tensor | None:
        u, others = self.choose(self.tensors)
        common = [a for a in axes if a in others]
        if not common or len(set(axes)) < len(axes) or len(set(others)) < len(others):
            return None
        over = self.choose(common)
        out = [a for a in dict.fromkeys([*axes, *others]) if a != over]
        if not 1 <= len(out) <= 4:
            return None
        r = te.reduce_axis(self.extents[over], "k")

        def at(x: Tensor, own: list[int], i: tuple[object, ...]) -> object:
            return x[tuple(r if a == over else i[out.index(a)] for a in own)]

        return self.add(out, lambda *i: te.sum(at(t, axes, i) * at(u, others, i) * 0.1, axis=r))

    def transpose(self, t: Tensor, axes: list[int]) -> Tensor | None:
        order = self.rng.permutation(len(axes)).tolist()
        return self.add([axes[p] for p in order], lambda *i: t[tuple(i[order.index(p)] for p in range(len(axes)))])

    def shift(self, t: Tensor, axes: list[int]) -> Tensor | None:
        d, by = int(self.rng.integers(len(axes))), self.choose((-2, -1, 1, 2))
        n = self.extents[axes[d]]

        def element(*i: object) -> object:
            j = (*i[:d], i[d] + by, *i[d + 1 :])
            return select(i[d] + by < n if by > 0 else i[d] + by >= 0, t[j], te.const(0.0, "float32"))

        return self.add(axes, element)

    def repeat(self, t: Tensor, axes: list[int]) -> Tensor | None:
        d, n = int(self.rng.integers(len(axes))), self.choose((2, 3, 4))
        new = list(axes)
        new[d] = self.new_extent(self.extents[axes[d]] * n)
        return self.add(new, lambda *i: t[tuple(floordiv(v, n) if p == d else v for p, v in enumerate(i))] * 2.0)

    def window(self, t: Tensor, axes: list[int]) -> Tensor | None:
        d, step = int(self.rng.integers(len(axes))), self.choose((1, 2))
        if self.extents[axes[d]] < 4:
            return None
        r, f = te.reduce_axis(3, "w"), self.choose(REDUCERS)
        new = list(axes)
        new[d] = self.new_extent((self.extents[axes[d]] - 3) // step + 1)
        return self.add(new, lambda *i: f(t[tuple(v * step + r if p == d else v for p, v in enumerate(i))], axis=r))

    def broadcast(self, t: Tensor, axes: list[int]) -> Tensor | None:
        if len(axes) >= 3:
            return None
        p = int(self.rng.integers(len(axes) + 1))
        return self.add([*axes[:p], self.choose(range(4)), *axes[p:]], lambda *i: t[(*i[:p], *i[p + 1 :])] * 1.5)


OPERATIONS = (
    Graph.unary,
    Graph.binary,
    Graph.binary,
    Graph.reduce,
    Graph.reduce,
    Graph.contract,
    Graph.transpose,
    Graph.shift,
    Graph.repeat,
    Graph.window,
    Graph.broadcast,
)


def random_graph(seed: int) -> PrimFunc:
    """A function of one to three inputs and two to six operations; sometimes an intermediate tensor is an output, too."""
    g = Graph(rng := stream(seed, "random_graph"), [])
    g.extents = [g.choose(EXTENTS) for _ in range(4)]
    inputs = []
    for n in range(int(rng.integers(1, 4))):
        axes = [int(rng.integers(4)) for _ in range(g.choose((1, 2, 2, 3)))]
        inputs.append(te.placeholder(tuple(g.extents[a] for a in axes), name=f"X{n}"))
        g.tensors.append((inputs[-1], axes))
    made: list[Tensor] = []
    while len(made) < 2 or (len(made) < 6 and rng.random() < 0.8):
        new = g.choose(OPERATIONS)(g, *g.choose(g.tensors[-4:]))
        made += [] if new is None else [new]
    outputs = [made[int(rng.integers(len(made) - 1))], made[-1]] if rng.random() < 0.3 else [made[-1]]
    return te.create_prim_func([*inputs, *outputs], "graph")


def results(func: PrimFunc, seed: int) -> list[np.ndarray]:
    """The outputs for random inputs; outputs are NaN before the call."""
    rng = stream(seed, "results")
    written = {n.buffer for n in walk(func.body) if type(n) is BufferStore}
    arrays, outputs = [], []
    for p in func.params:
        shape = [n.const for n in p.shape]
        if p in written:
            outputs.append(np.full(shape, np.nan, np.float32))
        arrays.append(outputs[-1] if p in written else rng.standard_normal(shape).astype(np.float32))
    tunesmith.build(func)[func.name](*arrays)
    return outputs


@pytest.mark.parametrize("seeds", [range(n, n + 8) for n in range(0, 32, 8)], ids=str)
def test_random_graphs(seeds: range) -> None:
    target, derivable, sketches = Target.detect(), 0, 0
    for seed in seeds:
        func = random_graph(seed)
        if any(np.prod([float(it.extent.const) for it in b.iters]) > INSTANCES for b in blocks_under(func.body)):
            continue
        expected = results(func, seed)
        found = collect(derived.sketches(func, target), func)
        derivable += bool(found)
        for s in found:
            row = tuple([int(x) for x in s.space.sample(1, stream(seed, "row", s.name))[0]])
            scheduled = s.concretize(row)
            assert structural.equal(scheduled, replay(s.trace_of(row), func).func), (seed, s.name, row)
            for got, want in zip(results(scheduled, seed), expected, strict=True):
                np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3, err_msg=f"{seed}, {s.name}, {row}")
            sketches += 1
    assert derivable >= len(seeds) - 1 and sketches > len(seeds)
