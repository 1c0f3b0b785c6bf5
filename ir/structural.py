"""Compare programs up to alpha-renaming of their binders, and locate the first difference.

Loop variables, block iteration variables, scalar parameters and buffers are matched pairwise at their binders, so neither their names nor
their creation order matters.  Free variables and buffers are equal only if they are the same object; Params are equal if they have the same
name and domain.

Each binder must be bound once in a program (`verify` checks it).  Equal programs have equal keys (`digest`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Const
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.node import Node
from tunesmith.ir.poly import Atom, Monomial, Op, Param, Poly, Var, poly, substitute
from tunesmith.ir.stmt import Allocate, BindIndex, Block, BufferStore, For, Seq
from tunesmith.ir.structural_digest import STRUCTURES, constant_positions, digest, literal

__all__ = ["difference", "digest", "equal"]

Program = PrimFunc | IRModule | Node


def equal(a: Program, b: Program) -> bool:
    """Whether `a` and `b` are the same program up to the names of loops, iteration variables, buffers and the function."""
    return _first(a, b) is None


def difference(a: Program, b: Program) -> str | None:
    """The first difference of `a` and `b`, in the names of `a`; None if they are equal.

    It starts with a path of loops, blocks and fields, as in `/i_0/j_0/C.bindings[1]: 8*i_0 + i_1 != 1 + 8*i_0 + i_1`.
    """
    found = _first(a, b)
    if found is None:
        return None
    match, d = found
    if d.words is not None:
        return "".join(reversed(d.path)) + d.words
    left, right = _brief(d.left), _brief(match.in_names_of_a(d.right))
    if left == right:
        left, right = left + _domains(d.left), right + _domains(d.right)
    return f"{''.join(reversed(d.path)) or '/'}: {left} != {right}"


def _first(a: Program, b: Program) -> tuple[_BinderMatch, _Difference] | None:
    """The first difference, and the variables matched up to it."""
    match = _BinderMatch()
    if isinstance(a, IRModule) and isinstance(b, IRModule):
        if sorted(a) != sorted(b):
            return match, _Difference(sorted(a), sorted(b), ".functions")
        for name in sorted(a):
            found = _first(a[name], b[name])
            if found is not None:
                found[1].path.append(f"/{name}")
                return found
        return None
    kind = type(a).__name__
    if not isinstance(a, (PrimFunc, Node)) and type(a) is type(b) and kind in STRUCTURES:
        words = STRUCTURES.get(kind).difference(a, b)
        return None if words is None else (match, _Difference(a, b, words=words))
    try:
        match.compare(a, b)
    except _Difference as d:
        return match, d
    return None


class _Difference(Exception):
    """The first difference.  Its path is collected while the exception propagates, innermost segment first; `words` is a complete text."""

    def __init__(self, left: object, right: object, *path: str, words: str | None = None) -> None:
        super().__init__()
        self.left, self.right, self.path, self.words = left, right, list(path), words


class _Text(str):
    """A description, shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _count(xs: Sequence[object], ys: Sequence[object], what: str, *path: str) -> _Difference:
    return _Difference(_Text(f"{len(xs)} {what}"), _Text(f"{len(ys)} {what}"), *path)


class _BinderMatch:
    """State of a comparison: the binders matched so far, in both directions.

    `moved` holds the variables matched with a different variable.  A polynomial shared by both sides is equal to itself if it contains none
    of them, which is the usual case.
    """

    __slots__ = ("back", "buffer_back", "buffers", "moved", "same", "vars")

    def __init__(self) -> None:
        self.vars: dict[Atom, Atom] = {}
        self.back: dict[Atom, Atom] = {}
        self.moved: set[Atom] = set()
        self.buffers: dict[Buffer, Buffer] = {}
        self.buffer_back: dict[Buffer, Buffer] = {}
        self.same: set[tuple[int, int]] = set()
        """Pairs of expressions already found equal in this statement, by identity: expressions share parts."""

    def compare(self, a: Any, b: Any) -> None:
        if type(a) is PrimFunc and type(b) is PrimFunc:
            self._function(a, b)
        elif isinstance(a, Node) and isinstance(b, Node):
            self._value(a, b)
        elif a is not b:
            raise _Difference(a, b)

    def in_names_of_a(self, y: object) -> object:
        """An expression or buffer of the second program in the names of the first, for messages."""
        if isinstance(y, Buffer):
            return self.buffer_back.get(y, y)
        if not isinstance(y, Poly):
            return y
        return substitute(y, {v: poly(w) for v in y.vars if isinstance(w := self.back.get(v), Var)})

    # binders

    def _bind(self, x: Var, y: Var) -> None:
        old = self.vars.pop(x, None)
        if old is not None:
            self.back.pop(old, None)
        old = self.back.pop(y, None)
        if old is not None:
            self.vars.pop(old, None)
        self.same.clear()
        self.vars[x] = y
        self.back[y] = x
        if x is y:
            self.moved.discard(x)
        else:
            self.moved.add(x)
            self.moved.add(y)

    def _bind_buffer(self, x: Buffer, y: Buffer, place: str) -> None:
        if x.dtype != y.dtype or x.scope != y.scope:
            raise _Difference(_Text(f"{x!r} in {x.scope}"), _Text(f"{y!r} in {y.scope}"), place)
        self._polys(x.sizes, y.sizes, place + ".shape")
        self.same.clear()
        self.buffers[x] = y
        self.buffer_back[y] = x

    def _var(self, x: Atom, y: Atom) -> bool:
        """Whether two unmatched variables are the same: the same free variable, or equal Params."""
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
            raise _Difference(x, y, ".buffer")

    # index expressions

    def _polys(self, xs: tuple[Poly, ...], ys: tuple[Poly, ...], place: str) -> None:
        if len(xs) != len(ys):
            raise _count(xs, ys, "expressions", place)
        moved = self.moved
        for i, x in enumerate(xs):
            y = ys[i]
            if not ((x is y and x.vars.isdisjoint(moved)) or self._same_terms(x.terms, y.terms) or self._same_sum(x.terms, y.terms)):
                raise _Difference(x, y, f"{place}[{i}]")

    def _poly(self, x: Poly, y: Poly, *place: str) -> None:
        if not ((x is y and x.vars.isdisjoint(self.moved)) or self._same_terms(x.terms, y.terms) or self._same_sum(x.terms, y.terms)):
            raise _Difference(x, y, *place)

    def _same_terms(self, xs: tuple[tuple[Monomial, int], ...], ys: tuple[tuple[Monomial, int], ...]) -> bool:
        """Fast equality of terms in the same order.  A True is exact; on False, `_same_sum` compares terms in any order."""
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

    def _same_sum(self, xs: tuple[tuple[Monomial, int], ...], ys: tuple[tuple[Monomial, int], ...]) -> bool:
        """Equality up to the order of terms, factors and arguments of min and max, which follows the creation order of variables.

        No expressions are constructed, because a constructor could normalize them.
        """
        return len(xs) == len(ys) and _pair_off(xs, ys, lambda s, t: s[1] == t[1] and self._same_product(s[0], t[0]))

    def _same_product(self, m: Monomial, n: Monomial) -> bool:
        return len(m) == len(n) and _pair_off(m, n, self._same_atom)

    def _same_atom(self, a: Atom, b: Atom) -> bool:
        if self.vars.get(a) is b:
            return True
        if type(a) is not Op:
            return self._var(a, b)
        if type(b) is not Op or a.op != b.op or len(a.args) != len(b.args):
            return False
        if a.op in ("min", "max"):
            return _pair_off(a.args, b.args, lambda x, y: self._same_sum(x.terms, y.terms))
        return all(self._same_sum(x.terms, y.terms) for x, y in zip(a.args, b.args, strict=True))

    # programs

    def _indirect_index(self, x: IndirectIndex | BindIndex, y: IndirectIndex | BindIndex) -> None:
        self._field(x, y, "extent")
        self._field(x, y, "value")
        self._bind(x.var, y.var)
        self._field(x, y, "body")

    def _function(self, a: PrimFunc, b: PrimFunc) -> None:
        if [type(p) for p in a.params] != [type(p) for p in b.params]:
            raise _Difference(a.params, b.params, ".params")
        for x, y in zip(a.params, b.params, strict=True):
            if not isinstance(x, Buffer):
                self._bind(x, y)  # type: ignore[arg-type]
        for i, (x, y) in enumerate(zip(a.params, b.params, strict=True)):
            if isinstance(x, Buffer):
                self._bind_buffer(x, y, f".params[{i}]")  # type: ignore[arg-type]
        if len(a.allocs) != len(b.allocs):
            raise _count(a.allocs, b.allocs, "buffers", ".allocs")
        for i, (p, q) in enumerate(zip(a.allocs, b.allocs, strict=True)):
            self._bind_buffer(p, q, f".allocs[{i}]")
        self._field(a, b, "attrs")
        left, right = constant_positions(a), constant_positions(b)
        if left != right:
            raise _Difference(_Text(f"constant parameters {left}"), _Text(f"constant parameters {right}"), ".attrs")
        self._value(a.body, b.body)

    def _value(self, x: Any, y: Any) -> None:
        t = type(x)
        if t is not type(y):
            raise _Difference(_Text(_brief(x)), _Text(_brief(y)))
        handler = self._HANDLERS.get(t)
        if handler is not None:
            handler(self, x, y)
        elif isinstance(x, Node):
            self._node(x, y)
        elif isinstance(x, Var):
            if self.vars.get(x) is not y and not self._var(x, y):
                raise _Difference(x, y)
        elif x != y:
            raise _Difference(x, y)

    def _node(self, x: Node, y: Node) -> None:
        pair = (id(x), id(y))
        if pair not in self.same:
            for name in x.fields:
                self._field(x, y, name)
            self.same.add(pair)

    def _field(self, x: Any, y: Any, name: str) -> None:
        try:
            self._value(getattr(x, name), getattr(y, name))
        except _Difference as d:
            d.path.append(f".{name}")
            raise

    def _tuple(self, xs: tuple[Any, ...], ys: tuple[Any, ...]) -> None:
        if len(xs) != len(ys):
            raise _count(xs, ys, "items")
        for i, x in enumerate(xs):
            try:
                self._value(x, ys[i])
            except _Difference as d:
                d.path.append(f"[{i}]")
                raise

    def _for(self, x: For, y: For) -> None:
        try:
            self._poly(x.extent, y.extent, ".extent")
            if x.kind != y.kind or x.thread != y.thread:
                raise _Difference(x.thread or x.kind, y.thread or y.kind, ".kind")
            if x.annotations or y.annotations:
                self._field(x, y, "annotations")
            self._bind(x.var, y.var)
            self._value(x.body, y.body)
        except _Difference as d:
            d.path.append(f"/{x.var.name}")
            raise

    def _block(self, x: Block, y: Block) -> None:
        try:
            if x.name != y.name:
                raise _Difference(x.name, y.name, ".name")
            self._polys(x.bindings, y.bindings, ".bindings")
            self._polys(x.predicate, y.predicate, ".predicate")
            if [i.kind for i in x.iters] != [i.kind for i in y.iters]:
                raise _Difference("".join([i.kind for i in x.iters]), "".join([i.kind for i in y.iters]), ".iters")
            self._polys(tuple([i.extent for i in x.iters]), tuple([i.extent for i in y.iters]), ".extents")
            for i, j in zip(x.iters, y.iters, strict=True):
                self._bind(i.var, j.var)
            if x.annotations or y.annotations:
                self._field(x, y, "annotations")
            if x.init is not None or y.init is not None:
                self._field(x, y, "init")
            self._value(x.body, y.body)
        except _Difference as d:
            d.path.append(f"/{x.name}")
            raise

    def _allocate(self, x: Allocate, y: Allocate) -> None:
        self._bind_buffer(x.buffer, y.buffer, ".buffer")
        self._value(x.body, y.body)

    def _seq(self, x: Seq, y: Seq) -> None:
        if len(x.stmts) != len(y.stmts):
            raise _count(x.stmts, y.stmts, "statements")
        for i, s in enumerate(x.stmts):
            try:
                self._value(s, y.stmts[i])
            except _Difference as d:
                d.path.append(f"/[{i}]")
                raise

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
            raise _Difference(x.lanes, y.lanes, ".lanes")
        if x.stride is not y.stride:
            self._field(x, y, "stride")
        if x.mask is not y.mask:
            self._field(x, y, "mask")

    def _binary(self, x: Binary, y: Binary) -> None:
        pair = (id(x), id(y))
        if pair in self.same:
            return
        if x.op != y.op:
            raise _Difference(x.op, y.op, ".op")
        self._field(x, y, "a")
        self._field(x, y, "b")
        self.same.add(pair)

    def _const(self, x: Const, y: Const) -> None:
        if x is not y and (x.dtype != y.dtype or literal(x.value) != literal(y.value)):
            raise _Difference(_Text(f"{x.value} of {x.dtype}"), _Text(f"{y.value} of {y.dtype}"))

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
        IndirectIndex: _indirect_index,
        BindIndex: _indirect_index,
    }


def _pair_off(xs: Sequence[Any], ys: Sequence[Any], same: Callable[[Any, Any], bool]) -> bool:
    """Whether `xs` and `ys` match one to one under `same`, an equivalence, so that greedy matching is exact."""
    rest = list(ys)
    for x in xs:
        i = next((i for i, y in enumerate(rest) if same(x, y)), None)
        if i is None:
            return False
        del rest[i]
    return True


def _domains(x: object) -> str:
    """The domains of the Params of an expression, to tell apart two expressions with the same text."""
    params = sorted([v for v in x.vars if isinstance(v, Param)], key=lambda v: v.key) if isinstance(x, Poly) else []
    text = ", ".join([f"{v} one of {len(v.domain)} values up to {v.domain[-1]}" for v in params])
    return f" with {text}" if text else ""


def _brief(x: object) -> str:
    if isinstance(x, Node) and not isinstance(x, Poly):
        name = getattr(x, "name", None)
        return f"{type(x).__name__} {name}" if isinstance(name, str) else type(x).__name__
    return repr(x)
