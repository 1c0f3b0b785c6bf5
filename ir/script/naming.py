"""Assign names in printed programs: valid identifiers, unique within their scope, determined by the program only."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.stmt import Allocate, Annotations, BindIndex, Block, BufferStore, For

MAX_NAME = 256
"""Maximum length of a name in the parser."""

_RESERVED = frozenset({"T", "range"})


def identifier(name: str) -> str:
    """The nearest Python identifier to `name`."""
    # ASCII only: Python normalizes other identifiers (NFKC), which can merge two names.
    word = re.sub(r"\W", "_", name[: MAX_NAME // 2], flags=re.ASCII) or "_"
    if word[0].isdigit():
        word = "_" + word
    return word + "_" if keyword.iskeyword(word) or word in _RESERVED else word


class Names:
    """The names in use at a point of a program."""

    def __init__(self) -> None:
        self.name: dict[Any, str] = {}
        self._used: set[str] = set()

    def bind(self, thing: Var | Buffer) -> str:
        """Assign a name to a variable or buffer: its own, with _1, _2, ... appended if that is taken."""
        base = word = identifier(thing.name)
        n = 0
        while word in self._used:
            n += 1
            word = f"{base}_{n}"
        self._used.add(word)
        self.name[thing] = word
        return word

    def release(self, things: Iterable[Var | Buffer]) -> None:
        """End a scope, so that later binders may reuse the names.  Uses outside of the scope still print with the old name."""
        for t in things:
            self._used.discard(self.name[t])


def free_names(root: Any, declared: Iterable[Var | Buffer], first: Iterable[Poly]) -> tuple[list[Var], list[Buffer]]:
    """The free variables (symbolic sizes, Params) and free buffers of a program, in order of first use.

    Args:
        root: statement or expression.
        declared: variables and buffers bound outside `root`.
        first: index expressions that precede `root`, such as shapes of parameters.

    Variables whose first use is in the same index expression are ordered by name, then by their cofactors, so that the order does not
    depend on the creation order.
    """
    seen: set[Any] = set(declared)
    free: list[Var] = []
    buffers: list[Buffer] = []

    def index(p: Poly) -> None:
        new = p.vars - seen
        if new:
            order = list(new) if len(new) == 1 else sorted(new, key=lambda v: (v.name, _company(p, v, seen), v.key))
            free.extend(order)
            seen.update(new)

    def notes(annotations: Annotations) -> None:
        for _, v in annotations:
            if isinstance(v, Poly):
                index(v)

    def use(b: Buffer) -> None:
        if b not in seen:
            seen.add(b)
            buffers.append(b)

    def visit(n: Any) -> None:
        t = type(n)
        if t is Poly:
            index(n)
            return
        if t is For:
            index(n.extent)
            seen.add(n.var)
            notes(n.annotations)
        elif t is Block:
            for p in (*n.bindings, *n.predicate, *[i.extent for i in n.iters]):
                index(p)
            seen.update([i.var for i in n.iters])
            notes(n.annotations)
        elif t is IndirectIndex or t is BindIndex:
            seen.add(n.var)
        elif t is BufferLoad or t is BufferStore:
            use(n.buffer)
        elif t is Allocate:
            for p in n.buffer.sizes:
                index(p)
            seen.add(n.buffer)
        n.each_child(visit)

    for p in first:
        index(p)
    visit(root)
    return free, buffers


def _company(p: Poly, v: Var, seen: set[Any]) -> list[Any]:
    """The cofactors of `v` in the terms of `p`: coefficients and names, sorted."""
    terms = [(c, m) for m, c in p.terms if any(v in a.vars for a in m)]
    return sorted((c, len(m), sorted((w in seen, w.name) for a in m for w in a.vars if w is not v)) for c, m in terms)
