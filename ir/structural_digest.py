"""The digest of a program: a key that is the same for programs that `structural.equal` calls equal, in every process.

It is the hash of a text in which every binder is its number in program order; the terms of an index expression are
sorted by that text, never by the creation order of variables, and nothing comes from `hash()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Const
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.node import Node
from tunesmith.ir.poly import Atom, Op, Param, Poly, Var
from tunesmith.ir.stmt import Allocate, Block, For
from tunesmith.support.errors import InternalError


def digest(a: PrimFunc | IRModule | Node) -> str:
    """32 hexadecimal digits that depend on what `equal` compares and on nothing else.

    The same in every process and on every machine; programs that are equal have equal digests.
    """
    writer = _Writer()
    writer.program(a)
    return blake2b("".join([_FORMAT, *writer.out]).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_FORMAT = "tunesmith.structural.1\n"
"""Part of every digest, hence of every stored record: a change of the text below must change this line."""


def literal(x: object) -> str:
    """The value of a literal, signed zeros and infinities apart, all NaNs alike."""
    return x.hex() if isinstance(x, float) else str(int(x)) if isinstance(x, int) else repr(x)


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
            self.out.append(repr(x) if isinstance(x, str) else f"{type(x).__name__}:{literal(x)}")
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
        self.out.append(f"{x.dtype}:{literal(x.value)}")

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
