"""Convert ONNX Loop and Scan: to a loop of known trip count, to a `while` loop, or to the iterations one after the other.

A body is converted once, for the number of the iteration as a size.  If nothing but a constant limits the iterations, they become a
`Loop`, whose scan outputs are its rows; else a `While`, which carries the number, the condition and the state.  A `While` stores scan
outputs in tensors of as many rows as there may be iterations, and cuts them to the iterations that ran.  If a carried value changes its
type, a loop of a few iterations is unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tunesmith.graph.importers.onnx.control import GraphImporter, Scope, branch
from tunesmith.graph.importers.onnx.node import cast_to, normalised, rank
from tunesmith.graph.importers.onnx.sequences import parts, sequence_map
from tunesmith.graph.importers.onnx.values import (
    MISSING,
    Datum,
    FoldingBuilder,
    Sizes,
    UnsupportedNode,
    declare,
    is_read,
    known_ints,
    least,
    sizes,
)
from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.node import (
    Binding,
    Call,
    Constant,
    Loop,
    Operand,
    ReadSize,
    Region,
    TensorType,
    Value,
    While,
    defined_sizes,
    sizes_in,
    used,
)
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.poly import Index, Poly, Var, maximum, poly
from tunesmith.support import dtype as dt

MOST_UNROLLED = 256
"""Maximum number of iterations that are unrolled."""
MOST_TRIPS = 1024
"""Maximum number of iterations of a `Loop`, whose steps are listed for each iteration in the program; more are a `While`."""
MOST_ROWS = 1 << 24
"""Maximum number of rows of a scan output of a `While`."""

Enter = Callable[[FoldingBuilder, Datum, Sequence[Any]], dict[str, Any]]
"""Takes a builder, the number of the iteration and the state; returns the inputs of the body by name."""


@dataclass(frozen=True)
class _Plan:
    """A loop.

    Attributes:
        importer: converts the body.
        body: the graph.
        scope: names that the body sees.
        place: path of the node.
        state: initial state.
        enter: see `Enter`.
        first: output of the body at which the next state begins; the output before it is the condition.
        trips: number of iterations, or the maximum; None if there is none.
        condition: whether there is a first iteration.
    """

    importer: GraphImporter
    body: Any
    scope: Scope
    place: str
    state: tuple[Any, ...]
    enter: Enter
    first: int
    trips: int | Poly | None
    condition: Datum

    @property
    def outputs(self) -> int:
        """The number of results."""
        return len(self.body.output) - self.first

    def iterate(self, b: FoldingBuilder, index: Datum, state: Sequence[Any], name: str) -> list[Any]:
        """The outputs of the body in an iteration."""
        inner = self.scope.inner(name)
        inner.tensors.update(self.enter(b, index, state))
        self.importer.graph(self.body, inner, b)
        return [self.importer.lookup(o.name, inner, f"node {self.place}") for o in self.body.output]


def loop(
    importer: GraphImporter, attributes: Mapping[str, Any], inputs: Sequence[Datum | None], scope: Scope, b: FoldingBuilder, place: str
) -> Sequence[Any]:
    """Convert a Loop."""
    body = attributes["body"].g
    limit, given, *state = [*inputs, None, None][: max(len(inputs), 2)]
    names = [i.name for i in body.input]
    if len(names) != len(state) + 2 or len(body.output) < len(state) + 1 or any(x is None for x in state):
        raise UnsupportedNode(f"a body with {len(names)} inputs and {len(body.output)} outputs for {len(state)} carried values")

    def enter(builder: FoldingBuilder, index: Datum, carried: Sequence[Any]) -> dict[str, Any]:
        running: Datum = builder.constant(np.array(True))  # the body runs only if the condition holds
        shaped = [_shaped(builder, x, i) for x, i in zip((index, running), body.input, strict=False)]
        return dict(zip(names, [*shaped, *carried], strict=True))

    condition = b.constant(np.array(True)) if given is None else _scalar(b, given)
    trips = None if limit is None else _trips(b, limit)
    plan = _Plan(importer, body, scope, place, tuple(state), enter, 1, trips, condition)
    return _converted(plan, b)


def scan(
    importer: GraphImporter, attributes: Mapping[str, Any], inputs: Sequence[Datum | None], scope: Scope, b: FoldingBuilder, place: str
) -> Sequence[Any]:
    """Convert a Scan."""
    body, count = attributes["body"].g, attributes["num_scan_inputs"].i
    if scope.opsets.get("", 0) < 9 or any(x is None for x in inputs):
        raise UnsupportedNode("the form before operator set 9, or an omitted input")
    axes, out_axes, back, out_back = (
        list(attributes[name].ints) if name in attributes else []
        for name in ("scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions")
    )
    sequences = [x for x in inputs[-count:] if x is not None]
    at = [normalised(axes[i] if axes else 0, rank(x)) for i, x in enumerate(sequences)]
    steps = sequences[0].type.shape[at[0]]
    names = [i.name for i in body.input]

    def enter(builder: FoldingBuilder, index: Datum, carried: Sequence[Any]) -> dict[str, Any]:
        (t,) = known_ints(index) or (0,)
        parts = []
        for i, (x, axis) in enumerate(zip(sequences, at, strict=True)):
            k = poly(steps - 1 - t if back and back[i] else t)
            begin, end = (e if e.const is None else e.const for e in (k, k + 1))
            parts.append(builder.squeeze(builder.strided_slice(x, axes=(axis,), begin=(begin,), end=(end,)), axes=(axis,)))
        return dict(zip(names, [*carried, *parts], strict=True))

    true = b.constant(np.array(True))
    trips = steps if steps.const is None else steps.const
    plan = _Plan(importer, body, scope, place, tuple(inputs[:-count]), enter, 0, trips, true)
    made = list(_converted(plan, b))
    for i in range(len(made) - (len(inputs) - count)):
        k = len(inputs) - count + i
        if made[k] is MISSING:
            continue
        if out_back and out_back[i]:
            made[k] = b.flip(made[k], axes=(0,))
        axis = normalised(out_axes[i] if out_axes else 0, rank(made[k]))
        if axis:
            order = [*range(1, axis + 1), 0, *range(axis + 1, rank(made[k]))]
            made[k] = b.permute_dims(made[k], axes=tuple(order))
    return made


def _shaped(b: FoldingBuilder, x: Datum, declared: Any) -> Datum:
    """A number in the declared shape of an input: none, or one element."""
    ranks = declared.type.tensor_type
    return b.reshape(x, shape=(1,)) if ranks.HasField("shape") and len(ranks.shape.dim) == 1 else x


def _scalar(b: FoldingBuilder, x: Datum) -> Datum:
    return x if not x.type.shape else b.reshape(x, shape=())


def _trips(b: FoldingBuilder, limit: Datum) -> int | Poly:
    known = known_ints(limit)
    if known is None:
        number = cast_to(b, _scalar(b, limit), "int64")
        known = (b.read_size(b.maximum(number, b.constant(0, "int64")), "trips"),)
    (found,) = known
    if isinstance(found, int):
        return max(found, 0)
    return found if (least(found) or -1) >= 0 or is_read(found) else maximum(found, 0)


def _converted(plan: _Plan, b: FoldingBuilder) -> Sequence[Any]:
    """The final state and the scan outputs."""
    unsupported = plan.importer.unsupported
    before, refused = len(unsupported), None
    constant = plan.condition.data.all() if isinstance(plan.condition, Constant) else None
    if constant is not None and not constant:
        plan = replace(plan, trips=0)
    if all(isinstance(x, (Value, Constant, Sizes)) for x in plan.state):
        try:
            return _region_loop(plan, b, before)
        except UnsupportedNode as error:
            refused = error
    found = unsupported[before:]
    del unsupported[before:]
    most = MOST_UNROLLED // (16 if plan.scope.place else 1)  # of the inner one of two loops
    if constant and isinstance(plan.trips, int) and plan.trips <= most:
        made = _unrolled(plan, b)
        if made is not None and len(unsupported) == before:
            return made
        found = found or unsupported[before:]
        del unsupported[before:]
    unsupported += found
    if found:
        return [MISSING] * plan.outputs
    wanted = b.wanted_for([plan.trips]) + b.wanted(plan.condition)
    if refused is not None:
        raise UnsupportedNode(refused.reason, refused.wanted or wanted)
    raise UnsupportedNode("a loop that carries something other than tensors needs a constant trip count and no condition", wanted)


def _unrolled(plan: _Plan, b: FoldingBuilder) -> list[Any] | None:
    """The results of the iterations one after the other; None if the condition is not known."""
    if not plan.trips:
        return None
    state, rows = list(plan.state), []
    assert isinstance(plan.trips, int)
    for t in range(plan.trips):
        made = plan.iterate(b, b.constant(t, "int64"), state, f"{plan.body.name}_{t}")
        if any(m is MISSING for m in made):
            return None
        more = made[0] if plan.first else None
        if more is not None and not isinstance(more, Constant):
            return None
        state = made[plan.first : plan.first + len(state)]
        rows.append(made[plan.first + len(state) :])
        if isinstance(more, Constant) and not more.data.all():
            break
    collected = [b.concat(*[b.expand_dims(v, axes=(0,)) for v in column], axis=0) for column in zip(*rows, strict=True)]
    return [*state, *collected]


@dataclass
class _Converted:
    """A body that was converted.

    Attributes:
        builder: its bindings.
        index: the number of the iteration, as a size.
        number: the number of the iteration, as a tensor.
        params: the carried state.
        more: whether another iteration follows.
        state: the next state.
        rows: the scan outputs of the iteration.
    """

    builder: FoldingBuilder
    index: Var
    number: Value
    params: tuple[Value, ...]
    more: Datum
    state: list[Operand]
    rows: list[Operand]

    @property
    def region(self) -> RegionBuilder:
        """The builder of the region."""
        return self.builder.region


def _region_loop(plan: _Plan, b: FoldingBuilder, before: int) -> Sequence[Any]:
    initial = [b.operand(x) for x in plan.state]
    body = _convert_body(plan, b, initial)
    if body is None or len(plan.importer.unsupported) > before:
        return _missing(plan, before)
    plain = isinstance(plan.condition, Constant) and isinstance(body.more, Constant)
    if plan.trips == 0:
        return [*plan.state, *[_no_rows(b, r.type) for r in body.rows]]
    if plain and isinstance(body.more, Constant) and not body.more.data.all() and plan.trips is None:
        plan = replace(plan, trips=1)
    if plain and isinstance(plan.trips, int):
        trips = plan.trips if isinstance(body.more, Constant) and body.more.data.all() else 1
        if trips <= MOST_TRIPS:
            results = tuple([*body.state, *body.rows])
            operation = Loop(body.index, trips, tuple(initial), body.params, _with_number(body, results))
            return _bound(b, operation, operation.types, plan, initial)
    return _while(plan, b, body, initial)


def _missing(plan: _Plan, before: int) -> Sequence[Any]:
    """MISSING for all results, if the nodes in the body that are not supported were reported."""
    if len(plan.importer.unsupported) > before:
        raise UnsupportedNode("its body has unsupported operators")
    return [MISSING] * plan.outputs


def _convert_body(plan: _Plan, b: FoldingBuilder, initial: Sequence[Operand]) -> _Converted | None:
    most = plan.trips - 1 if isinstance(plan.trips, int) and plan.trips > 0 else None
    index = declare(Var("t"), most)
    params = tuple([Value(i.name or "carried", o.type) for i, o in zip(plan.body.input[plan.first * 2 :], initial, strict=False)])
    builder = FoldingBuilder(RegionBuilder(), b)
    b.remember(params, initial)
    number = Value("t", TensorType((), "int64"))
    if not isinstance(plan.trips, int) or plan.trips > MOST_TRIPS or not isinstance(plan.condition, Constant):
        builder.number_is(index, number)
    made = plan.iterate(builder, sizes(np.array(poly(index), dtype=object)), params, plan.body.name)
    if any(m is MISSING for m in made):
        return None
    if not all(isinstance(m, (Value, Constant, Sizes)) for m in made):
        raise UnsupportedNode("its body computes something other than tensors; only a loop of a few iterations may")
    more: Datum = _scalar(builder, made[0]) if plan.first else builder.constant(np.array(True))
    operands = [builder.operand(m) for m in made[plan.first :]]
    state, rows = operands[: len(params)], operands[len(params) :]
    for p, o in zip(params, state, strict=True):
        if p.type != o.type:
            raise UnsupportedNode(
                f"the carried value {p.name} is {p.type}, and {o.type} after an iteration: its type must stay the same. Carry a tensor "
                "that is large enough, and the number of its elements that count"
            )
    inner = {index, *defined_sizes(Region(tuple(builder.region.bindings), ()))}
    for r in rows:
        if any(v in inner for e in r.type.shape for v in e.vars):
            raise UnsupportedNode(f"the scan output {r.name} is {r.type}, which depends on the iteration: all rows must have one shape")
    return _Converted(builder, index, number, params, more, state, rows)


def _no_rows(b: FoldingBuilder, row: TensorType) -> Datum:
    if not row.is_static:
        raise UnsupportedNode(f"no rows of the shape {row}; fix its sizes with shapes=")
    return b.constant(np.zeros((0, *row.extents)), row.dtype)


def _while(plan: _Plan, b: FoldingBuilder, body: _Converted, initial: Sequence[Operand]) -> Sequence[Any]:
    rows = _rows(plan, b, body)
    always = isinstance(body.more, Constant) and body.more.data.all()
    condition = not (always and isinstance(plan.condition, Constant))
    if not condition and plan.trips is None:
        raise UnsupportedNode("a loop without a trip count and a condition never ends")
    number, flag = body.number, Value("running", TensorType((), "bool"))
    inner = body.builder
    following: list[Operand] = [inner.operand(inner.add(number, inner.constant(1, "int64"))), *body.state]
    params: list[Value] = [number, *body.params]
    first: list[Operand] = [b.constant(0, "int64"), *initial]
    for row, (zeros, param) in zip(body.rows, rows, strict=True):
        at = inner.reshape(number, shape=(1,))
        following.append(inner.operand(inner.index_put_rows(param, at, inner.expand_dims(row, axes=(0,)), axis=0)))
        first.append(zeros)
        params.append(param)
    if condition:
        following.append(inner.operand(body.more))
        first.append(b.operand(plan.condition))
        params.append(flag)
    decided = _decide(plan, b, number, flag if condition else None)
    region = _with_index(body, number, following)
    operation = While(tuple(first), tuple(params), decided, region)
    made = b.region.bind(operation, operation.types, b.hint or "loop")
    b.remember(made, [*first, *_captured(plan)])
    state, found = made[1 : 1 + len(initial)], made[1 + len(initial) : 1 + len(initial) + len(rows)]
    if not condition or not rows:
        return [*state, *found]
    most = plan.trips if isinstance(plan.trips, int) else None
    ran = b.read_size(made[0], "ran", most)
    axis, many = (0,), (ran,)
    return [*state, *[b.strided_slice(r, axes=axis, begin=(0,), end=many) for r in found]]


def _captured(plan: _Plan) -> list[Value]:
    return [t for datum in plan.scope.tensors.values() for t in parts(datum) if isinstance(t, Value)]


def _rows(plan: _Plan, b: FoldingBuilder, body: _Converted) -> list[tuple[Operand, Value]]:
    """The initial tensors and the carried values of the scan outputs."""
    if not body.rows:
        return []
    if plan.trips is None or (isinstance(plan.trips, int) and plan.trips > MOST_ROWS):
        most = "no maximum trip count" if plan.trips is None else f"a maximum trip count of {plan.trips}"
        raise UnsupportedNode(f"scan outputs of a loop with {most}: give the model a trip count of at most {MOST_ROWS}")
    trips: Index = plan.trips
    types = [TensorType((poly(trips), *r.type.shape), r.type.dtype) for r in body.rows]
    zero = [0.0 if dt.is_float(t.dtype) else False if t.dtype == "bool" else 0 for t in types]
    made = [b.region.call("full", shape=t.shape, value=z, dtype=t.dtype, name="rows") for t, z in zip(types, zero, strict=True)]
    return [(m, Value("rows", t)) for m, t in zip(made, types, strict=True)]


def _decide(plan: _Plan, b: FoldingBuilder, number: Value, flag: Value | None) -> Region:
    """The region that says whether there is another iteration."""
    builder = FoldingBuilder(RegionBuilder(), b)
    running: Datum | None = flag
    if plan.trips is not None:
        limit = sizes(np.array(plan.trips, dtype=object))
        below = builder.less(number, limit)
        running = below if flag is None else builder.logical_and(below, flag)
    assert running is not None
    return Region(tuple(builder.region.bindings), (builder.operand(running),))


def _with_number(body: _Converted, results: Sequence[Operand]) -> Region:
    """The region of a `Loop`, which computes the number of the iteration as a tensor if something uses it."""
    bindings = tuple(body.region.bindings)
    if body.number in (*results, *[o for binding in bindings for o in used(binding.operation)]):
        attrs = GRAPH_OPERATORS.get("size_value").bind({"value": poly(body.index), "dtype": "int64"})
        bindings = (Binding((body.number,), Call("size_value", (), attrs)), *bindings)
    return Region(bindings, tuple(results))


def _with_index(body: _Converted, number: Value, results: Sequence[Operand]) -> Region:
    """The region of a `While`, which reads the number of the iteration as a size if something uses it."""
    bindings = list(body.region.bindings)
    if any(body.index in sizes_in(binding) for binding in bindings):
        bindings.insert(0, Binding((), ReadSize(number, body.index)))
    return Region(tuple(bindings), tuple(results))


def _bound(b: FoldingBuilder, operation: Loop, types: Sequence[TensorType], plan: _Plan, initial: Sequence[Operand]) -> Sequence[Any]:
    made = b.region.bind(operation, types, b.hint or "loop")
    b.remember(made, [*initial, *_captured(plan)])
    return made


Control = Callable[[GraphImporter, Mapping[str, Any], Sequence[Datum | None], Scope, FoldingBuilder, str], Sequence[Any]]

CONTROL: Mapping[str, Control] = {"If": branch, "Loop": loop, "Scan": scan, "SequenceMap": sequence_map}
"""Converters of nodes with sub-graphs."""
