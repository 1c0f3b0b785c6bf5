"""Split a padding block into a block that fills the buffer with the pad value and a block that copies the interior."""

from __future__ import annotations

from tunesmith.ir.analysis.access_regions import accesses, plain_iter
from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Binary, Expr, IsNegative, Not, Select
from tunesmith.ir.poly import Poly, Var, poly, substitute
from tunesmith.ir.stmt import Block, BufferStore, For, Iter, Stmt, seq
from tunesmith.ir.visit import blocks_under, walk_objects
from tunesmith.ir.visit import substitute as substitute_program
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.order import in_loops
from tunesmith.schedule.outside import check_in_blocks, check_unconditional
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def decompose_padding(s: ScheduleState, block: BlockRV, loop: LoopRV) -> BlockRV:
    """Fill the elements that `block` writes inside `loop` with the pad value, directly before the loop; the block copies the interior.

    Returns the new block, which fills.  The condition of the padding becomes a guard of the copy, and lowering tightens its loops.

    Rewrite: `decompose_padding(P, j)`
        for i, j in T.grid(4, 18):
            P[i, j] = T.select(0 < j and j < 17, A[i, j - 1], 0.0)
      ->
        for i in T.serial(4):
            for j in T.serial(18):
                P[i, j] = 0.0
            for j in T.serial(18):
                if 0 < j:
                    if j < 17:
                        P[i, j] = A[i, j - 1]
    Requires:
        padding: the block is one store, at its own iteration variables, each once, of a choice between a value and a pad value, which
            reads no buffer; the condition is a conjunction of comparisons of indices.
        loop-of-block: the loop is around the block, and contains no `if` around the block.
        unseen: no other block inside the loop accesses the buffer, and the block does not read it.
        in-blocks: no statement outside of blocks, and no condition of an `if`, accesses the data of the block.
        block-exists: the block is still in the program.
        loop-exists: the loop is still in the program.
    Keeps: results (source: TVM's decompose_padding, which also accepts loops that contain other blocks).
    """
    path = s.path(block)
    b: Block = path[-1]
    target = s.loop(loop)
    if target not in path:
        raise s.refuse("loop-of-block", f"loop {target.var.name} is not around block {b.name}", target)
    store, (conditions, value, pad) = _padding(s, b)
    if any(a.buffer is store.buffer and not a.is_write for a in accesses(b)):
        raise s.refuse("unseen", f"block {b.name} reads {store.buffer.name}", b)
    for c in blocks_under(target):
        if c is not b and any(a.buffer is store.buffer for a in accesses(c)):
            what = f"block {c.name} in loop {target.var.name} accesses {store.buffer.name}, which would be filled before the loop"
            raise s.refuse("unseen", what, c)
    check_in_blocks(s, b, "in-blocks")
    check_unconditional(s, b, "loop-of-block", target)
    name = s.fresh_name(f"{b.name}_pad")
    fill = _fill(name, b, store, pad, [f for f in path[path.index(target) :] if type(f) is For])
    guards = in_loops(b, tuple(conditions))
    s.replace_block(b.name, lambda old: old.with_(predicate=(*old.predicate, *guards), body=store.with_(value=value)))
    s.replace_loop(target.var, lambda f: seq([fill, f]))
    return s.new_block(name)


def _padding(s: ScheduleState, b: Block) -> tuple[BufferStore, tuple[list[Poly], Expr, Expr]]:
    """The store, and the conditions (expressions < 0), the value and the pad value of its choice."""
    if b.init is None and type(b.body) is BufferStore and type(b.body.value) is Select:
        places = [plain_iter(e, b) for e in b.body.indices]
        moving = {n for n, it in enumerate(b.iters) if it.extent != 1}
        choice = b.body.value
        if None not in places and len(set(places)) == len(places) and moving <= set(places):
            for wanted, value, pad in ((True, choice.a, choice.b), (False, choice.b, choice.a)):
                conditions = conjuncts(choice.cond, wanted)
                if conditions is not None and not any(type(n) is BufferLoad for n in walk_objects(pad)):
                    return b.body, (conditions, value, pad)
    what = f"block {b.name} is not one store, at its own iteration variables, of a value or a pad value depending on its indices"
    raise s.refuse("padding", what, b)


def conjuncts(cond: Expr, wanted: bool = True) -> list[Poly] | None:
    """Expressions that are all < 0 if and only if `cond` is `wanted`; None if there are none, as for conditions on data."""
    if type(cond) is IsNegative and cond.lanes == 1:
        return [cond.index if wanted else -cond.index - 1]
    if type(cond) is Not:
        return conjuncts(cond.a, not wanted)
    if type(cond) is Binary and cond.op == ("and" if wanted else "or"):
        a, b = conjuncts(cond.a, wanted), conjuncts(cond.b, wanted)
        return None if a is None or b is None else [*a, *b]
    return None


def _fill(name: str, b: Block, store: BufferStore, pad: Expr, loops: list[For]) -> Stmt:
    """The nest that stores `pad` to all elements that the block writes in these loops."""
    values: dict[Var, Poly] = {f.var: poly(Var(f.var.name)) for f in loops}
    iters = [Iter(Var(it.var.name), substitute(it.extent, values), "S") for it in b.iters]
    renamed: dict[Var, Poly] = {old.var: poly(new.var) for old, new in zip(b.iters, iters, strict=True)}
    out: Stmt = Block(
        name,
        tuple(iters),
        tuple([substitute(e, values) for e in b.bindings]),
        tuple([substitute(p, values) for p in b.predicate]),
        None,
        substitute_program(store.with_(value=pad), renamed),
    )
    for f in reversed(loops):
        kind = "serial" if f.kind == "parallel" else f.kind
        out = For(values[f.var].as_var(), substitute(f.extent, values), out, kind, f.thread)  # type: ignore[arg-type]
    return out
