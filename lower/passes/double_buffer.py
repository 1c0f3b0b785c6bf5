"""double_buffer: while the threads work on one version of a tile, the next one is on its way.

A loop annotated `double_buffer: 2` whose body begins by filling tiles in shared memory gets two versions of these.  What the next step
needs is loaded into registers before the work of this one, and stored to the other version behind it, so that memory has the whole step
to answer in, and threads wait for each other once in a step instead of twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import SHARED_SCOPES
from tunesmith.ir.poly import Poly, less_than, mod, poly
from tunesmith.ir.stmt import Allocate, BufferStore, For, If, Seq, Stmt, annotation, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import fresh_copy, substitute, transform, walk
from tunesmith.lower.kernels import map_kernels
from tunesmith.lower.pass_infra import function_pass
from tunesmith.lower.renew_binders import renew_binders

KEY = "double_buffer"


@function_pass(needs="OPAQUE")
def double_buffer(func: PrimFunc, target: Target) -> PrimFunc:
    """Give tiles two versions where a loop asks for it and its body has the form; see the module's text.

    Source: register-staged double buffering of CUTLASS's SIMT kernels; TVM's InjectDoubleBuffer.
    """
    return map_kernels(func, _kernel)


def _kernel(root: Stmt) -> Stmt:
    for n in walk(root):
        if type(n) is For and _asks(n):
            fills = _fills(n, root)
            if fills:
                return _kernel(_versioned(root, n, fills))
            return _kernel(_without_note(root, n))
    return root


def _asks(n: For) -> bool:
    value = annotation(n, KEY)
    return isinstance(value, Poly) and value == 2


@dataclass(frozen=True, slots=True)
class _Fill:
    """A statement that fills a tile.

    Attributes:
        stmt: loops around one store, under guards perhaps.
        store: the store.
        loops: the loops, outermost first.
    """

    stmt: Stmt
    store: BufferStore
    loops: tuple[For, ...]


def _fills(n: For, root: Stmt) -> list[_Fill]:
    """The statements at the beginning of the loop that fill tiles; none if the tiles are used in another way somewhere."""
    found: list[_Fill] = []
    rest = list(n.body.stmts) if type(n.body) is Seq else []
    while rest:
        fill = _as_fill(rest[0])
        if fill is None:
            break
        found.append(fill)
        rest.pop(0)
    tiles = [f.store.buffer for f in found]
    if len(set(tiles)) < len(tiles) or not rest or (n.extent.const or 0) < 2 or n.kind != "serial":
        return []
    here, everywhere = list(_accesses(n)), list(_accesses(root))
    for b in tiles:
        if sum(x.buffer is b for x in here) != sum(x.buffer is b for x in everywhere):
            return []
        if any(type(x) is BufferStore and x.buffer is b for s in rest for x in walk(s)):
            return []
    return found


def _accesses(n: Stmt) -> Any:
    return (x for x in walk(n) if type(x) in (BufferLoad, BufferStore))


def _as_fill(n: Any) -> _Fill | None:
    """The statement as one that fills a tile from memory that does not change meanwhile, with loops of known extents."""
    loops: list[For] = []
    at = n
    while True:
        if type(at) is For and at.extent.const is not None:
            loops.append(at)
            at = at.body
        elif type(at) is If and at.orelse is None:
            at = at.then
        else:
            break
    if type(at) is not BufferStore or at.buffer.scope not in SHARED_SCOPES:
        return None
    if any(type(x) is BufferLoad and x.buffer.scope != "global" for x in walk(at.value)):
        return None
    return _Fill(n, at, tuple(loops))


def _versioned(root: Stmt, loop: For, fills: list[_Fill]) -> Stmt:
    """The kernel with two versions of the tiles, and the loop in its new form."""
    wide = {f.store.buffer: f.store.buffer.like(shape=(2, *f.store.buffer.shape)) for f in fills}
    staged = {f: Buffer(f"{f.store.buffer.name}_next", [x.extent for x in f.loops], f.store.buffer.dtype, "local") for f in fills}
    k, following = poly(loop.var), poly(loop.var) + 1
    first = [fresh_copy(substitute(_to_version(f.stmt, wide, poly(0)), {loop.var: poly(0)})) for f in fills]
    more = less_than(following, loop.extent)
    loads = [substitute(_staging(f, staged[f], True), {loop.var: following}) for f in fills]
    stores = [_to_version(substitute(_staging(f, staged[f], False), {loop.var: following}), wide, mod(following, 2)) for f in fills]
    assert type(loop.body) is Seq
    work = [_to_version(s, wide, mod(k, 2)) for s in loop.body.stmts[len(fills) :]]
    body = seq([If(more, seq([fresh_copy(x) for x in loads])), *work, If(more, seq([fresh_copy(x) for x in stores]))])
    for b in staged.values():
        body = Allocate(b, body)
    notes = tuple([a for a in loop.annotations if a[0] != KEY])
    new = seq([*first, For(loop.var, loop.extent, body, loop.kind, loop.thread, notes)])

    def on_for(n: For, recurse: Any) -> Stmt:
        return new if n is loop else n.map_children(recurse)

    def on_allocate(n: Allocate, recurse: Any) -> Allocate:
        return Allocate(wide.get(n.buffer, n.buffer), recurse(n.body))

    def on_seq(n: Seq, recurse: Any) -> Stmt:
        return seq([recurse(s) for s in n.stmts])

    return renew_binders(transform(root, {For: on_for, Allocate: on_allocate, Seq: on_seq}))


def _to_version(n: Stmt, wide: dict[Buffer, Buffer], version: Poly) -> Stmt:
    """The statement on one version of the tiles."""

    def on_access(x: Any, recurse: Any) -> Any:
        m = x.map_children(recurse)
        b = wide.get(x.buffer)
        return m if b is None else m.with_(buffer=b, indices=(version, *m.indices))

    return transform(n, {BufferLoad: on_access, BufferStore: on_access})


def _staging(f: _Fill, b: Buffer, load: bool) -> Stmt:
    """The filling statement as loading into registers, or as storing from there."""
    at = tuple([poly(x.var) for x in f.loops])

    def on_store(x: BufferStore, _: Any) -> BufferStore:
        return BufferStore(b, at, x.value) if load else x.with_(value=BufferLoad(b, at))

    return transform(f.stmt, {BufferStore: on_store})


def _without_note(root: Stmt, loop: For) -> Stmt:
    notes = tuple([a for a in loop.annotations if a[0] != KEY])

    def on_for(n: For, recurse: Any) -> Stmt:
        return n.with_(annotations=notes) if n is loop else n.map_children(recurse)

    return transform(root, {For: on_for})
