"""Equality of programs up to the names of their binders, the place of the first difference, and a digest that agrees with it.

Loop variables, block iteration variables, scalar parameters and buffers are matched pairwise as their binders are met, so
neither their names nor the order in which they were created matters.  What is not bound inside the compared programs is
the same only when it is the same object; Params are the same when they have one name and one domain.

A binder must be bound once in a program (`verify` checks it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Const
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.node import Node
from tunesmith.ir.poly import Atom, Monomial, Op, Param, Poly, Var, poly, substitute
from tunesmith.ir.stmt import Allocate, Block, BufferStore, For, Seq
from tunesmith.support.errors import InternalError

Program = PrimFunc | IRModule | Node


def equal(a: Program, b: Program) -> bool:
    """True when `a` and `b` are the same program up to the names of loops, iteration variables, buffers and the function."""
    try:
        _Match().compare(a, b)
    except _Different:
        return False
    return True


def difference(a: Program, b: Program) -> str | None:
    """Where `a` and `b` first differ and how, in the names of `a`; None when they are equal.

    The place is a path of loops, blocks and fields, such as `/i_0/j_0/C.bindings[1]: 8*i_0 + i_1 != 1 + 8*i_0 + i_1`.
    """
    match = _Match()
    try:
        match.compare(a, b)
    except _Different as d:
        place = "".join(reversed(d.path)) or "/"
        return f"{place}: {match.show(d.left, True)} != {match.show(d.right, False)}"
    return None


def digest(a: Program) -> str:
    """32 hexadecimal digits that depend on what `equal` compares and on nothing else.

    The same in every process and on every machine; programs that are equal have equal digests.
    """
    writer = _Writer()
    writer.program(a)
    return blake2b("".join([_FORMAT, *writer.out]).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_FORMAT = "tunesmith.structural.1\n"
"""Part of every digest, hence of every stored record: a change of the text below must change this line."""


# ---- equality ----------------------------------------------------------------------------------------------------------


class _Different(Exception):
    """The first difference; the path is collected on the way out, innermost segment first."""

    def __init__(self, left: object, right: object, *path: str) -> None:
        super().__init__()
        self.left, self.right, self.path = left, right, list(path)


class _Match:
    """One comparison: the binders matched so far, in both directions.

    `moved` holds the variables that are matched with another one than themselves: a polynomial shared by both sides is
    equal to itself when it has none of them, which is the usual case.
    """

    __slots__ = ("back", "buffer_back", "buffers", "moved", "vars")

    def __init__(self) -> None:
        self.vars: dict[Atom, Atom] = {}
        self.back: dict[Atom, Atom] = {}
        self.moved: set[Atom] = set()
        self.buffers: dict[Buffer, Buffer] = {}
        self.buffer_back: dict[Buffer, Buffer] = {}

    def compare(self, a: Any, b: Any) -> None:
        if isinstance(a, IRModule) and isinstance(b, IRModule):
            if sorted(a) != sorted(b):
                raise _Different(sorted(a), sorted(b), ".functions")
            for name in sorted(a):
                try:
                    _Match().compare(a[name], b[name])
                except _Different as d:
                    d.path.append(f"/{name}")
                    raise
        elif type(a) is PrimFunc and type(b) is PrimFunc:
            self._function(a, b)
        elif isinstance(a, Node) and isinstance(b, Node):
            self._value(a, b)
        elif a is not b:
            raise _Different(a, b)

    def show(self, x: object, left: bool) -> str:
        if not isinstance(x, Poly) or left:
            return _brief(x)
        values = {v: poly(w) for v in x.vars if isinstance(w := self.back.get(v, v), Var) and w is not v}
        return repr(substitute(x, values)) if values else repr(x)

    # binders

    def _bind(self, x: Var, y: Var) -> None:
        old = self.vars.pop(x, None)
        if old is not None:
            self.back.pop(old, None)
        old = self.back.pop(y, None)
        if old is not None:
            self.vars.pop(old, None)
        self.vars[x] = y
        self.back[y] = x
        if x is y:
            self.moved.discard(x)
        else:
            self.moved.add(x)
            self.moved.add(y)

    def _bind_buffer(self, x: Buffer, y: Buffer, place: str) -> None:
        if x.dtype != y.dtype or x.scope != y.scope:
            raise _Different(f"{x!r} in {x.scope}", f"{y!r} in {y.scope}", place)
        self._polys(x.shape, y.shape, place + ".shape")
        self.buffers[x] = y
        self.buffer_back[y] = x

    def _var(self, x: Atom, y: Atom) -> bool:
        """Whether two variables that are not matched with each other are nevertheless the same: free, or equal Params."""
        if x in self.vars or y in self.back:
            return False
        if x is y:
            return True
        if isinstance(x, Param) and isinstance(y, Param) and x.name == y.name and x.domain == y.domain:
            self._bind(x, y)
            return True
        return False

    def _buffer(self, x: Buffer, y: Buffer) -> None:
        z = self.buffers.get(x)
        if z is not y and (z is not None or x is not y or y in self.buffer_back):
            raise _Different(_brief(x), _brief(y), ".buffer")

    # index expressions

    def _polys(self, xs: tuple[Poly, ...], ys: tuple[Poly, ...], place: str) -> None:
        if len(xs) != len(ys):
            raise _Different(f"{len(xs)} expressions", f"{len(ys)} expressions", place)
        moved = self.moved
        for i, x in enumerate(xs):
            y = ys[i]
            if not (x is y and x.vars.isdisjoint(moved) or self._same_terms(x.terms, y.terms) or self._same_value(x, y)):
                raise _Different(x, y, f"{place}[{i}]")

    def _poly(self, x: Poly, y: Poly, *place: str) -> None:
        if not (x is y and x.vars.isdisjoint(self.moved) or self._same_terms(x.terms, y.terms) or self._same_value(x, y)):
            raise _Different(x, y, *place)

    def _same_terms(self, xs: tuple[tuple[Monomial, int], ...], ys: tuple[tuple[Monomial, int], ...]) -> bool:
        """Equality without building anything: right whenever it says yes; terms in another order need `_same_value`."""
        if len(xs) != len(ys):
            return False
        match = self.vars
        for (m, c), (n, k) in zip(xs, ys, strict=True):
            if c != k or len(m) != len(n):
                return False
            for a, b in zip(m, n, strict=True):
                if type(a) is Op:
                    if type(b) is not Op or a.op != b.op or len(a.args) != len(b.args):
                        return False
                    for x, y in zip(a.args, b.args, strict=True):
                        if not self._same_terms(x.terms, y.terms):
                            return False
                elif match.get(a) is not b and not self._var(a, b):
                    return False
        return True

    def _same_value(self, x: Poly, y: Poly) -> bool:
        """Equality of normal forms after the variables of `y` were replaced by their partners."""
        if len(x.terms) != len(y.terms):
            return False
        values: dict[Var, Poly] = {}
        for v in y.vars:
            w = self.back.get(v)
            if w is None:
                w = next((u for u in x.vars if self._var(u, v)), None)
            if w is None:
                return False
            if w is not v:
                values[v] = poly(w)  # type: ignore[arg-type]
        return substitute(y, values) == x

    # programs

    def _function(self, a: PrimFunc, b: PrimFunc) -> None:
        if [type(p) for p in a.params] != [type(p) for p in b.params]:
            raise _Different(a.params, b.params, ".params")
        for x, y in zip(a.params, b.params, strict=True):
            if not isinstance(x, Buffer):
                self._bind(x, y)  # type: ignore[arg-type]
        for i, (x, y) in enumerate(zip(a.params, b.params, strict=True)):
            if isinstance(x, Buffer):
                self._bind_buffer(x, y, f".params[{i}]")  # type: ignore[arg-type]
        if len(a.allocs) != len(b.allocs):
            raise _Different(f"{len(a.allocs)} buffers", f"{len(b.allocs)} buffers", ".allocs")
        for i, (p, q) in enumerate(zip(a.allocs, b.allocs, strict=True)):
            self._bind_buffer(p, q, f".allocs[{i}]")
        self._field(a, b, "attrs")
        self._value(a.body, b.body)

    def _value(self, x: Any, y: Any) -> None:
        t = type(x)
        if t is not type(y):
            raise _Different(_brief(x), _brief(y))
        handler = self._HANDLERS.get(t)
        if handler is not None:
            handler(self, x, y)
        elif isinstance(x, Node):
            for name in x.fields:
                self._field(x, y, name)
        elif isinstance(x, Var):
            if self.vars.get(x) is not y and not self._var(x, y):
                raise _Different(x, y)
        elif x != y:
            raise _Different(x, y)

    def _field(self, x: Any, y: Any, name: str) -> None:
        try:
            self._value(getattr(x, name), getattr(y, name))
        except _Different as d:
            d.path.append(f".{name}")
            raise

    def _tuple(self, xs: tuple[Any, ...], ys: tuple[Any, ...]) -> None:
        if len(xs) != len(ys):
            raise _Different(f"{len(xs)} items", f"{len(ys)} items")
        for i, x in enumerate(xs):
            try:
                self._value(x, ys[i])
            except _Different as d:
                d.path.append(f"[{i}]")
                raise

    def _for(self, x: For, y: For) -> None:
        try:
            self._poly(x.extent, y.extent, ".extent")
            if x.kind != y.kind or x.thread != y.thread:
                raise _Different(x.thread or x.kind, y.thread or y.kind, ".kind")
            if x.annotations or y.annotations:
                self._field(x, y, "annotations")
            self._bind(x.var, y.var)
            self._value(x.body, y.body)
        except _Different as d:
            d.path.append(f"/{x.var.name}")
            raise

    def _block(self, x: Block, y: Block) -> None:
        try:
            if x.name != y.name:
                raise _Different(x.name, y.name, ".name")
            self._polys(x.bindings, y.bindings, ".bindings")
            self._polys(x.predicate, y.predicate, ".predicate")
            if [i.kind for i in x.iters] != [i.kind for i in y.iters]:
                raise _Different("".join([i.kind for i in x.iters]), "".join([i.kind for i in y.iters]), ".iters")
            self._polys(tuple([i.extent for i in x.iters]), tuple([i.extent for i in y.iters]), ".extents")
            for i, j in zip(x.iters, y.iters, strict=True):
                self._bind(i.var, j.var)
            if x.annotations or y.annotations:
                self._field(x, y, "annotations")
            if x.init is not None or y.init is not None:
                self._field(x, y, "init")
            self._value(x.body, y.body)
        except _Different as d:
            d.path.append(f"/{x.name}")
            raise

    def _allocate(self, x: Allocate, y: Allocate) -> None:
        self._bind_buffer(x.buffer, y.buffer, ".buffer")
        self._value(x.body, y.body)

    def _seq(self, x: Seq, y: Seq) -> None:
        self._tuple(x.stmts, y.stmts)

    def _store(self, x: BufferStore, y: BufferStore) -> None:
        self._buffer(x.buffer, y.buffer)
        self._polys(x.indices, y.indices, ".indices")
        if x.stride is not y.stride:
            self._field(x, y, "stride")
        if x.mask is not y.mask:
            self._field(x, y, "mask")
        self._field(x, y, "value")

    def _load(self, x: BufferLoad, y: BufferLoad) -> None:
        self._buffer(x.buffer, y.buffer)
        self._polys(x.indices, y.indices, ".indices")
        if x.lanes != y.lanes:
            raise _Different(x.lanes, y.lanes, ".lanes")
        if x.stride is not y.stride:
            self._field(x, y, "stride")
        if x.mask is not y.mask:
            self._field(x, y, "mask")

    def _binary(self, x: Binary, y: Binary) -> None:
        if x.op != y.op:
            raise _Different(x.op, y.op, ".op")
        self._field(x, y, "a")
        self._field(x, y, "b")

    def _const(self, x: Const, y: Const) -> None:
        if x is not y and (x.dtype != y.dtype or _literal(x.value) != _literal(y.value)):
            raise _Different(f"{x.value} of {x.dtype}", f"{y.value} of {y.dtype}")

    _HANDLERS: Mapping[type, Callable[[Any, Any, Any], None]] = {
        Poly: _poly,
        tuple: _tuple,
        For: _for,
        Block: _block,
        Seq: _seq,
        Allocate: _allocate,
        BufferStore: _store,
        BufferLoad: _load,
        Buffer: _buffer,
        Binary: _binary,
        Const: _const,
    }


def _literal(x: object) -> str:
    """The value of a literal, signed zeros and infinities apart, all NaNs alike."""
    return x.hex() if isinstance(x, float) else str(int(x)) if isinstance(x, int) else repr(x)


def _brief(x: object) -> str:
    if isinstance(x, Node) and not isinstance(x, Poly):
        name = getattr(x, "name", None)
        return f"{type(x).__name__} {name}" if isinstance(name, str) else type(x).__name__
    return repr(x)


# ---- digest ------------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes a program as text in which binders are numbers in program order.

    Fields that have their default value are left out, so that a new field with a default changes no digest.
    """

    __slots__ = ("bound", "buffers", "free", "names", "out", "params", "polys")

    def __init__(self) -> None:
        self.bound = 0
        self.out: list[str] = []
        self.names: dict[Atom, str] = {}
        self.buffers: dict[Buffer, str] = {}
        self.params: dict[Param, str] = {}
        self.polys: dict[Poly, str] = {}
        self.free: set[Atom] = set()

    def program(self, a: Any) -> None:
        if isinstance(a, IRModule):
            for name in sorted(a):
                self.out.append(f"module {name!r} ")
                inner = _Writer()
                inner.program(a[name])
                self.out += inner.out
        elif type(a) is PrimFunc:
            self._function(a)
        elif isinstance(a, Node):
            self._value(a)
        else:
            raise InternalError(f"no digest is defined for {type(a).__name__}")

    def _function(self, f: PrimFunc) -> None:
        for p in f.params:
            if not isinstance(p, Buffer):
                self._bind(p)
        self.out.append("function(")
        for p in f.params:
            if isinstance(p, Buffer):
                self._bind_buffer(p)
            else:
                self.out.append("index ")
        self.out.append(")(")
        for b in f.allocs:
            self._bind_buffer(b)
        self.out.append(")")
        self._value(f.attrs)
        self._value(f.body)

    # binders

    def _bind(self, v: Var) -> None:
        if v in self.names or v in self.free:
            self.polys.clear()
        self.names[v] = f"v{self.bound}"
        self.bound += 1

    def _bind_buffer(self, b: Buffer) -> None:
        self.out.append(f"{b.dtype} {b.scope}[{','.join([self._poly(s) for s in b.shape])}];")
        self.buffers[b] = f"b{len(self.buffers)}"

    # index expressions

    def _poly(self, p: Poly) -> str:
        text = self.polys.get(p)
        if text is None:
            terms = []
            for m, c in p.terms:
                atoms = [self._atom(a) for a in m]
                if len(atoms) > 1:
                    atoms.sort()
                terms.append(f"{'*'.join(atoms)}*{c}")
            if len(terms) > 1:
                terms.sort()
            text = self.polys[p] = "+".join(terms)
        return text

    def _atom(self, a: Atom) -> str:
        name = self.names.get(a)
        if name is not None:
            return name
        if type(a) is Op:
            args = [self._poly(x) for x in a.args]
            if a.op in ("min", "max"):
                args.sort()
            return f"{a.op}({','.join(args)})"
        if isinstance(a, Param):
            name = self.params.get(a)
            if name is None:
                name = self.params[a] = "p" + blake2b(repr((a.name, a.domain)).encode(), digest_size=16).hexdigest()
            return name
        self.free.add(a)
        return f"free {a!r}"

    # nodes

    def _value(self, x: Any) -> None:
        handler = self._HANDLERS.get(type(x))
        if handler is not None:
            handler(self, x)
        elif isinstance(x, Node):
            self._node(x)
        elif isinstance(x, Var):
            self.out.append(self._atom(x))
        elif x is None or isinstance(x, (str, int, float)):
            self.out.append(repr(x) if isinstance(x, str) else f"{type(x).__name__}:{_literal(x)}")
        else:
            raise InternalError(f"no digest is defined for {type(x).__name__}")

    def _node(self, x: Node) -> None:
        self.out.append(f"{type(x).__name__}(")
        for name, default in _plan(type(x)):
            value = getattr(x, name)
            if value is not default and not (type(value) is type(default) and value == default):
                self.out.append(f"{name}=")
                self._value(value)
                self.out.append(",")
        self.out.append(")")

    def _tuple(self, xs: tuple[Any, ...]) -> None:
        self.out.append("(")
        for x in xs:
            self._value(x)
            self.out.append(",")
        self.out.append(")")

    def _for(self, x: For) -> None:
        self.out.append(f"for {self._poly(x.extent)} {x.kind} {x.thread} ")
        if x.annotations:
            self._tuple(x.annotations)
        self._bind(x.var)
        self._value(x.body)

    def _block(self, x: Block) -> None:
        bindings = ",".join([self._poly(p) for p in x.bindings])
        predicate = ",".join([self._poly(p) for p in x.predicate])
        iters = ",".join([i.kind + self._poly(i.extent) for i in x.iters])
        self.out.append(f"block {x.name!r}[{bindings}][{predicate}][{iters}]")
        for i in x.iters:
            self._bind(i.var)
        if x.annotations:
            self._tuple(x.annotations)
        if x.init is not None:
            self.out.append("init ")
            self._value(x.init)
        self.out.append("body ")
        self._value(x.body)

    def _allocate(self, x: Allocate) -> None:
        self.out.append("allocate ")
        self._bind_buffer(x.buffer)
        self._value(x.body)

    def _buffer(self, x: Buffer) -> None:
        name = self.buffers.get(x)
        self.out.append(name if name is not None else f"free {x.name!r} {x.dtype} {x.scope} {len(x.shape)}")

    def _index(self, x: Poly) -> None:
        self.out.append(f"<{self._poly(x)}>")

    def _const(self, x: Const) -> None:
        self.out.append(f"{x.dtype}:{_literal(x.value)}")

    _HANDLERS: Mapping[type, Callable[[Any, Any], None]] = {
        Poly: _index,
        tuple: _tuple,
        For: _for,
        Block: _block,
        Allocate: _allocate,
        Buffer: _buffer,
        Const: _const,
    }


_NO_DEFAULT = object()
_plans: dict[type, tuple[tuple[str, object], ...]] = {}


def _plan(kind: type[Node]) -> tuple[tuple[str, object], ...]:
    """Fields of a node type with their defaults."""
    plan = _plans.get(kind)
    if plan is None:
        defaults: tuple[object, ...] = getattr(kind.__init__, "__defaults__", None) or ()
        values = (_NO_DEFAULT,) * (len(kind.fields) - len(defaults)) + defaults
        plan = _plans[kind] = tuple(zip(kind.fields, values, strict=True))
    return plan
