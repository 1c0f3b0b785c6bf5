"""Factor a reduction into independent partial reductions and a final reduction over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunesmith.ir.analysis.access_regions import accesses
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Expr, IsNegative, conjunction
from tunesmith.ir.poly import ZERO, Param, Poly, Var, poly, substitute
from tunesmith.ir.stmt import Block, BufferStore, For, Iter, Stmt, seq
from tunesmith.ir.visit import blocks_under, transform
from tunesmith.ir.visit import substitute as substitute_program
from tunesmith.schedule.domain import check_first_step
from tunesmith.schedule.factored_update import FactoredUpdate, factored_update, starts_from
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.order import steps_ascend
from tunesmith.schedule.outside import check_in_blocks
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def rfactor(s: ScheduleState, loop: LoopRV, factor_axis: int = -1) -> BlockRV:
    """Make `loop`, a loop of a reduction, data parallel.

    The block accumulates one partial result for each iteration of `loop`, in a new dimension.  A final block after the reduction
    loops combines them.  A guard of the reduction becomes a select of the identity element, because every partial result is
    initialised, even if the guard excludes all of its updates.

    Returns the block of partial results; the final block keeps the name of the old one.

    Args:
        loop: the loop to factor.
        factor_axis: position of the new dimension in the buffer of partial results; a negative one counts from the end, so that -1 is last.
    Rewrite: `split(k, [None, 8]); rfactor(k_1)`
        for k in T.serial(30):
            init: C[0] = 0.0
            C[0] = C[0] + A[k]
      ->
        C_rf = T.alloc_buffer((1, 8))
        for k_0, k_1 in T.grid(4, 8):
            if k_0 < 1:
                C_rf[0, k_1] = 0.0
            C_rf[0, k_1] = C_rf[0, k_1] + T.select(k_0 * 8 + k_1 < 30, A[k_0 * 8 + k_1], 0.0)
        for k_1 in T.serial(8):
            if k_1 < 1:
                C[0] = 0.0
            C[0] = C[0] + C_rf[0, k_1]
    Requires:
        reduction: the loop contains one block, with an init, which accumulates values that do not depend on the buffer with +, *, min or
            max in a single store; or with two stores, of the first index of an extreme, P[i] = k if x > C[i] else P[i], and of the
            extreme, C[i] = max(C[i], x) (or < and min), where k is the only reduction variable and its loops run it in ascending order.
        first: the reduction starts once, in the first iteration of its loops, for all values of its guards.
        running: no other block inside the reduction loops accesses the buffer, because the partial results are combined after them.
        identity: the init of a sum is 0 and that of a product is 1, because it is applied to every partial result.
        reduce-loop: the loop is part of the reduction, and no reduction loop binds a spatial variable.
        serial: the loop is not marked.
        factor-axis: the position is one of the dimensions of the new buffer.
        guard: guards of the reduction use only its own loops and loops that are bound to iteration variables.
        in-blocks: no statement outside of blocks, and no condition of an `if`, accesses the data of the block.
        loop-exists: the loop is still in the program.
    Keeps: results up to reassociation; if an extreme is NaN, its index may be another one (sources: TVM's rfactor; Suriana et al.,
        Parallel associative reductions in Halide, CGO 2017).
    """
    target = s.loop(loop)
    at: Any = target
    while type(at) is For:
        at = at.body
    if type(at) is not Block or at.init is None:
        raise s.refuse("reduction", f"loop {target.var.name} does not contain exactly one reduction with an init", target)
    b: Block = at
    check_in_blocks(s, b, "in-blocks")
    update = factored_update(b)
    if update is None:
        what = f"block {b.name} is not of the form C[...] = C[...] op value, with a value that does not read C, nor the index of an extreme"
        raise s.refuse("reduction", what, b)
    if not starts_from(b, update):
        raise s.refuse("identity", f"the init of block {b.name} is not the identity element of its reduction", b)
    if target.kind != "serial":
        raise s.refuse("serial", f"loop {target.var.name} is {target.kind}", target)
    rank = len(update.value.buffer.shape) + 1
    if not -rank <= factor_axis < rank:
        raise s.refuse("factor-axis", f"the partial results have {rank} dimensions, and factor_axis is {factor_axis}", b)
    axis = factor_axis % rank
    loops = s.loops_of(b.name)
    reducing = [e for it, e in zip(b.iters, b.bindings, strict=True) if it.kind == "R"]
    spatial = [e for it, e in zip(b.iters, b.bindings, strict=True) if it.kind == "S"]
    reduce_loops = [f for f in loops if any(f.var in e.vars for e in reducing)]
    if target not in reduce_loops or any(f.var in e.vars for f in reduce_loops for e in spatial):
        raise s.refuse("reduce-loop", f"loop {target.var.name} is not a pure reduction loop of block {b.name}", target)
    outs = [x.buffer for x in update.stores]
    for c in blocks_under(reduce_loops[0]):
        used = [a.buffer.name for a in accesses(c) if c is not b and a.buffer in outs]
        if used:
            raise s.refuse("running", f"block {c.name} accesses {used[0]} while block {b.name} accumulates into it", c)
    if update.place is not None and not steps_ascend(s, b):
        what = f"the loops of block {b.name} do not run its reduction in ascending order, so that the first extreme may have any index"
        raise s.refuse("reduction", what, b)
    start_guards = check_first_step(s, b, "first")
    partial = {x: Buffer(f"{x.name}_rf", _inserted(x.shape, axis, target.extent), x.dtype, x.scope) for x in outs}
    s.add_allocs(*partial.values())
    name = s.fresh_name(f"{b.name}_rf")
    parts = _partial_block(s, b, update, name, partial, target, reduce_loops, axis)
    outermost = reduce_loops[0]
    inner = loops[loops.index(outermost) :]
    spatial_loops = [f for f in inner if any(f.var in e.vars for e in spatial)]
    final = _final_nest(b, update, partial, target, start_guards, spatial_loops, reduce_loops, axis)
    s.replace_block(b.name, lambda _: parts)
    s.replace_loop(outermost.var, lambda f: seq([f, final]))
    return s.new_block(name)


def _inserted(indices: Sequence[Poly], axis: int, new: Poly) -> tuple[Poly, ...]:
    return (*indices[:axis], new, *indices[axis:])


def _partial_block(
    s: ScheduleState,
    b: Block,
    update: FactoredUpdate,
    name: str,
    partial: Mapping[Buffer, Buffer],
    target: For,
    reduce_loops: list[For],
    axis: int,
) -> Block:
    lane = Iter(Var("v_rf"), target.extent, "S")
    iters: list[Iter] = []
    bindings: list[Poly] = []
    rename: dict[Var, Poly] = {}
    for it, e in zip(b.iters, b.bindings, strict=True):
        if it.kind == "S":
            fresh = Iter(Var(it.var.name), it.extent, "S")
            rename[it.var] = poly(fresh.var)
            iters.append(fresh)
            bindings.append(e)
    at_loop: dict[Var, Poly] = {target.var: poly(lane.var)}
    for f in reduce_loops:
        if f is not target:
            fresh = Iter(Var(f"v{f.var.name}"), f.extent, "R")
            at_loop[f.var] = poly(fresh.var)
            iters.append(fresh)
            bindings.append(poly(f.var))
    # The lanes are last, so that they become the innermost loop when the block is moved.
    iters.append(lane)
    bindings.append(poly(target.var))
    for it, e in zip(b.iters, b.bindings, strict=True):
        if it.kind == "R":
            rename[it.var] = substitute(e, at_loop)
    mixed = {target.var, *[f.var for f in reduce_loops]}
    body, outer_guards = _guarded(s, b, update.renamed(rename), rename, at_loop, mixed)

    def redirect(n: Any, recurse: Any) -> Any:
        m = n.map_children(recurse)
        new = partial.get(m.buffer)
        return m if new is None else m.with_(buffer=new, indices=_inserted(m.indices, axis, poly(lane.var)))

    table = {BufferLoad: redirect, BufferStore: redirect}
    return Block(
        name,
        tuple(iters),
        tuple(bindings),
        outer_guards,
        transform(substitute_program(b.init, rename), table),  # type: ignore[type-var]  # the caller checks that there is an init
        transform(body, table),
        b.annotations,
    )


def _guarded(
    s: ScheduleState, b: Block, update: FactoredUpdate, rename: dict[Var, Poly], at_loop: dict[Var, Poly], mixed: set[Var]
) -> tuple[Stmt, tuple[Poly, ...]]:
    """The update, in the new variables, without effect where a guard of the reduction fails; and the other guards."""
    at = dict(at_loop)
    for it, e in zip(b.iters, b.bindings, strict=True):
        v = e.as_var()
        if it.kind == "S" and v is not None:
            at[v] = rename[it.var]
    conds: list[Expr] = []
    for p in b.predicate:
        if p.vars.isdisjoint(mixed):
            continue
        if any(not isinstance(v, Param) and v not in at and v not in s.func.params for v in p.vars):
            raise s.refuse("guard", f"block {b.name} has a guard that cannot be moved: {p!r} < 0", b)
        conds.append(IsNegative(substitute(p, at)))
    body = update.under(conjunction(tuple(conds))) if conds else seq(update.stores)
    return body, tuple([p for p in b.predicate if p.vars.isdisjoint(mixed)])


def _final_nest(
    b: Block,
    update: FactoredUpdate,
    partial: Mapping[Buffer, Buffer],
    target: For,
    start_guards: list[Poly],
    spatial_loops: list[For],
    reduce_loops: list[For],
    axis: int,
) -> Stmt:
    values: dict[Var, Poly] = {f.var: poly(Var(f.var.name)) for f in spatial_loops}
    values |= {f.var: ZERO for f in reduce_loops}
    around = {f.var for f in reduce_loops}
    lane_loop, lane = Var(target.var.name), Iter(Var("v_rf"), target.extent, "R")
    iters: list[Iter] = []
    bindings: list[Poly] = []
    rename: dict[Var, Poly] = {}
    for it, e in zip(b.iters, b.bindings, strict=True):
        if it.kind == "S":
            fresh = Iter(Var(it.var.name), it.extent, "S")
            rename[it.var] = poly(fresh.var)
            iters.append(fresh)
            bindings.append(substitute(e, values))
    at = tuple([substitute(i, rename) for i in update.value.indices])
    terms = {old: BufferLoad(new, _inserted(at, axis, poly(lane.var))) for old, new in partial.items()}
    nest: Stmt = Block(
        b.name,
        (*iters, lane),
        (*bindings, poly(lane_loop)),
        tuple([substitute(p, values) for p in (*[p for p in b.predicate if p.vars.isdisjoint(around)], *start_guards)]),
        substitute_program(b.init, rename),  # type: ignore[type-var]
        update.combined(at, terms),
    )
    nest = For(lane_loop, target.extent, nest)
    for f in reversed(spatial_loops):
        nest = For(values[f.var].as_var(), f.extent, nest)  # type: ignore[arg-type]
    return nest
