"""Inline an elementwise block into its consumers, or into its producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunesmith.ir.analysis.access_regions import accesses, plain_iter, reads, writes
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expression_size import MAX_DEPTH, MAX_NODES, size_of
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.poly import substitute as substitute_poly
from tunesmith.ir.stmt import Block, BufferStore
from tunesmith.ir.visit import Handler, substitute, transform, walk
from tunesmith.schedule.domain import covers_domain, is_guarded
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.order import check_ready, check_unchanged
from tunesmith.schedule.outside import check_in_blocks, check_unconditional
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


def _elementwise_store(s: ScheduleState, b: Block) -> BufferStore:
    """The single store of a block whose instances each write one element, at distinct iteration variables."""
    body = b.body
    if is_guarded(s, b):
        raise s.refuse("guard", f"block {b.name} has a guard other than those of its own extents, which would be lost", b)
    if type(body) is not BufferStore or b.init is not None or any(it.kind == "R" for it in b.iters):
        raise s.refuse("pointwise", f"block {b.name} is not a single store without reduction", b)
    if any(a.buffer is body.buffer and not a.is_write for a in accesses(b)):
        raise s.refuse("pointwise", f"block {b.name} reads the buffer it writes", b)
    positions = [plain_iter(e, b) for e in body.indices]
    if None in positions or len(set(positions)) != len(b.iters):
        raise s.refuse("pointwise", f"block {b.name} does not write one element in each instance, at its own iteration variables", b)
    return body


@primitive
def compute_inline(s: ScheduleState, block: BlockRV) -> None:
    """Replace every load of the buffer that `block` writes by the stored expression, and remove the block and the buffer.

    Rewrite: `compute_inline(B)`
        B = T.alloc_buffer((16,))
        for i in T.serial(16):
            B[i] = A[i] * 2.0
        for i in T.serial(16):
            C[i] = B[i] + 1.0
      ->
        for i in T.serial(16):
            C[i] = A[i] * 2.0 + 1.0
    Requires:
        pointwise: the block is one store at its own iteration variables, without reduction, and does not read the buffer it writes.
        intermediate: the buffer is not a parameter of the function and has no other writer.
        unchanged: no block that the expression moves past writes data that it reads, and the consumers come after it; an
            elementwise consumer may update in place the element that the expression reads.
        guard: the block has no guards except those of its own extents, and no `if` is around it.
        has-consumer: some block reads the buffer.
        size: the resulting expressions are within the limits of `ir.expression_size`.
        in-blocks: no statement outside of blocks, and no condition of an `if`, accesses the data of the block.
        block-exists: the block is still in the program.
    Keeps: results; every load computes the expression again.
    """
    b = s.block(block)
    body = _elementwise_store(s, b)
    _require_private(s, b, body.buffer)
    by_var: list[Var] = [e.as_var() for e in body.indices]  # type: ignore[misc]
    readers = [c for c in s.blocks() if c is not b and any(a.buffer is body.buffer for a in reads(c))]
    if not readers:
        raise s.refuse("has-consumer", f"nothing reads {body.buffer.name}", b)

    check_in_blocks(s, b, "in-blocks")
    check_unconditional(s, b, "guard")
    own = [c for c in readers if _same_element(b, body, c, [a.indices for a in reads(c) if a.buffer is body.buffer])]
    check_unchanged(s, b, readers, own)
    for c in readers:
        _check_size(s, c, body)

    def on_load(n: BufferLoad, recurse: Any) -> Any:
        if n.buffer is not body.buffer:
            return n
        values: dict[Var, Poly] = dict(zip(by_var, n.indices, strict=True))
        return substitute(body.value, values)

    for c in readers:
        s.replace_block(c.name, _with_loads(on_load))
    _drop(s, b, body.buffer)


@primitive
def reverse_compute_inline(s: ScheduleState, block: BlockRV) -> None:
    """Inline the elementwise `block` into its single producer, and remove the block.

    Rewrite: `reverse_compute_inline(C)`
        B = T.alloc_buffer((16,))
        for i in T.serial(16):
            B[i] = A[i] * 2.0
        for i in T.serial(16):
            C[i] = B[i] + 1.0
      ->
        for i in T.serial(16):
            C[i] = A[i] * 2.0 + 1.0
    Requires:
        pointwise: the block is one store at its own iteration variables, without reduction, and does not read the buffer it writes.
        one-producer: it reads one intermediate buffer, at its own iteration variables; one elementwise block writes that buffer,
            and no other block reads it.
        intermediate: that buffer is not a parameter of the function and has no other writer.
        ready: no block that it moves past writes data that it reads, or accesses data that it writes; the producer may read the
            element that is written.
        guard: neither block has guards except those of its own extents, and no `if` is around them.
        same-domain: the iteration variables of both blocks have the same extents, and their loops cover them.
        size: the resulting expression is within the limits of `ir.expression_size`.
        in-blocks: no statement outside of blocks, and no condition of an `if`, accesses the data of the block.
        block-exists: the block is still in the program.
    Keeps: results.
    """
    b = s.block(block)
    body = _elementwise_store(s, b)
    made = [c for c in s.blocks() if c is not b and {w.buffer for w in writes(c)} & {a.buffer for a in reads(b)}]
    if len(made) != 1:
        raise s.refuse("one-producer", f"block {b.name} has {len(made)} producers", b)
    p = made[0]
    source = _elementwise_store(s, p)
    for c in (b, p):
        check_in_blocks(s, c, "in-blocks")
        check_unconditional(s, c, "guard")
    mine = [a for a in reads(b) if a.buffer is source.buffer]
    _require_private(s, p, source.buffer)
    if any(a.buffer is source.buffer for c in s.blocks() if c is not b for a in reads(c)):
        raise s.refuse("one-producer", f"{source.buffer.name} has another reader", p)
    if any(plain_iter(e, b) is None for a in mine for e in a.indices) or any(a.indices != mine[0].indices for a in mine):
        raise s.refuse("one-producer", f"block {b.name} does not read {source.buffer.name} at its own iteration variables", b)
    values: dict[Var, Poly] = {e.as_var(): poly(v) for e, v in zip(mine[0].indices, source.indices, strict=True)}  # type: ignore[misc]
    if set(values) != {it.var for it in b.iters} or len(values) != len(source.indices):
        raise s.refuse("one-producer", f"block {b.name} does not read each element of {source.buffer.name} once", b)
    extents: dict[Var | None, Poly] = {it.var: it.extent for it in (*b.iters, *p.iters)}
    for var, at in values.items():
        differ = extents[var] - extents[at.as_var()]
        s.require(
            "eq0",
            differ,
            "same-domain",
            f"blocks {p.name} and {b.name} run over different extents, {extents[var]!r} and {extents[at.as_var()]!r}",
        )
    for c in (p, b):
        if not covers_domain(s, c):
            raise s.refuse("same-domain", f"the loops around block {c.name} may not cover its domain", c)

    check_ready(s, b, [p], [p], own=_same_element(p, source, b, [a.indices for a in mine]))

    _check_size(s, b, source)

    def on_load(n: BufferLoad, recurse: Any) -> Any:
        return source.value if n.buffer is source.buffer else BufferLoad(n.buffer, tuple([substitute(i, values) for i in n.indices]))

    def on_poly(n: Poly, _: Any) -> Poly:
        return substitute(n, values)

    value = transform(body.value, {BufferLoad: on_load, Poly: on_poly})
    indices = tuple([substitute(i, values) for i in body.indices])
    s.replace_block(p.name, lambda c: c.with_(body=BufferStore(body.buffer, indices, value)))
    _drop(s, b, source.buffer)


def _same_element(p: Block, source: BufferStore, c: Block, at: list[tuple[Poly, ...]]) -> bool:
    """Whether the consumer `c`, which reads the producer `p` at these indices, is elementwise, and `p` reads no element that `c` writes,
    except the one that `c` writes from it."""
    out = c.body
    if type(out) is not BufferStore or c.init is not None or {plain_iter(e, c) for e in out.indices} != set(range(len(c.iters))):
        return False
    for indices in at:
        values: dict[Var, Poly] = dict(zip([e.as_var() for e in source.indices], indices, strict=True))  # type: ignore[misc]
        if any(tuple([substitute_poly(e, values) for e in a.indices]) != out.indices for a in reads(p) if a.buffer is out.buffer):
            return False
    return True


def _check_size(s: ScheduleState, reader: Block, made: BufferStore) -> None:
    """Refuse to inline the store `made` into `reader` if an expression would exceed the limits of `ir.expression_size`."""
    inside = {made.buffer: size_of(made.value)}
    for n in [reader.body] if reader.init is None else [reader.init, reader.body]:
        for x in walk(n):
            if isinstance(x, BufferStore) and not (size := size_of(x.value, inside)).fits:
                raise s.refuse(
                    "size",
                    f"with {made.buffer.name} inlined, block {reader.name} has an expression of {size.nodes} nodes and depth {size.depth}; "
                    f"at most {MAX_NODES} nodes and depth {MAX_DEPTH} are compiled. Leave one of its producers as a block",
                    reader,
                )


def _with_loads(on_load: Handler) -> Callable[[Block], Block]:
    table: dict[type, Handler] = {BufferLoad: on_load}
    return lambda b: b.with_(init=None if b.init is None else transform(b.init, table), body=transform(b.body, table))


def _require_private(s: ScheduleState, b: Block, buffer: Buffer) -> None:
    if buffer not in s.func.allocs or any(c is not b and any(w.buffer is buffer for w in writes(c)) for c in s.blocks()):
        raise s.refuse("intermediate", f"{buffer.name} is a parameter of the function or has another writer", b)


def _drop(s: ScheduleState, b: Block, buffer: Buffer) -> None:
    s.remove_block(b.name)
    s.func = s.func.with_(allocs=tuple([x for x in s.func.allocs if x is not buffer]))
