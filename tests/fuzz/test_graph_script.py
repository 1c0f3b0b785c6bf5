"""Fuzz the graph script: random functions round-trip through text, and mutated texts raise only ScriptError."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import Operand
from tunesmith.graph.ir.operator import ELEMENTWISE, GRAPH_OPERATORS, INJECTIVE, GraphOperator
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.graph.ir.script_parser import parse
from tunesmith.graph.ir.script_printer import large_constants, script_of
from tunesmith.graph.ir.structural import difference, digest
from tunesmith.graph.ir.verify import verify
from tunesmith.ir.poly import Poly, Var, evaluate, floordiv, less_than, maximum, minimum, poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError
from tunesmith.support.seeds import stream


def _add(a: Tensor, b: Tensor) -> Tensor:
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ScriptError("the operands differ")
    return te.compute(a.shape, lambda *i: a[i] + b[i], "add")


def _scale(x: Tensor, *, factor: float = 1.0, note: Any = None) -> Tensor:
    return te.compute(x.shape, lambda *i: x[i] * float(factor), "scale")


def _fill(*, shape: Sequence[Any], value: float = 0.0) -> Tensor:
    return te.compute([poly(e) for e in shape], lambda *i: float(value), "fill", dtype="float32")


def _both(x: Tensor) -> list[Tensor]:
    return [te.compute(x.shape, lambda *i: -x[i], "minus"), te.compute(x.shape, lambda *i: x[i], "same")]


for _o in (
    GraphOperator("fuzz_add", ELEMENTWISE, _add, lambda a, b: np.asarray(a + b)),
    GraphOperator("fuzz_scale", ELEMENTWISE, _scale, lambda x, *, factor, note: np.asarray(x * np.float32(factor))),
    GraphOperator("fuzz_fill", INJECTIVE, _fill, lambda *, shape, value: np.full(shape, value, np.float32)),
    GraphOperator("fuzz_both", INJECTIVE, _both, lambda x: [-x, x]),
):
    GRAPH_OPERATORS.register(_o.name, _o)

NAMES = ("x", "x", "y", "y_1", "T", "G", "if", "relu", "", "2x", "é", "weight")
NOTES: tuple[Any, ...] = (None, True, 1, 1.0, -0.0, float("nan"), -float("inf"), "te'xt", (), (1,), ((2.5, "a"), None))


class _Random:
    """A random function."""

    def __init__(self, seed: int, purpose: str = "text", *, calls: bool = True) -> None:
        self.rng = stream(seed, "graph script", purpose)
        self.calls = calls
        self.sizes = [Var(self.pick(NAMES)) for _ in range(self.rng.integers(3))]

    def pick(self, xs: Sequence[Any]) -> Any:
        return xs[int(self.rng.integers(len(xs)))]

    def extent(self) -> Poly:
        kind = int(self.rng.integers(6))
        a = poly(self.pick([*self.sizes, 1, 2, 3]))
        b = poly(self.pick([*self.sizes, 4, 5]))
        return (a, a + b, a * b + 1, minimum(a, b), maximum(a, b), floordiv(a, 2) + 1)[kind]

    def region(self, b: RegionBuilder, values: list[Operand], conditions: list[Operand], depth: int) -> list[Operand]:
        values = list(values)
        for _ in range(int(self.rng.integers(1, 5))):
            x, name = self.pick(values), self.pick(NAMES)
            kind = int(self.rng.integers(7 if depth else 6))
            if kind == 0:
                values.append(b.call("fuzz_add", x, self.pick([v for v in values if v.type == x.type]), name=name))
            elif kind == 1:
                values.append(
                    b.call("fuzz_scale", x, factor=self.pick((1.0, 0.5, -3.0)), note=self.pick((*NOTES, self.extent())), name=name)
                )
            elif kind == 2:
                values.append(b.call("fuzz_fill", shape=[self.extent() for _ in range(int(self.rng.integers(3)))], name=name))
            elif kind == 3:
                values += b.call("fuzz_both", x, name=name)
            elif kind == 4:
                shape = self.pick([(), (2,), (2, 3), (20,)])
                values.append(b.constant(self.rng.standard_normal(shape).astype(np.float32), name))
            elif kind == 5 and self.calls:
                values += b.call_function(self.pick(("f", "a b")), [x], [x.type] * int(self.rng.integers(1, 3)), [self.extent()], name)
            elif kind == 6:
                made = b.branch(self.pick(conditions), *[self.branch(values, conditions, depth, x) for _ in range(2)], name=name)
                values += made if isinstance(made, tuple) else [made]
        return values

    def branch(self, values: list[Operand], conditions: list[Operand], depth: int, like: Operand) -> Callable[[RegionBuilder], Any]:
        def fill(b: RegionBuilder) -> Any:
            inner = self.region(b, values, conditions, depth - 1)
            return self.pick([v for v in inner if v.type == like.type]), like

        return fill

    def function(self) -> GraphFunc:
        b = GraphBuilder(self.pick(("main", "a function", "T", "f_1")))
        values: list[Operand] = [b.input(self.pick(NAMES), (v, self.extent())) for v in self.sizes]
        values.append(b.input(self.pick(NAMES), [self.extent() for _ in range(int(self.rng.integers(3)))]))
        conditions: list[Operand] = [b.input(self.pick(NAMES), (), "bool"), b.constant(np.array(True), "yes")]
        for v in self.sizes:
            b.assume(less_than(v, int(self.rng.integers(5, 99))))
        values = self.region(b, values, conditions, 2)
        return b.finish(*[self.pick(values) for _ in range(int(self.rng.integers(1, 4)))])


@pytest.mark.parametrize("seed", range(60))
def test_random_functions_round_trip_through_text(seed: int) -> None:
    f = _Random(seed).function()
    verify(f)
    text = script_of(f)
    again = parse(text, large_constants(f))
    verify(again)
    assert difference(f, again) is None, text
    assert digest(f) == digest(again)
    assert script_of(again) == text
    assert Rewriter()(f) is f


@pytest.mark.parametrize("seed", range(20))
def test_parsed_functions_compute_the_same(seed: int) -> None:
    f = _Random(seed, "values", calls=False).function()
    again = parse(script_of(f), large_constants(f))
    rng = stream(seed, "arguments")
    sizes = dict.fromkeys(f.sizes, 4)
    arrays = [rng.standard_normal([evaluate(e, sizes) for e in p.type.shape]) for p in f.params]
    given = [np.asarray(a > 0) if p.type.dtype == "bool" else np.asarray(a, np.float32) for a, p in zip(arrays, f.params, strict=True)]
    for a, b in zip(run(f, given), run(again, given), strict=True):
        np.testing.assert_array_equal(a, b)


def _mutated(text: str, rng: np.random.Generator) -> str:
    """The text with tokens deleted, duplicated, swapped, or replaced by tokens of the text or by unusual ones."""
    tokens = re.findall(r"\w+|\s+|.", text)
    for _ in range(int(rng.integers(1, 4))):
        i, j = (int(k) for k in rng.integers(len(tokens), size=2))
        kind = int(rng.integers(5))
        if kind == 0:
            del tokens[i]
        elif kind == 1:
            tokens[i], tokens[j] = tokens[j], tokens[i]
        elif kind == 2:
            tokens[i] = tokens[j]
        elif kind == 3:
            tokens.insert(i, tokens[j])
        else:
            tokens[i] = STRANGE[int(rng.integers(len(STRANGE)))]
    return "".join(tokens)


STRANGE = (
    "None",
    "G",
    "T.min",
    "-1",
    "0",
    "1e999",
    "()",
    "[",
    "*x",
    "lambda: 0",
    "yield",
    "'text'",
    "b''",
    "1j",
    "...",
    "\0",
    "\ud800",
    "9" * 30,
    "x.y",
    "G.nan",
)


@pytest.mark.parametrize("seed", range(20))
def test_mutated_texts_are_parsed_or_refused(seed: int) -> None:
    f = _Random(seed, "mutated").function()
    text, data = script_of(f), large_constants(f)
    rng = stream(seed, "mutations")
    refused = 0
    for _ in range(20):
        changed = _mutated(text, rng)
        try:
            found = parse(changed, data)
        except ScriptError:
            refused += 1
        else:
            assert script_of(parse(script_of(found), data)) == script_of(found), changed
    assert refused > 0
