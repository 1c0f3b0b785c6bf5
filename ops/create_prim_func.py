"""Create functions with loops from tensors that are defined by formulas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Const, Expr, const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectVar
from tunesmith.ir.node import Node
from tunesmith.ir.poly import Param, Poly, Var, poly
from tunesmith.ir.stmt import BindIndex, Block, BufferStore, If, Iter, Stmt, nest, seq
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import fresh_copy, substitute, walk
from tunesmith.ops.tensor import ReduceAxis, Reduction, Scan, Scatter, SpatialAxis, Tensor, variables_of
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError


def create_prim_func(tensors: Sequence[Tensor], name: str = "main") -> PrimFunc:
    """The function that computes the output tensors from the inputs.

    Args:
        tensors: the parameters in order, inputs and then outputs.  Intermediate tensors become allocations of the function.
        name: name of the function.
    Returns:
        A function with one loop nest and one block for each computed tensor, producers first.  Each call makes new buffers and
        variables.  Sizes made by `var` become scalar parameters after the buffers.
    Raises:
        ScriptError: nothing is computed, a required placeholder is not a parameter, or a tensor is listed twice.
    """
    for t in tensors:
        if not isinstance(t, Tensor):
            raise ScriptError(f"create_prim_func {name}: a parameter is a tensor, got {type(t).__name__}: {t!r}")
    if len(set(tensors)) != len(tensors):
        twice = next(t for t in tensors if tensors.count(t) > 1)
        raise ScriptError(f"create_prim_func {name}: the tensor {twice.name} is listed twice")
    stages = _producers_first([t for t in tensors if not t.is_input], set(tensors), name)
    if not stages:
        raise ScriptError(f"create_prim_func {name}: no tensor is computed; list the results of compute after the inputs")
    inner = [t for t in stages if t not in tensors]
    buffers: dict[Buffer, Buffer] = {
        t: Buffer(n, t.shape, t.dtype) for t, n in zip((*tensors, *inner), _unique([*tensors, *inner]), strict=True)
    }
    body = seq([_stage(t, block, buffers) for t, block in zip(stages, _unique(stages), strict=True)])
    func = PrimFunc(name, (*[buffers[t] for t in tensors], *_sizes([*tensors, *inner])), tuple([buffers[t] for t in inner]), body)
    verify(func)
    return func


def _producers_first(outputs: Sequence[Tensor], parameters: set[Tensor], name: str) -> list[Tensor]:
    """All computed tensors that the outputs need, each after its producers."""
    done: dict[Tensor, None] = {}
    stack: list[tuple[Tensor, bool]] = [(t, False) for t in reversed(outputs)]
    while stack:
        t, ready = stack.pop()
        if t in done:
            continue
        if t.is_input:
            if t not in parameters:
                raise ScriptError(f"create_prim_func {name}: the input {t.name} is read, but it is not in the list of parameters")
        elif ready:
            done[t] = None
        else:
            stack.append((t, True))
            stack.extend([(s, False) for s in reversed(t.sources)])
    return list(done)


def _unique(tensors: Sequence[Tensor]) -> list[str]:
    """The names of the tensors, with numbers added to duplicates; the first of a name keeps it."""
    taken = {t.name for t in tensors}
    used: set[str] = set()
    out: list[str] = []
    for t in tensors:
        name, count = t.name, 0
        while name in used or (count and name in taken):
            count += 1
            name = f"{t.name}_{count}"
        used.add(name)
        out.append(name)
    return out


def _sizes(tensors: Sequence[Tensor]) -> list[Var]:
    """The dynamic sizes: variables of shapes, extents and formulas that are neither axes nor Params."""
    parts: list[Node] = []
    for t in tensors:
        parts += t.shape
        if isinstance(t.value, Reduction):
            parts += [a.extent for a in t.value.axes]
        if isinstance(t.value, Scatter):
            parts += t.value.extents
        parts += [] if t.value is None else walk(t.value)
    used = dict.fromkeys([v for n in parts for v in variables_of(n)])
    return [v for v in used if not isinstance(v, (Param, SpatialAxis, ReduceAxis, IndirectVar))]


def _stage(t: Tensor, block: str, buffers: Mapping[Buffer, Buffer]) -> Stmt:
    """The loops and the block of one computed tensor.

    A reduction accumulates as `C[...] = C[...] op value`, with the old value first, because rfactor and the vectorizer match this form.
    """
    value: Any = t.value
    if isinstance(value, Scatter):
        return _scatter(t, value, block, buffers)
    axes: list[tuple[Var, Poly, str]] = [(v, e, "S") for v, e in zip(t.axes, t.shape, strict=True)]
    if isinstance(value, Reduction):
        axes += [(v, v.extent, "R") for v in value.axes]
    loops = [(Var(v.name), e) for v, e, _ in axes]
    iters = tuple([Iter(Var(f"v_{v.name}"), e, kind) for v, e, kind in axes])
    renamed: dict[Var, Poly] = {v: poly(i.var) for (v, _, _), i in zip(axes, iters, strict=True)}
    target, at = buffers[t], tuple([renamed[v] for v in t.axes])
    if isinstance(value, Scan) and value.reverse:
        at = tuple([t.shape[d] - 1 - e if d == value.axis else e for d, e in enumerate(at)])
    init: Stmt | None = None
    if isinstance(value, Reduction):
        init = BufferStore(target, at, _identity(value.op, t.dtype))
        formula: Expr = Binary(value.op, BufferLoad(target, at), substitute(value.value, renamed, buffers))
    else:
        formula = substitute(t.element, renamed, buffers)
    made = Block(block, iters, tuple([poly(v) for v, _ in loops]), (), init, BufferStore(target, at, formula))
    return nest(loops, made)


def _scatter(t: Tensor, value: Scatter, block: str, buffers: Mapping[Buffer, Buffer]) -> Stmt:
    """Two nests: the block `<block>_initial` of the elements before the updates, and the block of the updates."""

    def loops_of(axes: Sequence[Var], extents: Sequence[Poly]) -> tuple[list[tuple[Var, Poly]], tuple[Iter, ...], dict[Var, Poly]]:
        iters = tuple([Iter(Var(f"v_{v.name}"), e, "S") for v, e in zip(axes, extents, strict=True)])
        loops = [(Var(v.name), e) for v, e in zip(axes, extents, strict=True)]
        return loops, iters, {v: poly(i.var) for v, i in zip(axes, iters, strict=True)}

    loops, iters, renamed = loops_of(t.axes, t.shape)
    first = BufferStore(buffers[t], tuple([renamed[v] for v in t.axes]), substitute(value.initial, renamed, buffers))
    before = nest(loops, Block(f"{block}_initial", iters, tuple([poly(v) for v, _ in loops]), (), None, first))
    loops, iters, renamed = loops_of(value.axes, value.extents)
    body: Stmt = BufferStore(buffers[t], value.at, value.update)
    if value.condition is not None:
        body = If(value.condition, body)
    for var, index, size in reversed(list(zip(value.bound, value.values, value.sizes, strict=True))):
        body = BindIndex(var, size, index, body)
    made = Block(block, iters, tuple([poly(v) for v, _ in loops]), (), None, fresh_copy(substitute(body, renamed, buffers)))
    return seq([before, nest(loops, made)])


def _identity(op: str, dtype: str) -> Const:
    """The identity element of a reduction: 0, 1, or the smallest or largest value of the type."""
    if op in ("add", "mul"):
        return const(0 if op == "add" else 1, dtype)
    if dt.is_float(dtype):
        return const(-math.inf if op == "max" else math.inf, dtype)
    bits, low = dt.bits(dtype), 0
    if not dt.is_unsigned(dtype):
        bits, low = bits - 1, -(2 ** (bits - 1))
    return const(low if op == "max" else 2**bits - 1, dtype)
