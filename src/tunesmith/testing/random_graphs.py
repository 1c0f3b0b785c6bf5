"""Generate random graphs with arguments, for fuzzing graph passes and the whole graph compiler.

The generator evaluates each value when it is created and drops calls with huge or non-finite results.  Discontinuous operators
(comparisons, rounding, argmax) are applied only to values without arithmetic, so that rounding cannot change a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tunesmith.graph.ir import interpret
from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Call, Constant, Operand, Region, Value, used
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import ONE, Var, evaluate, poly, product
from tunesmith.support.errors import ScriptError
from tunesmith.support.seeds import stream

N = 3
"""The binding of the size in graphs with a dynamic size."""
LARGEST = 100.0
ELEMENTS = 3000

CONTINUOUS = ("abs", "cos", "erf", "exp", "gelu", "hard_swish", "identity", "neg", "relu", "sigmoid", "silu", "sin", "square", "tanh")
JUMPING = ("ceil", "floor", "round", "sign", "trunc")
ARITHMETIC = ("add", "maximum", "minimum", "multiply", "prelu", "subtract")
COMPARING = ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
MOVING = frozenset(
    ("broadcast_to", "concat", "expand_dims", "flip", "identity", "pad", "permute_dims", "reshape", "squeeze", "strided_slice", "take")
)


class RandomGraph:
    """A random module: `main`, `part`, which `main` may call, and if `loops`, `halve`, which calls itself.

    With `loops` there are also `while` loops, and sizes that are read from tensors.

    Attributes:
        module: the functions.
        arrays: arguments of `main`.
    """

    def __init__(self, seed: int, operators: int = 25, symbolic: bool | None = None, branches: bool = True, loops: bool = False) -> None:
        self.rng = stream(seed, "graph passes")
        self.known: dict[Operand, np.ndarray] = {}
        self.exact: set[Operand] = set()
        self.branches = branches
        self.recipes = (*RECIPES, *LOOPS * 3) if loops else RECIPES
        size = Var("n") if (self.chance(0.3) if symbolic is None else symbolic) else None
        self.sizes: dict[Var, int] = {} if size is None else {size: N}
        lead: Any = size if size is not None else self.pick((1, 1, 2, 3))
        b = GraphBuilder("main")
        channels = self.pick((1, 2, 4))
        shapes = [(lead, channels, 5, 6), (lead, 3, 4), (3, 4), (4,), (lead, 4)]
        self.arrays: list[np.ndarray] = []
        values = [self.argument(b, f"x{i}", s, "float32") for i, s in enumerate(shapes)]
        values += [self.argument(b, "p", (), "bool"), self.argument(b, "m", (3, 4), "bool"), self.argument(b, "i", (3,), "int64")]
        self.weights: list[Operand] = []
        values = self.region(b, values, operators, 2)
        main = b.finish(*[self.pick(values[-12:] if self.chance(0.8) else values) for _ in range(int(self.rng.integers(1, 5)))])
        self.module = IRModule({"main": main, "part": part(), **({"halve": halve()} if loops else {})})

    def argument(self, b: GraphBuilder, name: str, shape: Sequence[Any], dtype: str) -> Operand:
        value = b.input(name, shape, dtype)
        self.arrays.append(self.data([evaluate(poly(e), self.sizes) for e in shape], dtype))
        self.known[value] = self.arrays[-1]
        self.exact.add(value)
        return value

    def data(self, shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
        if dtype == "bool":
            return np.asarray(self.rng.integers(2, size=shape) == 1)
        if dtype == "float32":
            return np.asarray(self.rng.standard_normal(shape), dtype)
        return np.asarray(self.rng.integers(3, size=shape), dtype)

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, xs: Sequence[Any]) -> Any:
        return xs[int(self.rng.integers(len(xs)))]

    def constant(self, data: np.ndarray, name: str = "c") -> Operand:
        made = RegionBuilder().constant(data, name)
        self.known[made] = made.data
        self.exact.add(made)
        return made

    # ---- calls -------------------------------------------------------------------------------------------------------

    def call(self, b: RegionBuilder, operator: str, *args: Operand | None, **attrs: Any) -> list[Operand]:
        """The results of a call; empty if the call is invalid or its results are unusable."""
        given = [a for a in args if a is not None]
        try:
            known = GRAPH_OPERATORS.get(operator)
            bound = known.bind(attrs)
            types = known.infer([a.type for a in given], bound)
        except ScriptError:
            return []
        try:
            with np.errstate(all="ignore"):
                arrays = known.evaluate([self.known[a] for a in given], bound, self.sizes)
        except ValueError:  # numpy has no extremes of nothing
            return []
        if any(not np.isfinite(a).all() or a.size > ELEMENTS or (a.size and np.abs(a).max() > LARGEST) for a in arrays):
            return []
        made = b.call(operator, *given, **attrs)
        results = list(made) if isinstance(made, tuple) else [made]
        assert [r.type for r in results] == list(types)
        self.known.update(zip(results, arrays, strict=True))
        if any(r.type.dtype == "bool" for r in results) or (operator in MOVING and all(a in self.exact for a in given)):
            self.exact.update(results)
        return results

    def computed(self, b: RegionBuilder, results: Sequence[Value]) -> list[Operand]:
        """The results of the last binding of a region; the interpreter evaluates it, and unusable results remove it."""
        last = b.bindings[-1]
        outer = [o for o in dict.fromkeys(used(last.operation)) if isinstance(o, Value)]
        alone = GraphFunc("alone", tuple(outer), Region((last,), tuple(results)))
        module = {"part": part(), "halve": halve()}
        try:
            arrays = interpret.run(alone, [self.known[o] for o in outer], module, self.sizes)
        except ValueError:  # numpy has no extremes of nothing
            arrays = [np.full(1, np.nan)]
        if any(not np.isfinite(a).all() or (a.size and np.abs(a).max() > LARGEST) for a in arrays):
            b.bindings.pop()
            return []
        self.known.update(zip(results, arrays, strict=True))
        return list(results)

    def region(self, b: RegionBuilder, values: Sequence[Operand], operators: int, depth: int) -> list[Operand]:
        values = list(values)
        goal, tries = len(b.bindings) + operators, 0
        while len(b.bindings) < goal and tries < 20 * operators:
            tries += 1
            values += self.pick(self.recipes)(self, b, values, depth)
        return values

    def floats(self, values: Sequence[Operand], *ranks: int) -> Operand:
        """A float value with one of these ranks; later values are preferred."""
        fit = [v for v in values if v.type.dtype == "float32" and (not ranks or len(v.type.shape) in ranks)]
        return self.pick(fit[-6:] if self.chance(0.7) else fit)

    def moved(self, values: Sequence[Operand], dtype: str = "float32") -> Operand:
        return self.pick([v for v in values if v in self.exact and v.type.dtype == dtype])

    def extents(self, x: Operand) -> list[int | None]:
        """Extents of the operand, None for symbolic ones."""
        return [e.const for e in x.type.shape]

    def repeated(self, x: Operand) -> Operand:
        """A constant broadcast to the shape of `x`."""
        shape = [e if e is not None and self.chance(0.5) else 1 for e in self.extents(x)]
        return self.constant(self.data(shape[int(self.rng.integers(len(shape) + 1)) :]))


def part() -> GraphFunc:
    b = GraphBuilder("part")
    x = b.input("x", (3, 4))
    y = b.relu(x)
    return b.finish(b.add(b.relu(x), b.constant(np.float32(1))), y, x)


def halve() -> GraphFunc:
    """x / 2 ** (n - 1), by recursion."""
    b = GraphBuilder("halve")
    n, x = b.input("n", (), "int64"), b.input("x", (3, 4))
    one, half = b.constant(np.array(1)), b.constant(np.float32(0.5))
    last = b.less_equal(n, one)
    again = lambda r: r.call_function("halve", [r.subtract(n, one), r.multiply(x, half)], [x.type])[0]  # noqa: E731
    return b.finish(b.branch(last, lambda r: x, again))


# ---- recipes: each appends some calls and returns their results --------------------------------------------------------------


Recipe = Callable[[RandomGraph, RegionBuilder, list[Operand], int], list[Operand]]


def _convolution(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    x = g.floats(values, 4)
    first = g.chance(0.85)
    channels = g.extents(x)[1 if first else 3]
    if channels is None:
        return []
    groups = channels if g.chance(0.3) else 1
    out = channels if groups > 1 else g.pick((1, 2, 4))
    kernel = (g.pick((1, 3)), g.pick((1, 2)))
    shape = (out, channels // groups, *kernel) if first else (*kernel, channels // groups, out)
    w = g.constant(g.data(shape) * np.float32(0.4), "w")
    if g.chance(0.3):
        w = g.pick([c for c in g.weights if c.type == w.type] or [w])
    g.weights.append(w)
    attrs = {"padding": g.pick(((0, 0, 0, 0), (1, 0, 1, 1))), "strides": g.pick(((1, 1), (1, 2))), "groups": groups}
    found = g.call(b, "conv2d", x, w, **attrs, layout="NCHW" if first else "NHWC")
    along = (out, 1, 1) if first else (out,)
    for operator in ("add", "multiply", "add", "relu"):
        if found and g.chance(0.5):
            more = () if operator == "relu" else (g.constant(g.data(along if g.chance(0.8) else (1,))),)
            found += g.call(b, operator, found[-1], *more)
    return found


def _pool(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    attrs = {"kernel": (2, 2), "strides": g.pick(((1, 1), (2, 2))), "padding": g.pick(((0, 0, 0, 0), (1, 0, 1, 1)))}
    attrs |= {"ceil_mode": g.chance(0.5), "layout": g.pick(("NCHW", "NCHW", "NHWC"))}
    return g.call(b, g.pick(("max_pool2d", "avg_pool2d")), g.floats(values, 4), **attrs)


def _batch_norm(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    x = g.floats(values, 2, 3, 4)
    axis = int(g.rng.integers(-1, len(x.type.shape)))
    n = g.extents(x)[axis]
    if n is None:
        return []
    gamma, beta, mean = [g.constant(g.data((n,)), name) for name in ("gamma", "beta", "mean")]
    if g.chance(0.2):
        gamma = g.pick([v for v in values if v.type == gamma.type] or [gamma])
    return g.call(b, "batch_norm", x, gamma, beta, mean, g.constant(g.data((n,)) ** 2 + np.float32(0.5), "var"), eps=1e-3, axis=axis)


def _matmul(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    x = g.floats(values, 3) if g.chance(0.5) else g.floats(values, 1, 2, 3, 4)
    k = g.extents(x)[-1]
    if g.chance(0.2) or k is None:
        return g.call(b, "matmul", x, g.floats(values, 1, 2, 3, 4))
    shape = g.pick([(k, 4), (k, 4), (k, 3), (k,), (1, k, 2), (2, 1, k, 3)])
    w = g.constant(g.data(shape) * np.float32(0.5), "w")
    found = g.call(b, "matmul", x, w)
    for operator in ("add", "multiply", "gelu", "softmax", "batch_norm"):
        if found and g.chance(0.4):
            row = g.constant(g.data(shape[-1:]) ** 2 + np.float32(0.5))
            one = g.repeated(found[-1]) if g.chance(0.3) else row
            more = {"add": (one,), "multiply": (one,), "batch_norm": (row,) * 4}.get(operator, ())
            found += g.call(b, operator, found[-1], *more, **({"axis": -1, "eps": 0.1} if operator == "batch_norm" else {}))
    return found


def _unary(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    if g.chance(0.15):
        return g.call(b, g.pick(JUMPING), g.moved(values))
    if g.chance(0.1):
        return g.call(b, "clip", g.floats(values), min=-1.0, max=g.pick((None, 1.0)))
    return g.call(b, g.pick(CONTINUOUS), g.floats(values))


def _binary(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    x = g.floats(values)
    for _ in range(4):
        y = g.repeated(x) if g.chance(0.4) else g.pick(values)
        args = (x, y) if g.chance(0.7) else (y, x)
        found = g.call(b, g.pick(ARITHMETIC), *args)
        if found:
            return found
    return []


def _quotient(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    below = g.call(b, "add", *g.call(b, "square", g.floats(values)), g.constant(np.asarray(g.pick(([1.0], 1.0)), np.float32)))
    return below and [*below, *(g.call(b, "divide", g.floats(values), *below) or g.call(b, g.pick(("log", "rsqrt", "reciprocal")), *below))]


def _compare(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    x = g.moved(values)
    return g.call(b, g.pick(COMPARING), x, g.repeated(x) if g.chance(0.5) else g.moved(values))


def _choose(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    x = g.floats(values)
    for _ in range(4):
        found = g.call(b, "where", g.moved(values, "bool"), x, g.repeated(x) if g.chance(0.5) else g.floats(values))
        if found:
            return found
    p, q = g.moved(values, "bool"), g.moved(values, "bool")
    return g.call(b, g.pick(("logical_and", "logical_or", "logical_xor")), p, q) or g.call(b, "logical_not", p)


def _permute(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    x = g.pick(values)
    axes = None if g.chance(0.2) else tuple([int(a) for a in g.rng.permutation(len(x.type.shape))])
    return g.call(b, "permute_dims", x, axes=axes)


def _reshape(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    x = g.pick(values)
    shape = list(x.type.shape)
    at = int(g.rng.integers(len(shape) + 1))
    kind = g.pick(("merge", "merge", "flat", "row", "expand", "squeeze", "same", "repeat"))
    if kind == "merge" and at + 1 < len(shape):
        return g.call(b, "reshape", x, shape=[*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]])
    if kind == "flat":
        return g.call(b, "reshape", x, shape=[product(shape)])
    if kind == "row" and shape:
        return g.call(b, "reshape", x, shape=[shape[0], 1, *shape[1:]])
    if kind == "expand" and len(shape) < 4:
        return g.call(b, "expand_dims", x, axes=(at,))
    if kind == "squeeze":
        return g.call(b, "squeeze", x, axes=[d for d, e in enumerate(shape) if e == ONE][:1])
    if kind == "repeat" and len(shape) < 4:
        return g.call(b, "broadcast_to", x, shape=[2, *shape])
    return g.call(b, "reshape", x, shape=shape)


def _slice(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    x = g.pick(values)
    axes = [d for d, e in enumerate(g.extents(x)) if e is not None and e > 1 and g.chance(0.6)]
    if not axes:
        return []
    extents = [x.type.shape[d].as_int() for d in axes]
    begin = [int(g.rng.integers(e)) for e in extents]
    end = [int(g.rng.integers(a + 1, e + 1)) for a, e in zip(begin, extents, strict=True)]
    if g.chance(0.3):
        return g.call(b, "flip", x, axes=axes)
    negative = [a - len(x.type.shape) if g.chance(0.3) else a for a in axes]
    return g.call(b, "strided_slice", x, axes=negative, begin=begin, end=end, strides=[g.pick((1, 2)) for _ in axes])


def _concat(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    x = g.pick(values)
    axis = int(g.rng.integers(-1, max(1, len(x.type.shape))))
    extents = g.extents(x)
    others = [v for v in values if len(v.type.shape) == len(extents)]
    if None not in extents and extents and x.type.dtype == "float32" and g.chance(0.3):
        extents[axis] = 2
        others = [g.constant(g.data([e for e in extents if e is not None]))]
    return g.call(b, "concat", x, *[g.pick([x, *others]) for _ in range(int(g.rng.integers(3)))], axis=axis)


def _pad(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    x = g.floats(values, 1, 2, 3, 4)
    before, after = [[int(g.pick((0, 0, 1))) for _ in x.type.shape] for _ in range(2)]
    return g.call(b, "pad", x, before=before, after=after, mode=g.pick(("constant", "edge", "reflect")), value=0.5)


def _reduce(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    if g.chance(0.1):
        return g.call(b, g.pick(("all", "any")), g.moved(values, "bool"), axes=None, keepdims=g.chance(0.5))
    if g.chance(0.1):
        return g.call(b, g.pick(("argmax", "argmin")), g.moved(values), axis=-1, keepdims=g.chance(0.5))
    x = g.floats(values, 1, 2, 3, 4)
    rank = len(x.type.shape)
    axes = g.pick([None, (-1,), (0,), (2, 3), (-1, -2), tuple(range(rank))])
    return g.call(b, g.pick(("sum", "mean", "max", "min", "prod")), x, axes=axes, keepdims=g.chance(0.5))


def _normalise(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    x = g.floats(values, 1, 2, 3, 4)
    axis = int(g.rng.integers(-1, len(x.type.shape)))
    n = g.extents(x)[-1]
    kind = g.pick(("softmax", "log_softmax", "layer_norm", "rms_norm"))
    if kind == "layer_norm" and n is not None:
        affine = [g.constant(g.data((n,))) for _ in range(g.pick((0, 1, 2)))]
        return g.call(b, kind, x, *affine, axes=(-1,), eps=0.1)
    if kind == "rms_norm":
        return g.call(b, kind, x, axes=(axis,), eps=0.1)
    return g.call(b, kind, x, axis=axis)


def _take(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    x = g.floats(values, 1, 2, 3, 4)
    fit = [d for d, e in enumerate(g.extents(x)) if e is not None and e >= 3]
    indices = [v for v in values if v.type.dtype == "int64" and v in g.known and g.known[v].max(initial=0) < 3]
    own = g.constant(g.data(g.pick(((), (1,), (2,), (2, 2))), "int64"), "at")
    return g.call(b, "take", x, g.pick([*indices, own]), axis=g.pick(fit)) if fit else []


def _cast(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    if g.chance(0.3):
        return g.call(b, "cast", g.pick([v for v in values if v.type.dtype != "float32"]), dtype="float32")
    if g.chance(0.3):
        return g.call(b, "cast", g.moved(values), dtype=g.pick(("int32", "bool")))
    wide = g.call(b, "cast", g.floats(values), dtype=g.pick(("float64", "float32")))
    return wide and [*wide, *g.call(b, "cast", *wide, dtype="float32")]


def _split(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    x = g.pick(values)
    fit = [(d, e) for d, e in enumerate(g.extents(x)) if e is not None and e > 1]
    if not fit:
        return []
    axis, extent = g.pick(fit)
    return g.call(b, "split", x, sizes=(1, extent - 1), axis=axis)


def _create(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    c = g.repeated(g.floats(values))
    if g.chance(0.5):
        return [c, *(g.call(b, "square", c) or []), *g.call(b, "permute_dims", c)]
    return g.call(b, "full", shape=g.pick(values).type.shape, value=g.pick((0.5, -1.0)), dtype="float32")


def _again(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    """A duplicate of an earlier call, for common subexpression elimination."""
    if not b.bindings:
        return []
    op = g.pick(b.bindings).operation
    if not isinstance(op, Call):
        return []
    args = [g.constant(a.data, "copy") if isinstance(a, Constant) else a for a in op.args]
    return g.call(b, op.operator, *args, **op.keywords)


def _call_part(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    x = g.pick([v for v in values if v.type.dtype == "float32" and g.extents(v) == [3, 4]])
    results = b.call_function("part", [x], [x.type] * 3)
    y = np.maximum(g.known[x], 0)
    g.known.update(zip(results, (y + np.float32(1), y, g.known[x]), strict=True))
    return list(results)


def _branch(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    if not depth or not g.branches:
        return []
    like = [g.pick(values) for _ in range(g.pick((1, 2)))]
    made: list[list[Operand]] = []

    def fill(inner: RegionBuilder) -> Sequence[Operand]:
        found = g.region(inner, values, int(g.rng.integers(1, 5)), depth - 1)
        made.append([g.pick([v for v in found if v.type == x.type][-3:]) for x in like])
        return made[-1]

    conditions = [v for v in values if v.type.dtype == "bool" and not v.type.shape]
    condition = g.pick([*conditions, g.constant(np.array(True))])
    results = b.branch(condition, fill, fill)
    found = list(results) if isinstance(results, tuple) else [results]
    taken = made[0 if g.known[condition][()] else 1]
    g.known.update((r, g.known[v]) for r, v in zip(found, taken, strict=True))
    g.exact.update(r for r, *vs in zip(found, *made, strict=True) if all(v in g.exact for v in vs))
    return found


def _while(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    """A loop of up to three iterations, whose number is that of a carried counter or depends on it."""
    if not depth:
        return []
    carried = [g.constant(np.array(0)), *[g.pick(values) for _ in range(g.pick((1, 2)))]]
    limit, one = g.constant(np.array(g.pick((0, 1, 2, 3)))), g.constant(np.array(1))

    def step(inner: RegionBuilder, i: Operand, *xs: Operand) -> list[Operand]:
        g.known.update(zip(xs, [g.known[c] for c in carried[1:]], strict=True))
        found = g.region(inner, [*values, *xs], int(g.rng.integers(1, 5)), depth - 1)
        return [inner.add(i, one), *[g.pick([v for v in found if v.type == x.type][-3:]) for x in xs]]

    results = b.while_loop(carried, lambda r, i, *xs: r.less(i, limit), step)
    return g.computed(b, results)


def _read(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    """A tensor of as many rows as there are elements that hold, perhaps none."""
    flags = g.moved(values, "bool")
    counted = g.call(b, "sum", *g.call(b, "cast", flags, dtype="int64"), axes=None)
    if not counted or g.known[counted[0]] > 8:
        return []
    size = b.read_size(counted[0])
    g.sizes[size] = int(g.known[counted[0]])
    x = g.floats(values, 1, 2)
    if g.chance(0.3):
        return g.call(b, "arange", start=0, stop=poly(size), step=1, dtype="float32")
    return g.call(b, "broadcast_to", x, shape=[poly(size), *x.type.shape])


def _recursion(g: RandomGraph, b: RegionBuilder, values: list[Operand], depth: int) -> list[Operand]:
    x = g.pick([v for v in values if v.type.dtype == "float32" and g.extents(v) == [3, 4]])
    n = g.constant(np.array(g.pick((0, 1, 2, 5))))
    results = b.call_function("halve", [n, x], [x.type])
    g.known[results[0]] = g.known[x] * np.float32(0.5 ** max(int(g.known[n]) - 1, 0))
    return list(results)


LOOPS: tuple[Recipe, ...] = (_while, _read, _recursion)

RECIPES: tuple[Recipe, ...] = (
    *[_convolution, _binary, _unary, _matmul, _reshape] * 3,
    *[_pool, _batch_norm, _choose, _permute, _slice, _reduce, _normalise, _again] * 2,
    *[_quotient, _compare, _concat, _pad, _take, _cast, _split, _create, _call_part, _branch],
)
