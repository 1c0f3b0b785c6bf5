"""Double-buffer shared-memory tiles: load the next tile while threads compute on the current one.

A loop annotated `double_buffer: 2` whose body begins with copies to shared-memory tiles gets two versions of each tile.  Data of the next
iteration is loaded into registers before the computation of the current one, and stored to the other version after it.  The computation
hides the latency of the loads, and each iteration needs one barrier instead of two.
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


@function_pass(requires="OPAQUE", level=2)
def double_buffer(func: PrimFunc, target: Target) -> PrimFunc:
    """Double-buffer the tiles of annotated loops whose body has the required form.

    Source: register-staged double buffering of CUTLASS's SIMT kernels; TVM's InjectDoubleBuffer.
    """
    return map_kernels(func, _kernel)


def _kernel(root: Stmt) -> Stmt:
    for n in walk(root):
        if type(n) is For and _is_annotated(n):
            copies = _tile_copies(n, root)
            if copies:
                return _kernel(_versioned(root, n, copies))
            return _kernel(_without_annotation(root, n))
    return root


def _is_annotated(n: For) -> bool:
    value = annotation(n, KEY)
    return isinstance(value, Poly) and value == 2


@dataclass(frozen=True, slots=True)
class _TileCopy:
    """A statement that copies data to a tile.

    Attributes:
        stmt: loops around one store, possibly under guards.
        store: the store.
        loops: the loops, outermost first.
    """

    stmt: Stmt
    store: BufferStore
    loops: tuple[For, ...]


def _tile_copies(n: For, root: Stmt) -> list[_TileCopy]:
    """The tile copies at the beginning of the loop; empty if the loop or other accesses of the tiles do not have the required form."""
    found: list[_TileCopy] = []
    rest = list(n.body.stmts) if type(n.body) is Seq else []
    while rest:
        copy = _as_tile_copy(rest[0])
        if copy is None:
            break
        found.append(copy)
        rest.pop(0)
    tiles = [f.store.buffer for f in found]
    if len(set(tiles)) < len(tiles) or not rest or (n.extent.const or 0) < 2 or n.kind != "serial":
        return []
    in_loop, in_root = list(_accesses(n)), list(_accesses(root))
    for b in tiles:
        if sum(x.buffer is b for x in in_loop) != sum(x.buffer is b for x in in_root):
            return []
        if any(type(x) is BufferStore and x.buffer is b for s in rest for x in walk(s)):
            return []
    return found


def _accesses(n: Stmt) -> Any:
    return (x for x in walk(n) if type(x) in (BufferLoad, BufferStore))


def _as_tile_copy(n: Any) -> _TileCopy | None:
    """The statement as a copy from global memory to a shared tile with loops of constant extents; None if it is not."""
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
    return _TileCopy(n, at, tuple(loops))


def _versioned(root: Stmt, loop: For, copies: list[_TileCopy]) -> Stmt:
    """The kernel with two versions of the tiles and the pipelined loop."""
    versioned = {f.store.buffer: f.store.buffer.like(shape=(2, *f.store.buffer.shape)) for f in copies}
    staged = {f: Buffer(f"{f.store.buffer.name}_next", [x.extent for x in f.loops], f.store.buffer.dtype, "local") for f in copies}
    k, following = poly(loop.var), poly(loop.var) + 1
    first = [fresh_copy(substitute(_to_version(f.stmt, versioned, poly(0)), {loop.var: poly(0)})) for f in copies]
    more = less_than(following, loop.extent)
    loads = [substitute(_staging(f, staged[f], True), {loop.var: following}) for f in copies]
    stores = [_to_version(substitute(_staging(f, staged[f], False), {loop.var: following}), versioned, mod(following, 2)) for f in copies]
    assert type(loop.body) is Seq
    work = [_to_version(s, versioned, mod(k, 2)) for s in loop.body.stmts[len(copies) :]]
    body = seq([If(more, seq([fresh_copy(x) for x in loads])), *work, If(more, seq([fresh_copy(x) for x in stores]))])
    for b in staged.values():
        body = Allocate(b, body)
    annotations = tuple([a for a in loop.annotations if a[0] != KEY])
    new = seq([*first, For(loop.var, loop.extent, body, loop.kind, loop.thread, annotations)])

    def on_for(n: For, recurse: Any) -> Stmt:
        return new if n is loop else n.map_children(recurse)

    def on_allocate(n: Allocate, recurse: Any) -> Allocate:
        return Allocate(versioned.get(n.buffer, n.buffer), recurse(n.body))

    def on_seq(n: Seq, recurse: Any) -> Stmt:
        return seq([recurse(s) for s in n.stmts])

    return renew_binders(transform(root, {For: on_for, Allocate: on_allocate, Seq: on_seq}))


def _to_version(n: Stmt, versioned: dict[Buffer, Buffer], version: Poly) -> Stmt:
    """The statement with accesses to one version of the tiles."""

    def on_access(x: Any, recurse: Any) -> Any:
        m = x.map_children(recurse)
        b = versioned.get(x.buffer)
        return m if b is None else m.with_(buffer=b, indices=(version, *m.indices))

    return transform(n, {BufferLoad: on_access, BufferStore: on_access})


def _staging(f: _TileCopy, b: Buffer, load: bool) -> Stmt:
    """The half of a tile copy that loads into registers, or the half that stores from them."""
    at = tuple([poly(x.var) for x in f.loops])

    def on_store(x: BufferStore, _: Any) -> BufferStore:
        return BufferStore(b, at, x.value) if load else x.with_(value=BufferLoad(b, at))

    return transform(f.stmt, {BufferStore: on_store})


def _without_annotation(root: Stmt, loop: For) -> Stmt:
    annotations = tuple([a for a in loop.annotations if a[0] != KEY])

    def on_for(n: For, recurse: Any) -> Stmt:
        return n.with_(annotations=annotations) if n is loop else n.map_children(recurse)

    return transform(root, {For: on_for})
