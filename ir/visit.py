"""Walk and rewrite programs.  A rewrite that changes nothing returns the same object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex, IndirectVar
from tunesmith.ir.node import Node
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.poly import substitute as substitute_poly
from tunesmith.ir.stmt import Allocate, Annotations, BindIndex, Block, BufferStore, For, Seq, Stmt

N = TypeVar("N", bound=Node)
Handler = Callable[[Any, Callable[[Any], Any]], Any]


def walk(root: Node) -> Iterator[Any]:
    """All nodes of `root` in program order, `root` first; polynomials are leaves."""
    stack: list[Any] = [root]
    while stack:
        n = stack.pop()
        yield n
        if type(n) is not Poly:
            kids: list[Any] = []
            n.each_child(kids.append)
            stack.extend(reversed(kids))


def walk_objects(root: Node) -> Iterator[Any]:
    """As `walk`, each object once: shared subexpressions may expand to an exponentially larger tree."""
    stack: list[Any] = [root]
    seen: set[int] = set()
    while stack:
        n = stack.pop()
        if id(n) in seen:
            continue
        seen.add(id(n))
        yield n
        if type(n) is not Poly:
            kids: list[Any] = []
            n.each_child(kids.append)
            stack.extend(reversed(kids))


def transform(root: N, handlers: Mapping[type, Handler]) -> N:
    """Rewrite top down: a node whose type has a handler becomes `handler(node, recurse)`; other nodes map their children."""

    def recurse(n: Any) -> Any:
        h = handlers.get(type(n))
        return n.map_children(recurse) if h is None else h(n, recurse)

    return recurse(root)


def _annotations(old: Annotations, f: Callable[[Poly], Poly]) -> Annotations:
    if not old:
        return old
    new = tuple([(k, f(v) if isinstance(v, Poly) else v) for k, v in old])
    return old if all(a[1] is b[1] for a, b in zip(old, new, strict=True)) else new


def substitute(root: N, values: Mapping[Var, Poly], buffers: Mapping[Buffer, Buffer] | None = None) -> N:
    """`root` with variables and buffers replaced everywhere, including extents, bindings, predicates and annotations.

    Binders are not renamed: the caller must not substitute a variable that is bound inside `root`.
    """
    memo: dict[Poly, Poly] = {}
    swap = buffers or {}

    def index(p: Poly) -> Poly:
        return p if p.vars.isdisjoint(values) else substitute_poly(p, values, memo)

    def on_poly(p: Poly, _: Any) -> Poly:
        return index(p)

    def on_for(n: For, recurse: Any) -> For:
        m: For = n.map_children(recurse)
        notes = _annotations(m.annotations, index)
        return m if notes is m.annotations else m.with_(annotations=notes)

    def on_access(n: Any, recurse: Any) -> Any:
        m = n.map_children(recurse)
        b = swap.get(m.buffer)
        return m if b is None else m.with_(buffer=b)

    handlers: dict[type, Handler] = {Poly: on_poly, For: on_for, Block: on_for}
    if swap:
        handlers |= {BufferLoad: on_access, BufferStore: on_access, Allocate: on_access}
    return transform(root, handlers)


def fresh_copy(root: N) -> N:
    """A copy with renewed binders: each variable bound by a loop, block or indirect index becomes a new one of the same name."""
    values: dict[Var, Poly] = {}

    def rename(v: Var) -> Var:
        w = Var(v.name)
        values[v] = poly(w)
        return w

    def on_poly(p: Poly, _: Any) -> Poly:
        return substitute_poly(p, values) if values else p

    def on_for(n: For, recurse: Any) -> For:
        extent = recurse(n.extent)
        var = rename(n.var)
        return n.with_(var=var, extent=extent, body=recurse(n.body))

    def on_block(n: Block, recurse: Any) -> Block:
        bindings = tuple([recurse(b) for b in n.bindings])
        predicate = tuple([recurse(p) for p in n.predicate])
        iters = tuple([i.with_(var=rename(i.var), extent=recurse(i.extent)) for i in n.iters])
        init = None if n.init is None else recurse(n.init)
        return n.with_(iters=iters, bindings=bindings, predicate=predicate, init=init, body=recurse(n.body))

    def on_indirect_index(n: IndirectIndex | BindIndex, recurse: Any) -> IndirectIndex | BindIndex:
        extent, value = recurse(n.extent), recurse(n.value)
        var = IndirectVar(n.var.name)
        values[n.var] = poly(var)
        return n.with_(var=var, extent=extent, value=value, body=recurse(n.body))

    return transform(root, {Poly: on_poly, For: on_for, Block: on_block, IndirectIndex: on_indirect_index, BindIndex: on_indirect_index})


def blocks_under(root: Stmt) -> list[Block]:
    """The blocks of `root` in program order, including nested blocks."""
    found: list[Block] = []
    stack: list[Stmt] = [root]
    while stack:
        n = stack.pop()
        if type(n) is Block:
            found.append(n)
        stack.extend(reversed(inner_statements(n)))
    return found


def inner_statements(n: Stmt) -> Sequence[Stmt]:
    """The direct child statements of a statement, in program order; expressions are not visited."""
    if isinstance(n, BufferStore):
        return ()
    if isinstance(n, For):
        return (n.body,)
    if isinstance(n, Seq):
        return n.stmts
    if isinstance(n, Block):
        b: Any = n
        return (b.body,) if b.init is None else (b.init, b.body)
    kids: list[Any] = []
    n.each_child(kids.append)
    return [k for k in kids if isinstance(k, Stmt)]


def path_to_block(root: Stmt, name: str) -> list[Any] | None:
    """The statements from `root` down to the block `name`, which is last; None if there is no such block."""
    return paths_to_blocks(root).get(name)


def paths_to_blocks(root: Stmt) -> dict[str, list[Any]]:
    """`path_to_block` of each block below `root`, in program order; for duplicate names, the first block."""
    found: dict[str, list[Any]] = {}
    path: list[Any] = []

    def go(n: Stmt) -> None:
        path.append(n)
        if type(n) is Block:
            found.setdefault(n.name, list(path))
        for k in inner_statements(n):
            go(k)
        path.pop()

    go(root)
    return found


def with_body(func: PrimFunc, body: Stmt) -> PrimFunc:
    """`func` with another body; `func` itself if the body is the same object."""
    return func if body is func.body else func.with_(body=body)
