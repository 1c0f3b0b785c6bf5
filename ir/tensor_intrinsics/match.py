"""Match a loop nest against the description of a tensor intrinsic.

The nest may have further loops of one iteration.  Expressions must be equal up to the order of the operands of +, *, min and max.  For each
buffer the distance in memory between neighbouring iterations of each loop must be that of the description.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from tunesmith.ir.arith.linear import linear
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Call, Cast, Const, Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import ZERO, Poly, Var, poly, substitute
from tunesmith.ir.stmt import Block, BufferStore, For, Stmt
from tunesmith.ir.tensor_intrinsics.intrinsic import Operand, TensorIntrinsic
from tunesmith.ir.visit import substitute as substituted
from tunesmith.support.errors import UserError

COMMUTATIVE = ("add", "mul", "min", "max")
MOST_POINTS = 4096
"""Limit on the iterations for which an index with divisions is compared."""


class Mismatch(Exception):
    """Raised where a nest differs from a description; the text says where."""


@dataclass(frozen=True, slots=True)
class Nest:
    """Nested loops around one store.

    Attributes:
        loops: from outside to inside.
        store: in terms of the loops' variables.
    """

    loops: tuple[For, ...]
    store: BufferStore

    @property
    def counted(self) -> tuple[For, ...]:
        """The loops without those of one iteration."""
        return tuple([f for f in self.loops if f.extent != 1])


@dataclass(frozen=True, slots=True)
class Match:
    """A nest that equals a description.

    Attributes:
        operands: by the names of the description's buffers; their indices are those of the first iteration.
        extents: differences of extents that are 0 in the description and depend on Params here.
    """

    operands: Mapping[str, Operand]
    extents: tuple[Poly, ...]


def nest_of(loop: For) -> Nest:
    """The loops from `loop` inwards around one block, or around one store.

    Raises:
        Mismatch: there are other statements, an init, or reduction updates with conditions.
    """
    loops = [loop]
    body: Stmt = loop.body
    while type(body) is For:
        loops.append(body)
        body = body.body
    if type(body) is Block:
        if body.init is not None:
            raise Mismatch(f"block {body.name} initialises its result; use decompose_reduction first")
        values = dict(zip([it.var for it in body.iters], body.bindings, strict=True))
        body = substituted(body.body, values)
    if type(body) is not BufferStore:
        raise Mismatch(f"the loops contain {type(body).__name__}, not a single store")
    return Nest(tuple(loops), body)


def match(nest: Nest, intrinsic: TensorIntrinsic) -> Match:
    """The operands of a nest that equals the description of an intrinsic.

    Raises:
        Mismatch: it does not; the text says where.
        UserError: the description is not a single loop nest around one block.
    """
    described, sizes = described_nest(intrinsic)
    counted = nest.counted
    if len(counted) != len(described.loops):
        shown = " x ".join([repr(f.extent) for f in counted]) or "one iteration"
        raise Mismatch(f"the nest has the extents {shown}, the description {' x '.join([repr(f.extent) for f in described.loops])}")
    differences = [f.extent - g.extent for f, g in zip(counted, described.loops, strict=True)]
    for f, d in zip(counted, differences, strict=True):
        if d.const:
            raise Mismatch(f"loop {f.var.name} has the extent {f.extent}, the description {f.extent - d}")
    ones: dict[Var, Poly] = {f.var: ZERO for f in nest.loops if f.extent == 1}
    store = substituted(nest.store, ones) if ones else nest.store
    variables, lengths = [f.var for f in counted], [g.extent.as_int() for g in described.loops]
    reason: Mismatch | None = None
    for found in _unifications(described.store, store):
        try:
            operands = _operands_of(found, described, sizes, variables, lengths)
        except Mismatch as error:
            reason = reason or error
        else:
            return Match(operands, tuple([d for d in differences if d.const is None]))
    raise reason or Mismatch("the stored value is another expression than that of the description")


Bound = dict[Buffer, tuple[tuple[Poly, ...], Buffer, tuple[Poly, ...]]]
"""For the buffers of a description: its indices there, the buffer of the nest, its indices there."""


def _operands_of(found: Bound, described: Nest, sizes: frozenset[Var], variables: list[Var], lengths: list[int]) -> dict[str, Operand]:
    """The operands of one unification.  Mismatch if types, scopes, or distances in memory differ."""
    written = found[described.store.buffer][1]
    if sum(b is written for _, b, _ in found.values()) > 1:
        raise Mismatch(f"{written.name} is read as an operand and written, which the description does not do")
    operands: dict[str, Operand] = {}
    for pattern, (like, buffer, indices) in found.items():
        if pattern.dtype != buffer.dtype:
            raise Mismatch(f"{buffer.name} has elements of {buffer.dtype}, the description of {pattern.dtype}")
        if pattern.scope not in ("global", buffer.scope):
            raise Mismatch(f"{buffer.name} is in the scope {buffer.scope}, the description needs {pattern.scope}; use set_scope")
        start, steps = _steps(buffer, indices, variables, lengths)
        values: dict[str, Poly] = {}
        for g, step in zip(described.loops, steps, strict=True):
            wanted, _ = _distance(pattern, like, g.var, sizes)
            size = next((v for v in wanted.vars if v in sizes), None)
            if size is not None:
                values[size.name] = step
            elif step != wanted:
                raise Mismatch(
                    f"neighbouring iterations of a loop of {g.extent} access {buffer.name} {step} elements apart, "
                    f"the description {pattern.name} {wanted}"
                )
        operands[pattern.name] = Operand(buffer, start, values)
    return operands


@cache
def described_nest(intrinsic: TensorIntrinsic) -> tuple[Nest, frozenset[Var]]:
    """The nest of a description, and its sizes.  UserError if it is not a single nest of loops with constant extents around one block."""
    func: PrimFunc = intrinsic.function
    what = f"the description of the tensor intrinsic {intrinsic.name}"
    if type(func.body) is not For or func.allocs:
        raise UserError(f"{what} must be one loop nest without intermediate buffers")
    try:
        nest = nest_of(func.body)
    except Mismatch as error:
        raise UserError(f"{what} must be one loop nest around one block: {error}") from None
    if any(f.extent.const is None or f.extent.const < 2 for f in nest.loops):
        raise UserError(f"{what} needs loops of constant extents, at least 2")
    sizes = frozenset([p for p in func.params if isinstance(p, Var)])
    for b, indices in _accesses(nest.store):
        for f in nest.loops:
            step, _ = _distance(b, indices, f.var, sizes)
            if len(step.vars) > 1 or (step.vars and step != poly(next(iter(step.vars)))):
                raise UserError(f"{what}: the distance {step} of the elements of {b.name} must be a number or a size")
    return nest, sizes


def _accesses(store: BufferStore) -> Iterator[tuple[Buffer, tuple[Poly, ...]]]:
    yield store.buffer, store.indices
    stack: list[object] = [store.value]
    while stack:
        n = stack.pop()
        if isinstance(n, BufferLoad):
            yield n.buffer, n.indices
        elif isinstance(n, Expr) and not isinstance(n, Poly):
            n.each_child(stack.append)


def _distance(b: Buffer, indices: Sequence[Poly], v: Var, sizes: frozenset[Var]) -> tuple[Poly, Poly]:
    """Elements between neighbouring iterations of a loop, and the offset without them."""
    split = linear(_offset(b, indices), v, sizes)
    if split is None:
        raise UserError(f"the index of {b.name} in a description must be linear in its loops")
    return split


def _offset(b: Buffer, indices: Sequence[Poly]) -> Poly:
    out = ZERO
    for i, step in zip(indices, b.strides, strict=True):
        out = out + i * step
    return out


def _steps(b: Buffer, indices: tuple[Poly, ...], variables: list[Var], extents: list[int]) -> tuple[Poly, list[Poly]]:
    """The offset at the first iteration, and the distance between neighbouring iterations of each loop.

    Indices are compared as normal forms, so the result holds for all values of the Params.
    """
    offset = _offset(b, indices)
    start = substitute(offset, dict.fromkeys(variables, ZERO))
    steps = [substitute(offset, {w: poly(int(w is v)) for w in variables}) - start for v in variables]
    divided = {v for m, _ in offset.terms for a in m if not isinstance(a, Var) for v in a.vars}
    used = [n for n, v in enumerate(variables) if v in divided]
    spread = [range(extents[n]) if n in used else range(2) for n, v in enumerate(variables) if v in offset.vars]
    varying = [n for n, v in enumerate(variables) if v in offset.vars]
    if math.prod(map(len, spread)) > MOST_POINTS:
        raise Mismatch(f"the index of {b.name} divides too many loop variables")
    for point in itertools.product(*spread):
        at = dict(zip(varying, point, strict=True))
        linear_value = start
        for n, x in at.items():
            linear_value = linear_value + steps[n] * x
        values: dict[Var, Poly] = {v: poly(at.get(n, 0)) for n, v in enumerate(variables)}
        if substitute(offset, values) != linear_value:
            raise Mismatch(f"the elements of {b.name} are not equally spaced along the loops")
    return start, steps


def _unifications(a: BufferStore, b: BufferStore) -> Iterator[Bound]:
    """The buffers of a nest for those of a description, for each order of the operands of commutative operations."""
    first: Bound = {a.buffer: (a.indices, b.buffer, b.indices)}
    yield from _unified(a.value, b.value, first)


def _unified(a: Expr, b: Expr, bound: Bound) -> Iterator[Bound]:
    if type(a) is not type(b):
        return
    if isinstance(a, BufferLoad) and isinstance(b, BufferLoad):
        entry = (a.indices, b.buffer, b.indices)
        if b.lanes == 1 and bound.get(a.buffer, entry) == entry:
            yield {**bound, a.buffer: entry}
    elif isinstance(a, Const) and isinstance(b, Const):
        if a.dtype == b.dtype and a.value == b.value:
            yield bound
    elif isinstance(a, Cast) and isinstance(b, Cast):
        if a.dtype == b.dtype:
            yield from _unified(a.a, b.a, bound)
    elif isinstance(a, Call) and isinstance(b, Call):
        if (a.name, a.dtype, len(a.args)) == (b.name, b.dtype, len(b.args)):
            yield from _all_unified(a.args, b.args, bound)
    elif isinstance(a, Binary) and isinstance(b, Binary) and a.op == b.op:
        yield from _all_unified((a.a, a.b), (b.a, b.b), bound)
        if a.op in COMMUTATIVE:
            yield from _all_unified((a.a, a.b), (b.b, b.a), bound)


def _all_unified(a: Sequence[Expr], b: Sequence[Expr], bound: Bound) -> Iterator[Bound]:
    if not a:
        yield bound
        return
    for found in _unified(a[0], b[0], bound):
        yield from _all_unified(a[1:], b[1:], found)
