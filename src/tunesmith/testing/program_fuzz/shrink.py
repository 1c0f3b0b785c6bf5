"""Enumerate smaller versions of a program: parts removed, expressions replaced by subexpressions, loops shortened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tunesmith.testing.program_fuzz import program as p
from tunesmith.testing.program_fuzz.numbers import FLOATS


def smaller(program: p.Program) -> Iterator[p.Program]:
    """Programs with one part removed, large parts first; unused buffers are removed too."""
    if len(program.bindings) > 1:
        for binding in program.bindings:
            yield replace(program, bindings=(binding,))
    for body in _without(program.body):
        made = _cleaned(program, body)
        if body and any(b.role == "output" for b in made.buffers):
            yield made
    for n, name in enumerate(program.sizes):
        for value in dict.fromkeys(b[n] for b in program.bindings):
            yield _cleaned(program, _bound(program.body, name, value), {name: value})
    for body in _simplified(program.body):
        yield _cleaned(program, body)
    for b in program.buffers:
        if b.scope != "global":
            yield _with_buffer(program, replace(b, scope="global"))
        if b.pad:
            yield _with_buffer(program, replace(b, pad=0))
        if b.data in ("wild", "fractions"):
            yield _with_buffer(program, replace(b, data="small"))
    for old in sorted({b.dtype for b in program.buffers if b.data != "index"} - {"int32", "float32", "bool"}):
        yield _retyped(program, old, "float32" if old in FLOATS else "int32")


def _with_buffer(program: p.Program, new: p.Buffer) -> p.Program:
    return replace(program, buffers=tuple([new if b.name == new.name else b for b in program.buffers]))


def _cleaned(program: p.Program, body: tuple[p.Nest, ...], known: dict[str, int] | None = None) -> p.Program:
    """The program with this body and without unused parts; sizes with known values are removed."""
    names = set(_names(body))
    buffers = [b for b in program.buffers if b.name in names]
    for name, n in (known or {}).items():
        buffers = [replace(b, shape=tuple([_replaced(e, name, n) for e in b.shape])) for b in buffers]
    keep = [i for i, s in enumerate(program.sizes) if s not in (known or {})]
    sizes = tuple([program.sizes[i] for i in keep])
    fitting = [b for b in program.bindings if all(b[program.sizes.index(s)] == n for s, n in (known or {}).items())]
    bindings = tuple(dict.fromkeys(tuple([b[i] for i in keep]) for b in fitting))
    return p.Program(tuple(buffers), body, sizes, bindings)


def _names(x: Any) -> Iterator[str]:
    if isinstance(x, tuple):
        for y in x:
            yield from _names(y)
    elif isinstance(x, (p.Load, p.Store)):
        yield x.buffer
    if hasattr(x, "__dataclass_fields__"):
        for f in x.__dataclass_fields__:
            yield from _names(getattr(x, f))


# ---- removed loops, blocks, statements -------------------------------------------------------------------------------


def _without(body: tuple[p.Nest, ...]) -> Iterator[tuple[p.Nest, ...]]:
    """Bodies with one nest, guard or statement removed."""
    for i, n in enumerate(body):
        rest = body[:i], body[i + 1 :]
        if len(body) > 1:
            yield (*rest[0], *rest[1])
        for m in _nest_without(n):
            yield (*rest[0], *m, *rest[1])


def _nest_without(n: p.Nest) -> Iterator[tuple[p.Nest, ...]]:
    if isinstance(n, p.Loop):
        yield _bound(n.body, n.var, 0)
        for body in _without(n.body):
            if body:
                yield (replace(n, body=body),)
        return
    if n.under:
        yield (replace(n, under=n.under[1:]),)
    if n.is_plain:
        yield (replace(n, is_plain=False),)
    for i in range(len(n.guards)):
        yield (replace(n, guards=n.guards[:i] + n.guards[i + 1 :]),)
    if n.init:
        yield (replace(n, init=()),)
    for statements in _fewer(n.body):
        yield (replace(n, body=statements),)
    for i, a in enumerate(n.axes):
        if a.name not in set(_index_names((n.init, n.body))):
            yield (replace(n, axes=n.axes[:i] + n.axes[i + 1 :]),)
        elif a.extent == p.Num(1):
            yield (_axis_fixed(n, i),)


def _axis_fixed(n: p.Block, i: int) -> p.Block:
    """The block with axis i of extent 1 replaced by 0."""
    name = n.axes[i].name
    init: Any = _replaced(n.init, name, 0)
    body: Any = _replaced(n.body, name, 0)
    return replace(n, axes=n.axes[:i] + n.axes[i + 1 :], init=init, body=body)


def _fewer(statements: tuple[p.Statement, ...]) -> Iterator[tuple[p.Statement, ...]]:
    for i, s in enumerate(statements):
        rest = statements[:i], statements[i + 1 :]
        if len(statements) > 1:
            yield (*rest[0], *rest[1])
        if isinstance(s, p.If):
            yield (*rest[0], *s.then, *rest[1])
            if s.orelse:
                yield (*rest[0], *s.orelse, *rest[1])
                yield (*rest[0], replace(s, orelse=()), *rest[1])


# ---- expressions and extents ------------------------------------------------------------------------------------------


def _simplified(x: Any) -> Iterator[Any]:
    """`x` with one expression replaced by a subexpression, or one extent reduced."""
    if isinstance(x, tuple):
        for i, y in enumerate(x):
            for z in _simplified(y):
                yield (*x[:i], z, *x[i + 1 :])
        return
    if not hasattr(x, "__dataclass_fields__"):
        return
    yield from _parts(x)
    for f in x.__dataclass_fields__:
        old = getattr(x, f)
        if isinstance(old, tuple) or hasattr(old, "__dataclass_fields__"):
            for new in _simplified(old):
                yield replace(x, **{f: new})


def _parts(x: Any) -> Iterator[Any]:
    if isinstance(x, p.Loop) and isinstance(x.extent, p.Num) and x.extent.value > 1:
        for n in dict.fromkeys((1, 2, x.extent.value // 2, x.extent.value - 1)):
            if n < x.extent.value:
                yield _shortened(x, n)
    if isinstance(x, (p.Arith, p.Binary, p.Logic)):
        yield x.a
        yield x.b
    if isinstance(x, p.Select):
        yield x.a
        yield x.b
    if isinstance(x, p.Not):
        yield x.a
    if isinstance(x, p.Function) and x.args[0].dtype == x.dtype:
        yield x.args[0]
    if isinstance(x, (p.Load, p.Binary, p.Cast, p.Function, p.IndirectIndex, p.IndexValue)):
        yield p.Literal(True if x.dtype == "bool" else 1.0 if x.dtype in FLOATS else 1, x.dtype)
    if isinstance(x, (p.Compare, p.IndexCompare, p.Logic, p.Not)):
        yield p.Literal(True, "bool")


def _shortened(loop: p.Loop, n: int) -> p.Loop:
    """The loop with n iterations; axes bound only to it are shortened too."""

    def go(m: Any) -> Any:
        if isinstance(m, p.Loop):
            return replace(m, body=tuple([go(x) for x in m.body]))
        return replace(m, axes=tuple([replace(a, extent=p.Num(n)) if a.binding == p.Name(loop.var) else a for a in m.axes]))

    return p.Loop(loop.var, p.Num(n), tuple([go(m) for m in loop.body]))


def _index_names(x: Any) -> Iterator[str]:
    if isinstance(x, p.Name):
        yield x.name
    elif isinstance(x, tuple):
        for y in x:
            yield from _index_names(y)
    elif hasattr(x, "__dataclass_fields__"):
        for f in x.__dataclass_fields__:
            yield from _index_names(getattr(x, f))


def _bound(body: tuple[p.Nest, ...], name: str, n: int) -> tuple[p.Nest, ...]:
    out: Any = _replaced(body, name, n)
    return tuple(out)


def _replaced(x: Any, name: str, n: int) -> Any:
    return p.replaced(x, name, p.Num(n))


def _retyped(x: Any, old: str, new: str) -> Any:
    """`x` with one type replaced by another."""
    if isinstance(x, tuple):
        return tuple([_retyped(y, old, new) for y in x])
    if not hasattr(x, "__dataclass_fields__"):
        return x
    changed = {f: _retyped(getattr(x, f), old, new) for f in x.__dataclass_fields__ if not isinstance(getattr(x, f), (str, int, float))}
    if getattr(x, "dtype", "") == old and not (isinstance(x, p.Buffer) and x.data == "index"):
        changed["dtype"] = new
        if isinstance(x, p.Literal):
            changed["value"] = float(x.value) if new in FLOATS else int(x.value) if abs(x.value) < 2**31 else 1
    return replace(x, **changed)
