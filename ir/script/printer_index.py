"""Print index polynomials in natural notation, with terms in an order that depends on the program only.

Terms are ordered by the position of binders in the program (outer loops first, then symbolic sizes and Params), not by `Atom.key`, which
follows the creation order of variables.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.poly import Atom, Monomial, Op, Poly, Var
from tunesmith.ir.script.naming import Names, identifier

# Precedence levels of Python expressions, loosest first.
OR, AND, NOT, COMPARE, BITOR, BITXOR, BITAND, SHIFT, SUM, PRODUCT, ATOM = range(1, 12)

Text = tuple[str, int]
"""Text and the precedence of its outermost operator."""

Term = tuple[tuple[Atom, ...], int]

_INFIX = {"floordiv": "//", "mod": "%"}
_LAST = (9,)
"""Sorts after every atom key: in `i * n + i + 1` the longer monomial is first and the constant last."""


def parens(text: Text, least: int) -> str:
    """The text, in parentheses if its operator binds looser than `least`."""
    return text[0] if text[1] >= least else f"({text[0]})"


class IndexPrinter:
    """Printer of polynomials, with the name and the position of each variable."""

    def __init__(self) -> None:
        self.names = Names()
        self._rank: dict[Var, tuple[int, int]] = {}
        self._bound = 0
        self._atom_keys: dict[Atom, tuple[Any, ...]] = {}
        self._texts: dict[Poly, Text] = {}

    def bind_var(self, var: Var, *, size: bool = False) -> str:
        """Assign a name to `var`, bound at this point of the program; `size` marks a symbolic size or Param."""
        if var in self._rank:  # malformed program that binds a variable twice: keep the latest name
            self._texts.clear()
            self._atom_keys.clear()
        self._bound += 1
        self._rank[var] = (1 if size else 0, self._bound)
        return self.names.bind(var)

    def var(self, v: Var) -> str:
        """The assigned name of `v`; its own name if it is not bound."""
        return self.names.name.get(v) or identifier(v.name)

    # ---- structural order ------------------------------------------------------------------------------------------

    def _atom_key(self, a: Atom) -> tuple[Any, ...]:
        if isinstance(a, Var):
            rank = self._rank.get(a)
            return (2, 0, 0, a.name, a.key) if rank is None else (*rank, 0)
        key = self._atom_keys.get(a)
        if key is None:
            assert type(a) is Op
            args = [self._poly_key(x) for x in a.args]
            if a.op in ("min", "max"):
                args.sort()
            first = min((self._rank.get(v, (2, 0)) for v in a.vars), default=(3, 0))
            key = self._atom_keys[a] = (*first, 1, a.op, args)
        return key

    def _poly_key(self, p: Poly) -> list[Any]:
        return sorted([(self._monomial_key(m), c) for m, c in p.terms])

    def _monomial_key(self, m: Monomial) -> tuple[Any, ...]:
        if len(m) == 1:
            return (self._atom_key(m[0]), _LAST)
        return (*sorted([self._atom_key(a) for a in m]), _LAST)

    def _ordered(self, p: Poly) -> list[Term]:
        """The terms in printing order, with a positive term first if there is one."""
        if len(p.terms) == 1:
            m, c = p.terms[0]
            return [(tuple(sorted(m, key=self._atom_key)) if len(m) > 1 else m, c)]
        terms = [(tuple(sorted(m, key=self._atom_key)), c) for m, c in sorted(p.terms, key=lambda t: self._monomial_key(t[0]))]
        if terms and terms[0][1] < 0:
            lead = next((i for i, t in enumerate(terms) if t[1] > 0), 0)
            terms.insert(0, terms.pop(lead))
        return terms

    # ---- text ------------------------------------------------------------------------------------------------------

    def index(self, p: Poly) -> str:
        """`p` in an index position: numbers are printed bare."""
        return self.poly(p)[0]

    def poly(self, p: Poly) -> Text:
        """The text of `p` with its precedence."""
        done = self._texts.get(p)
        if done is None:
            terms = p.terms
            if not terms:
                done = ("0", ATOM)
            elif len(terms) == 1 and terms[0][1] > 0:
                done = self._product(*self._ordered(p)[0])
            else:
                done = (self._sum(self._ordered(p)), SUM)
            self._texts[p] = done
        return done

    def _sum(self, terms: list[Term]) -> str:
        out = ""
        for atoms, c in terms:
            if out:
                out += (" - " if c < 0 else " + ") + self._product(atoms, abs(c))[0]
            elif c < 0:
                out = "-" + self._product(atoms, -c, ATOM)[0]  # `-i // 8` would be `(-i) // 8`
            else:
                out = self._product(atoms, c)[0]
        return out or "0"

    def _product(self, atoms: tuple[Atom, ...], c: int, first: int = PRODUCT) -> Text:
        if len(atoms) == 1 and c == 1 and first == PRODUCT:
            return self._atom(atoms[0])
        parts = [parens(self._atom(a), ATOM if i else first) for i, a in enumerate(atoms)]
        if c != 1 or not parts:
            parts.append(str(c))
        return (" * ".join(parts), PRODUCT if len(parts) > 1 else ATOM)

    def _atom(self, a: Atom) -> Text:
        if isinstance(a, Var):
            return (self.var(a), ATOM)
        assert type(a) is Op
        sign = _INFIX.get(a.op)
        if sign is not None:
            return (f"{parens(self.poly(a.args[0]), PRODUCT)} {sign} {parens(self.poly(a.args[1]), ATOM)}", PRODUCT)
        args = sorted(a.args, key=self._poly_key) if a.op in ("min", "max") else a.args
        return (f"T.{a.op}({', '.join([self.index(x) for x in args])})", ATOM)

    def negative(self, p: Poly) -> str:
        """The condition `p < 0`, with negative terms moved to the right: `i * 8 + j < n`, `0 <= i`."""
        terms = self._ordered(p)
        left = [t for t in terms if t[1] > 0]
        right = [(m, -c) for m, c in terms if c < 0]
        if len(right) > 1 and right[-1] == ((), 1):
            return f"{self._sum(left)} <= {self._sum(right[:-1])}"
        return f"{self._sum(left)} < {self._sum(right)}"

    def zero(self, p: Poly) -> tuple[str, str]:
        """The two sides of the condition `p == 0`."""
        terms = self._ordered(p)
        return self._sum([t for t in terms if t[1] > 0]), self._sum([(m, -c) for m, c in terms if c < 0])
