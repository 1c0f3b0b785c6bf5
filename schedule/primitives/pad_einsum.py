"""Pad the iteration space of a contraction to multiples of given factors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tunesmith.ir.analysis.access_regions import accesses, plain_iter, reads
from tunesmith.ir.analysis.identity_element import identity_element
from tunesmith.ir.analysis.reduction_update import reassociable_update
from tunesmith.ir.arith.linear import coefficient
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Cast, Const, Expr, conjunction, const, select
from tunesmith.ir.poly import Poly, Var, ceildiv, less_than, maximum, poly
from tunesmith.ir.poly import substitute as substitute_index
from tunesmith.ir.stmt import Block, BufferStore, For, Iter, Stmt, nest, seq, store
from tunesmith.ir.visit import blocks_under, substitute
from tunesmith.schedule.handles import BlockRV, IntRV
from tunesmith.schedule.outside import check_in_blocks
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import MAX_INTEGER, ScheduleState


@primitive
def pad_einsum(s: ScheduleState, block: BlockRV, padding: Sequence[IntRV | int]) -> list[BlockRV]:
    """Extend each iteration variable of a contraction to a multiple of its factor.

    The block reads copies of its operands with zeros beyond their extents, and writes a larger output, which another block crops.  Returns
    the copying blocks, in the order in which the block reads the operands, and the cropping block if the output is padded.

    Args:
        block: the contraction, for example C[i, j] = C[i, j] + A[i, k] * B[k, j].
        padding: a factor for each iteration variable; the number 1 (not a sampled 1) leaves the variable as it is.
    Rewrite: `pad_einsum(C, [1, 4])`
        for i, k in T.grid(3, 6):
            init: C[i] = 0.0
            C[i] = C[i] + A[i, k] * B[k]
      ->
        A_pad = T.alloc_buffer((3, 8))
        B_pad = T.alloc_buffer((8,))
        for ax0, ax1 in T.grid(3, 8):
            A_pad[ax0, ax1] = T.select(ax1 < 6, A[ax0, ax1], 0.0)
        for ax0 in T.serial(8):
            B_pad[ax0] = T.select(ax0 < 6, B[ax0], 0.0)
        for i, k in T.grid(3, 8):
            if k < 1:
                C[i] = 0.0
            C[i] = C[i] + A_pad[i, k] * B_pad[k]
    Requires:
        einsum: the block sums products of operands, starting from 0; the output is indexed by iteration variables, operands also by sums
            of them, and each operand by every padded reduction variable alone, so that all padded terms are 0.
        trivial: each iteration variable is bound to a loop of its own, of the same extent; the loops contain nothing else.
        padding: there is a factor of at least 1 for each iteration variable, and at least one is not the number 1.
        in-blocks: no statement outside of blocks, and no condition of an `if`, accesses the data of the block.
        block-exists: the block is still in the program.
    Keeps: results (source: TVM's pad_einsum, which returns nothing).
    """
    b = s.block(block)
    if len(padding) != len(b.iters):
        raise s.refuse("padding", f"block {b.name} has {len(b.iters)} iteration variables, and {len(padding)} factors are given", b)
    if all(type(p) is int and p == 1 for p in padding):
        raise s.refuse("padding", "all factors are 1", b)
    extents: dict[Var, Poly] = {}
    for it, given in zip(b.iters, padding, strict=True):
        p = s.value(given)
        s.require("le0", 1 - p, "padding", "a factor must be at least 1", p)
        s.require_at_most(p, MAX_INTEGER, "padding", f"a factor must be at most {MAX_INTEGER}")
        if not (type(given) is int and given == 1):
            extents[it.var] = ceildiv(it.extent, p) * p
    output = _check_einsum(s, b, extents)
    loops = trivial_loops(s, b)
    check_in_blocks(s, b, "in-blocks")
    at = s.root_index(b.name)
    before, after = [], []
    swapped: dict[Buffer, Buffer] = {}
    for a in reads(b):
        if a.buffer not in swapped and any(not e.vars.isdisjoint(extents) for e in a.indices):
            new = _padded(b, a.buffer, a.indices, extents, f"{a.buffer.name}_pad")
            swapped[a.buffer] = new
            before.append((s.fresh_name(new.name), a.buffer, new, a.indices))
    if any(e.as_var() in extents for e in output.indices):
        new = _padded(b, output.buffer, output.indices, extents, f"{output.buffer.name}_pad")
        swapped[output.buffer] = new
        after.append((s.fresh_name(f"{output.buffer.name}_crop"), output.buffer, new, output.indices))
    copies = [_copy(b, *x, extents) for x in before]
    crops = [_crop(b, *x) for x in after]
    iters = tuple([it.with_(extent=extents.get(it.var, it.extent)) for it in b.iters])
    made: Stmt = b.with_(iters=iters, init=substitute(b.init, {}, swapped), body=substitute(b.body, {}, swapped))  # type: ignore[type-var]
    for f, var in reversed(loops):
        made = f.with_(extent=extents.get(var, f.extent), body=made)
    stmts = s.root_stmts()
    s.set_body(seq([*stmts[:at], *copies, made, *crops, *stmts[at + 1 :]]))
    s.add_allocs(*swapped.values())
    return [s.new_block(name) for name, *_ in (*before, *after)]


def _check_einsum(s: ScheduleState, b: Block, extents: Mapping[Var, Poly]) -> BufferStore:
    """The store of the block."""
    update = reassociable_update(b)
    if update is None or update.op != "add" or type(b.init) is not BufferStore:
        raise s.refuse(
            "einsum", f"block {b.name} is not of the form C[...] = C[...] + term, with an init and a term that does not read C", b
        )
    zero = identity_element("add", update.store.buffer.dtype)
    if type(b.init.value) is not Const or b.init.value.value != zero.value:
        raise s.refuse("einsum", f"the init of block {b.name} is not 0", b)
    for e in update.store.indices:
        if plain_iter(e, b) is None:
            what = f"{update.store.buffer.name} at an index that is not an iteration variable"
            raise s.refuse("einsum", f"block {b.name} accesses {what}", b)
    for a in accesses(b):
        if any(plain_iter(e, b) is None and not _is_padded_sum(e, b, extents) for e in a.indices):
            what = f"{a.buffer.name} at an index that is neither an iteration variable nor a sum of them"
            raise s.refuse("einsum", f"block {b.name} accesses {what}", b)
    sizes: dict[Buffer, object] = {}
    for a in accesses(b):
        size = _shape(b, a.buffer, a.indices, extents), _shape(b, a.buffer, a.indices, {})
        if sizes.setdefault(a.buffer, size) != size:
            raise s.refuse("einsum", f"block {b.name} accesses {a.buffer.name} in parts of different sizes", b)
    factors = _factors(update.term)
    if factors is None or not factors:
        raise s.refuse("einsum", f"the term of block {b.name} is not a product of operands", b)
    for it in b.iters:
        short = [x.buffer.name for x in factors if it.var not in {e.as_var() for e in x.indices}]
        if it.kind == "R" and it.var in extents and short:
            what = f"{short[0]} is not indexed by {it.var.name}, so that a padded term may not be 0"
            raise s.refuse("einsum", f"block {b.name}: {what}", b)
    return update.store


def _factors(e: Expr) -> list[BufferLoad] | None:
    """The operands of a product of loads, conversions of loads and numbers; None for another expression."""
    if type(e) is BufferLoad:
        return [e]
    if type(e) is Cast:
        return _factors(e.a)
    if type(e) is Const and math.isfinite(e.value):
        return []
    if type(e) is Binary and e.op == "mul":
        a, b = _factors(e.a), _factors(e.b)
        return None if a is None or b is None else [*a, *b]
    return None


def trivial_loops(s: ScheduleState, b: Block) -> list[tuple[For, Var]]:
    """The loops around the block, outermost first, each with the iteration variable that is bound to it."""
    bound = {e.as_var(): it for it, e in zip(b.iters, b.bindings, strict=True)}
    path = s.path(b.name)
    loops = [f for f in path if type(f) is For]
    alone = all(x.body is y for x, y in zip(loops, [*loops[1:], b], strict=True)) and (not loops or blocks_under(loops[0]) == [b])
    fits = len(bound) == len(b.iters) == len(loops) and all(f.var in bound and f.extent == bound[f.var].extent for f in loops)
    if not (alone and fits and loops and loops[0] in s.root_stmts() and not b.predicate):
        raise s.refuse("trivial", f"the loops around block {b.name} are not one for each iteration variable; pad before splitting loops", b)
    return [(f, bound[f.var].var) for f in loops]


def _is_padded_sum(e: Poly, b: Block, extents: Mapping[Var, Poly]) -> bool:
    """Whether an index is a number, or a sum of multiples of iteration variables, of which only spatial ones are padded."""
    own = {it.var: it for it in b.iters}
    rest = e
    for v in e.vars:
        split = coefficient(rest, v)
        if split is None or split[0] < 0 or v not in own or (own[v].kind == "R" and v in extents):
            return False
        rest = split[1]
    return rest.const is not None and rest.const >= 0


def _padded(b: Block, old: Buffer, indices: Sequence[Poly], extents: Mapping[Var, Poly], name: str) -> Buffer:
    return Buffer(name, _shape(b, old, indices, extents), old.dtype, old.scope)


def _shape(b: Block, old: Buffer, indices: Sequence[Poly], extents: Mapping[Var, Poly]) -> tuple[Poly, ...]:
    """The extents of an access at iteration variables, which have the given or else their own extents."""
    last: dict[Var, Poly] = {it.var: extents.get(it.var, it.extent) - 1 for it in b.iters}
    return tuple([_dimension(e, size, extents, last) for e, size in zip(indices, old.shape, strict=True)])


def _dimension(e: Poly, size: Poly, extents: Mapping[Var, Poly], last: Mapping[Var, Poly]) -> Poly:
    """The extent of a dimension with the index `e`, where `last` has the highest values of the variables.

    That of an iteration variable; the unchanged size for a sum without padded variables; the larger of the size and the extent of the sum
    for one with padded variables.
    """
    if e.as_var() is not None:
        return substitute_index(e, last) + 1
    if e.vars.isdisjoint(extents):
        return size
    return maximum(size, substitute_index(e, last) + 1)


def _copy(b: Block, name: str, old: Buffer, new: Buffer, indices: Sequence[Poly], extents: Mapping[Var, Poly]) -> Stmt:
    """Copy `old` to `new`, with zeros beyond the old extents."""
    own: dict[Var | None, Poly] = {it.var: it.extent for it in b.iters}
    iters = [Iter(Var(f"v{d}"), n, "S") for d, n in enumerate(new.shape)]
    at = [it.var for it in iters]
    conditions = [
        less_than(v, own.get(e.as_var(), size)) for v, e, size in zip(at, indices, old.shape, strict=True) if not e.vars.isdisjoint(extents)
    ]
    value = select(conjunction(tuple(conditions)), BufferLoad(old, tuple([poly(v) for v in at])), const(0, old.dtype))
    return _nest(name, iters, store(new, at, value))


def _crop(b: Block, name: str, old: Buffer, new: Buffer, indices: Sequence[Poly]) -> Stmt:
    """Copy the elements of `new` within the old extents to `old`."""
    own: dict[Var | None, Poly] = {it.var: it.extent for it in b.iters}
    iters = [Iter(Var(f"v{d}"), own[e.as_var()], "S") for d, e in enumerate(indices)]
    at = [it.var for it in iters]
    return _nest(name, iters, store(old, at, BufferLoad(new, tuple([poly(v) for v in at]))))


def _nest(name: str, iters: Sequence[Iter], body: Stmt) -> Stmt:
    loops = [Var(f"ax{d}") for d in range(len(iters))]
    made = Block(name, tuple(iters), tuple([poly(v) for v in loops]), (), None, body)
    return nest([(v, it.extent) for v, it in zip(loops, iters, strict=True)], made)
