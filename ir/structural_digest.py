"""Compute the digest of a program, a process-independent key that agrees with `structural.equal`.

The digest hashes a text in which every binder is its number in program order.  Terms of index expressions are sorted by that text, not by
the creation order of variables, and Python's `hash()` is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Const, Expr
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.node import Node
from tunesmith.ir.poly import Atom, Op, Param, Poly, Var
from tunesmith.ir.stmt import Allocate, BindIndex, Block, For
from tunesmith.support.errors import InternalError
from tunesmith.support.registry import Registry, instance_of


@dataclass(frozen=True, slots=True)
class Structure:
    """Digest and comparison of a function class defined in another package.

    Attributes:
        digest: as `digest`.
        difference: as `structural.difference`.
    """

    digest: Callable[[Any], str]
    difference: Callable[[Any, Any], str | None]


_DIGEST_NAMES = {"IsNegative": "Lt0", "IndirectIndex": "Lookup"}
"""Former class names that digests keep, because digests identify programs in logs."""

STRUCTURES: Registry[Structure] = Registry(
    "structure", {"GraphFunc": "tunesmith.graph.ir.structural:STRUCTURE"}, contract=instance_of(Structure)
)
"""Structures by class name of the function."""


def digest(a: PrimFunc | IRModule | Node) -> str:
    """32 hexadecimal digits that depend only on what `equal` compares.

    Digests are the same in every process and on every machine; equal programs have equal digests.
    """
    return _hash(_FORMAT + Writer().program(a))


_FORMAT = "tunesmith.structural.1\n"
"""Format version, part of every digest and hence of every stored record: change it whenever the digest text changes."""
_LONG = 200
"""Length limit in characters; a longer expression text is replaced by its hash, because text repeats shared subexpressions."""


def _hash(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def literal(x: object) -> str:
    """Text of a literal: distinguishes signed zeros and infinities; all NaNs are the same."""
    return x.hex() if isinstance(x, float) else str(int(x)) if isinstance(x, int) else repr(x)


class Writer:
    """Writer of the digest text, in which binders are numbers in program order: first `bind` a variable, then call `value` on its uses.

    Fields with their default value are omitted, so that adding a field with a default changes no digest.
    """

    __slots__ = ("bound", "buffers", "free", "known", "names", "params", "polys")

    def __init__(self) -> None:
        self.bound = 0
        self.names: dict[Atom, str] = {}
        self.buffers: dict[Buffer, str] = {}
        self.params: dict[Param, str] = {}
        self.polys: dict[Poly, str] = {}
        self.known: dict[int, str] = {}
        """Texts of the expressions of the current statement, by identity."""
        self.free: set[Atom] = set()

    def program(self, a: Any) -> str:
        if isinstance(a, IRModule):
            return "".join([f"module {name!r} {Writer().program(a[name])}" for name in sorted(a)])
        if type(a) is PrimFunc:
            return self._function(a)
        if isinstance(a, Node):
            return self.value(a)
        if type(a).__name__ in STRUCTURES:
            return STRUCTURES.get(type(a).__name__).digest(a)
        raise InternalError(f"no digest is defined for {type(a).__name__}")

    def _function(self, f: PrimFunc) -> str:
        for p in f.params:
            if not isinstance(p, Buffer):
                self.bind(p)
        params = "".join([self._bind_buffer(p) if isinstance(p, Buffer) else "index " for p in f.params])
        allocs = "".join([self._bind_buffer(b) for b in f.allocs])
        return f"function({params})({allocs}){self.value(f.attrs)}{_unusual_constants(f)}{self.value(f.body)}"

    # binders

    def bind(self, v: Var) -> None:
        """Assign the next number to a variable."""
        if v in self.names or v in self.free:
            self.polys.clear()
        self.known.clear()
        self.names[v] = f"v{self.bound}"
        self.bound += 1

    def _bind_buffer(self, b: Buffer) -> str:
        pad = "" if b.pad == 0 else f"+{self._poly(b.pad)}"
        pad += "".join([f"@{a.axis},{self._poly(a.factor)},{self._poly(a.offset)}" for a in b.align])
        text = f"{b.dtype} {b.scope}[{','.join([self._poly(s) for s in b.shape])}]{pad};"
        self.known.clear()
        self.buffers[b] = f"b{len(self.buffers)}"
        return text

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

    def value(self, x: Any) -> str:
        """The text of a node, an index expression, a str, a number, None, or a tuple of those."""
        handler = self._HANDLERS.get(type(x))
        if handler is not None:
            return handler(self, x)
        if isinstance(x, Expr):
            return self._expr(x)
        if isinstance(x, Node):
            return self._node(x)
        if isinstance(x, Var):
            return self._atom(x)
        if isinstance(x, str):
            return repr(x)
        if x is None or isinstance(x, (int, float)):
            return f"{type(x).__name__}:{literal(x)}"
        raise InternalError(f"no digest is defined for {type(x).__name__}")

    def _expr(self, x: Expr) -> str:
        text = self.known.get(id(x))
        if text is None:
            text = self._node(x)
            text = self.known[id(x)] = text if len(text) <= _LONG else "#" + _hash(text)
        return text

    def _node(self, x: Node) -> str:
        parts = []
        for name, default in _plan(type(x)):
            value = getattr(x, name)
            if value is not default and not (type(value) is type(default) and value == default):
                parts.append(f"{name}={self.value(value)},")
        kind = type(x).__name__
        return f"{_DIGEST_NAMES.get(kind, kind)}({''.join(parts)})"

    def _tuple(self, xs: tuple[Any, ...]) -> str:
        return f"({''.join([self.value(x) + ',' for x in xs])})"

    def _for(self, x: For) -> str:
        head = f"for {self._poly(x.extent)} {x.kind} {x.thread} {self._tuple(x.annotations) if x.annotations else ''}"
        self.bind(x.var)
        return head + self.value(x.body)

    def _indirect_index(self, x: IndirectIndex | BindIndex) -> str:
        head = f"lookup {self._poly(x.extent)} {self.value(x.value)}"
        self.bind(x.var)
        return f"({head} in {self.value(x.body)})"

    def _block(self, x: Block) -> str:
        bindings = ",".join([self._poly(p) for p in x.bindings])
        predicate = ",".join([self._poly(p) for p in x.predicate])
        iters = ",".join([i.kind + self._poly(i.extent) for i in x.iters])
        for i in x.iters:
            self.bind(i.var)
        notes = self._tuple(x.annotations) if x.annotations else ""
        init = "" if x.init is None else "init " + self.value(x.init)
        return f"block {x.name!r}[{bindings}][{predicate}][{iters}]{notes}{init}body {self.value(x.body)}"

    def _allocate(self, x: Allocate) -> str:
        return f"allocate {self._bind_buffer(x.buffer)}{self.value(x.body)}"

    def _buffer(self, x: Buffer) -> str:
        name = self.buffers.get(x)
        return name if name is not None else f"free {x.name!r} {x.dtype} {x.scope} {len(x.shape)}"

    def _index(self, x: Poly) -> str:
        return f"<{self._poly(x)}>"

    def _const(self, x: Const) -> str:
        return f"{x.dtype}:{literal(x.value)}"

    _HANDLERS: Mapping[type, Callable[[Any, Any], str]] = {
        Poly: _index,
        tuple: _tuple,
        For: _for,
        Block: _block,
        Allocate: _allocate,
        Buffer: _buffer,
        Const: _const,
        IndirectIndex: _indirect_index,
        BindIndex: _indirect_index,
    }


def constant_positions(f: PrimFunc) -> tuple[int, ...]:
    """Positions of the constant parameters; the attribute `constants` has their names, which are not structural."""
    names = f.constants
    return tuple([i for i, p in enumerate(f.params) if p.name in names]) if names else ()


def _unusual_constants(f: PrimFunc) -> str:
    """Text of the positions of constant parameters; empty if they directly follow the first parameter, as in digests of older versions."""
    found = constant_positions(f)
    return "" if found == tuple(range(1, len(found) + 1)) else f"constants {','.join(map(str, found))} "


_NO_DEFAULT = object()
_plans: dict[type, tuple[tuple[str, object], ...]] = {}


def _plan(kind: type[Node]) -> tuple[tuple[str, object], ...]:
    """The fields of a node type with their defaults."""
    plan = _plans.get(kind)
    if plan is None:
        defaults: tuple[object, ...] = getattr(kind.__init__, "__defaults__", None) or ()
        values = (_NO_DEFAULT,) * (len(kind.fields) - len(defaults)) + defaults
        plan = _plans[kind] = tuple(zip(kind.fields, values, strict=True))
    return plan
