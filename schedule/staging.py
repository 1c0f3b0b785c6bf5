"""Compute values of a block in a nest of their own before it, over the iteration variables that they use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tunesmith.ir.analysis.access_regions import writes
from tunesmith.ir.arith.interval import is_nonnegative
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Expr, IsNegative, conjunction, const, select
from tunesmith.ir.poly import ONE, Op, Param, Poly, Var, is_param_only, poly, substitute
from tunesmith.ir.stmt import Block, Iter, Stmt, nest, seq, store
from tunesmith.ir.visit import blocks_under, transform
from tunesmith.ir.visit import substitute as substitute_program
from tunesmith.schedule.outside import check_in_blocks
from tunesmith.schedule.state import ScheduleState


def check_made_before(s: ScheduleState, block: Block, buffer: Buffer) -> None:
    """Refuse (made-before, in-blocks) to read the buffer before the nest of `block` if the nest, or a plain statement, writes it."""
    late = [b.name for b in blocks_under(s.root_stmts()[s.root_index(block.name)]) if any(a.buffer is buffer for a in writes(b))]
    if late:
        raise s.refuse(
            "made-before",
            f"{buffer.name} is written by {', '.join(late)} in the nest of block {block.name}; read_at copies inside it",
            block,
        )
    if buffer not in s.func.buffers:
        raise s.refuse("made-before", f"{buffer.name} is allocated in the nest of block {block.name}; use T.alloc_buffer", block)
    check_in_blocks(s, block, "in-blocks", buffer)


def used_iters(s: ScheduleState, block: Block, indices: Iterable[Poly], label: str) -> list[Iter]:
    """The iteration variables of the block that expressions use.

    Refuses other variables, such as indirect indices, extents that depend on loops, and variables that some sampled values cancel, because
    the number of dimensions of a buffer does not depend on them.
    """
    exprs = list(indices)
    fixed = {v for v in s.func.params if isinstance(v, Var)}
    own = {it.var: it for it in block.iters}
    found: set[Var] = {v for e in exprs for v in e.vars if not isinstance(v, Param) and v not in fixed}
    strange = sorted([v.name for v in found if v not in own])
    if strange:
        raise s.refuse(label, f"block {block.name} has an index that depends on {strange[0]}, which is no iteration variable", block)
    for it in (own[v] for v in found):
        if any(not isinstance(v, Param) and v not in fixed for v in it.extent.vars):
            raise s.refuse(label, f"the extent {it.extent!r} of iteration variable {it.var.name} depends on a loop", block)
    if {v for e in exprs for v in _smallest(e).vars if v in own} != found:
        raise s.refuse(label, f"which iteration variables block {block.name} uses in {exprs} depends on sampled sizes", block)
    return [it for it in block.iters if it.var in found]


def _smallest(e: Poly) -> Poly:
    """The expression for sampled sizes of 1, which cancel remainders and differences."""
    sizes: dict[Var, Poly] = {p: ONE for p in e.vars if isinstance(p, Param)}
    return substitute(e, sizes) if sizes else e


def guarded_load(s: ScheduleState, load: BufferLoad, label: str) -> Expr:
    """The load, or 0 where it would be outside the buffer: the new nest also runs instances that a guard or a choice excludes."""
    guards: list[Expr] = []
    for e, n in zip(load.indices, load.buffer.shape, strict=True):
        a = e.as_atom()
        if type(a) is Op and a.op == "mod" and a.args[1] == n:
            continue
        sampled = any(isinstance(v, Param) for v in e.vars)
        remainder = type(a) is Op and a.op == "mod" and any(isinstance(v, Param) for v in (a.args[1] - n).vars)
        if remainder or (sampled and (not is_nonnegative(e) or is_param_only(_smallest(e)) != is_param_only(e))):
            raise s.refuse(label, f"whether the index {e!r} of {load.buffer.name} is in [0, {n!r}) depends on sampled sizes")
        for beyond in (e - n,) if is_nonnegative(e) else (e - n, -e - 1):
            if is_param_only(beyond):
                s.require("le0", beyond + 1, label, f"the index {e!r} of {load.buffer.name} must be in [0, {n!r})")
            else:
                guards.append(IsNegative(beyond))
    return select(conjunction(tuple(guards)), load, const(0, load.dtype)) if guards else load


def with_guarded_loads(s: ScheduleState, value: Expr, label: str) -> Expr:
    """`value` with every load guarded."""

    def on_load(n: BufferLoad, recurse: Any) -> Expr:
        return guarded_load(s, n, label)

    return transform(value, {BufferLoad: on_load})


def own_nest(name: str, iters: Sequence[Iter], to: Buffer, at: Sequence[Poly], value: Expr) -> Stmt:
    """`to[at] = value` in a block of that name, over new loops for the iteration variables."""
    fresh = tuple([Iter(Var(it.var.name), it.extent, "S") for it in iters])
    values: dict[Var, Poly] = {old.var: poly(new.var) for old, new in zip(iters, fresh, strict=True)}
    loops = [Var(f"ax{n}") for n in range(len(fresh))]
    body = substitute_program(store(to, at, value), values)
    block = Block(name, fresh, tuple([poly(v) for v in loops]), (), None, body)
    return nest([(v, it.extent) for v, it in zip(loops, fresh, strict=True)], block)


def insert(s: ScheduleState, at: int, made: Stmt) -> None:
    """Put a statement before the root statement with the index `at`."""
    stmts = s.root_stmts()
    s.set_body(seq([*stmts[:at], made, *stmts[at:]]))
