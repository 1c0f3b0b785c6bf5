"""Normalize index arithmetic: polynomials over loop variables and Params, with atoms floordiv, mod, ceildiv, min, max.

Scheduling primitives may use no other arithmetic.  The constructors are *context free*: they depend on their arguments only, never on loop
ranges, and they commute with substitution,

    substitute(make(a, b), s) == make(substitute(a, s), substitute(b, s)),

so that the same code schedules concrete and parametric programs (docs/design/001-parametric.md).  A rule that holds for all values may
still break this law; tests/fuzz/test_poly.py compares both orders for every rule.

A `Poly` is a value, like an int: equal normal forms compare equal and hash equal; they are not interned.  The normal form assumes variables
>= 0, Params >= 1 and divisors >= 1, so `(d*i) // d` is `i`.  A division that remains in a normal form is total (`quotient`, `remainder`,
`ceiling`): code may evaluate it before the guard that excludes a divisor of 0.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Union, final

from tunesmith.ir.expr import COMPARISONS, Binary, Const, Expr, IsNegative, Not, Symbolic, index_operation
from tunesmith.support import dtype as dt
from tunesmith.support.dtype import INDEX
from tunesmith.support.errors import InternalError, ScriptError

_serial = itertools.count()

Index = Union["Poly", "Var", int]
Monomial = tuple["Atom", ...]
"""Sorted by `Atom.key`, an atom repeated for each power; () is the constant monomial."""


class _Atom(Symbolic):
    """A factor of a monomial."""

    __slots__ = ("key", "vars")
    key: tuple[Any, ...]
    vars: frozenset[Var]

    def as_expr(self) -> Poly:
        """The polynomial of this atom alone."""
        return Poly((((self,), 1),))  # type: ignore[arg-type]  # Var and Op are the only atoms


class Var(_Atom):
    """A loop or block iteration variable.  Variables are compared by identity; names are for readers."""

    __slots__ = ("__weakref__", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.key = (0, next(_serial))
        self.vars = frozenset((self,))

    def __getstate__(self) -> dict[str, Any]:
        slots = [n for k in type(self).__mro__ for n in getattr(k, "__slots__", ()) if n not in ("__weakref__", "vars")]
        return {n: getattr(self, n) for n in slots if hasattr(self, n)} | getattr(self, "__dict__", {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A variable of a copied or unpickled program is a new one.

        It keeps its place among those that came with it, and has a number of its own, because this process may have given the first one
        to another variable.
        """
        for name, value in state.items():
            setattr(self, name, value)
        self.key = (0, state["key"][1], next(_serial))
        self.vars = frozenset((self,))

    def __repr__(self) -> str:
        return self.name


class Param(Var):
    """A tunable integer with a finite, sorted domain of values >= 0.  `concretize` replaces it by one of them."""

    __slots__ = ("domain",)

    def __init__(self, name: str, domain: Iterable[int]) -> None:
        super().__init__(name)
        self.domain = tuple(sorted(set(int(d) for d in domain)))
        if not self.domain or self.domain[0] < 0:
            raise ScriptError(f"Param {name}: its domain must hold at least one value, all >= 0, got {self.domain}")


@final
class Op(_Atom):
    """floordiv, mod, ceildiv (two arguments), min or max (two or more) of polynomials.  Created only by the constructors below."""

    __slots__ = ("_hash", "args", "op")

    def __init__(self, op: str, args: tuple[Poly, ...]) -> None:
        self.op, self.args = op, args
        self.key = (1, op, tuple([a.key for a in args]))
        self.vars = frozenset().union(*[a.vars for a in args])
        self._hash = hash((op, args))

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is Op and self._hash == other._hash and self.op == other.op and self.args == other.args)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled_op, (self.op, self.args)

    def __repr__(self) -> str:
        return f"{self.op}({', '.join(map(repr, self.args))})"


Atom = Var | Op
"""A factor of a monomial: a Var, a Param, or an Op over polynomials."""


def _mono_key(term: tuple[Monomial, int]) -> list[tuple[Any, ...]]:
    m = term[0]
    return [m[0].key] if len(m) == 1 else [a.key for a in m]


class Poly(Expr):
    """A polynomial: `terms` is a tuple of (monomial, nonzero coefficient), sorted; equality is equality of normal forms."""

    __slots__ = ("_hash", "terms", "vars")
    terms: tuple[tuple[Monomial, int], ...]
    vars: frozenset[Var]
    """All Vars and Params, including those inside Ops."""
    dtype = INDEX
    fields = ("terms",)

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)
        if len(terms) == 1:
            m = terms[0][0]
            self.vars = m[0].vars if len(m) == 1 else frozenset().union(*[a.vars for a in m])
        else:
            self.vars = frozenset().union(*[a.vars for m, _ in terms for a in m])

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, int):
            return self.const == other
        return isinstance(other, Poly) and self._hash == other._hash and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        c = self.const
        return (_unpickled, (self.terms,)) if c is None else (poly, (c,))

    @property
    def const(self) -> int | None:
        """The value if it is a number, else None.  Scheduling primitives must not use it (a lint forbids it in schedule/primitives)."""
        t = self.terms
        if not t:
            return 0
        if len(t) == 1 and not t[0][0]:
            return t[0][1]
        return None

    @property
    def key(self) -> tuple[Any, ...]:
        """Sort key of a total order, by structure and the serial numbers of variables."""
        return tuple([(tuple([a.key for a in m]), c) for m, c in self.terms])

    def as_int(self) -> int:
        """The value; InternalError if symbolic.  For lowering and code generation, where programs are concrete."""
        c = self.const
        if c is None:
            raise InternalError(f"a number was needed, got the symbolic expression {self!r}")
        return c

    def as_atom(self) -> Atom | None:
        """The atom if the polynomial is exactly one atom, else None."""
        t = self.terms
        return t[0][0][0] if len(t) == 1 and t[0][1] == 1 and len(t[0][0]) == 1 else None

    def as_var(self) -> Var | None:
        """The variable if the polynomial is exactly one variable, else None."""
        a = self.as_atom()
        return a if isinstance(a, Var) else None

    def map_children(self, f: Callable[[Any], Any]) -> Poly:
        return self

    def each_child(self, f: Callable[[Any], Any]) -> None:
        return None

    def __repr__(self) -> str:
        out = []
        for m, c in self.terms:
            fs = [repr(a) for a in m]
            if c != 1 or not fs:
                fs.insert(0, str(c))
            out.append("*".join(fs))
        return " + ".join(out) or "0"

    def __add__(self, o: Any) -> Any:
        return add(self, poly(o)) if isinstance(o, (Poly, Var, int)) else Expr.__add__(self, o)

    __radd__ = __add__

    def __sub__(self, o: Any) -> Any:
        return add(self, scale(poly(o), -1)) if isinstance(o, (Poly, Var, int)) else Expr.__sub__(self, o)

    def __rsub__(self, o: Any) -> Any:
        return add(poly(o), scale(self, -1)) if isinstance(o, (Poly, Var, int)) else Expr.__rsub__(self, o)

    def __mul__(self, o: Any) -> Any:
        return mul(self, poly(o)) if isinstance(o, (Poly, Var, int)) else Expr.__mul__(self, o)

    __rmul__ = __mul__

    def __floordiv__(self, o: Any) -> Any:
        return floordiv(self, o) if isinstance(o, (Poly, Var, int)) else Expr.__floordiv__(self, o)

    def __mod__(self, o: Any) -> Any:
        return mod(self, o) if isinstance(o, (Poly, Var, int)) else Expr.__mod__(self, o)

    def __neg__(self) -> Any:
        return scale(self, -1)


def from_terms(d: Mapping[Monomial, int]) -> Poly:
    """The polynomial with the given coefficients by monomial."""
    items = [(m, c) for m, c in d.items() if c]
    if len(items) > 1:
        items.sort(key=_mono_key)
    return Poly(tuple(items))


def _unpickled(terms: tuple[tuple[Monomial, int], ...]) -> Poly:
    """The polynomial of pickled terms, whose variables have other hashes and keys here: monomials and their factors are sorted again."""
    return from_terms({tuple(sorted(m, key=_atom_key)): c for m, c in terms})


def _unpickled_op(op: str, args: tuple[Poly, ...]) -> Op:
    """As `_unpickled`: the arguments of min and max are sorted."""
    return Op(op, tuple(sorted(args, key=lambda p: p.key)) if op in ("min", "max") else args)


ZERO = Poly(())
ONE = Poly((((), 1),))
_SMALL = {0: ZERO, 1: ONE, **{i: Poly((((), i),)) for i in (*range(-64, 0), *range(2, 257))}}


def poly(x: Index | Op) -> Poly:
    """`x` as a polynomial; `x` is an int, also one of numpy, a Var, a Param, an Op or a polynomial."""
    if type(x) is Poly:
        return x
    if isinstance(x, Var):
        return Poly((((x,), 1),))
    if isinstance(x, int):
        small = _SMALL.get(x)
        return Poly((((), int(x)),)) if small is None else small
    if isinstance(x, Op):
        return Poly((((x,), 1),))
    try:
        return poly(operator.index(x))  # type: ignore[arg-type]  # an integer of another type, such as numpy's
    except TypeError:
        expected = "an index expression was expected (int, loop variable or arithmetic on them)"
        raise ScriptError(f"{expected}, got {_not_an_index(x)}") from None


def _not_an_index(x: object) -> str:
    """The description of a value that is no index, with its replacement."""
    if isinstance(x, slice):
        return "a slice: write an index for each dimension, and reduce over an axis of reduce_axis"
    if not isinstance(x, Expr):
        return f"{type(x).__name__}: {x!r}"
    if not dt.is_int(x.dtype):
        return f"a value of type {x.dtype}"
    value = "value" if x.dtype == INDEX else f'cast("{INDEX}", value)'
    return (
        f"a value of type {x.dtype}, which is data: an index that is loaded or computed is bound by "
        f"te.lookup({value}, extent, lambda v: x[v]), in scripts T.lookup"
    )


def add(a: Poly, b: Poly) -> Poly:
    """a + b."""
    if not a.terms:
        return b
    if not b.terms:
        return a
    if len(b.terms) == 1 and not b.terms[0][0]:
        return shifted(a, b.terms[0][1])
    d = dict(a.terms)
    for m, c in b.terms:
        d[m] = d.get(m, 0) + c
    return from_terms(d)


def shifted(a: Poly, c: int) -> Poly:
    """a + c.  Fast path for the most common sum: order of terms and variables do not change."""
    t = a.terms
    if not t:
        return poly(c)
    if not t[0][0]:  # the constant monomial sorts first
        c += t[0][1]
        t = t[1:]
    return _of((((), c), *t) if c else t, a.vars)


def _of(terms: tuple[tuple[Monomial, int], ...], variables: frozenset[Var]) -> Poly:
    """The polynomial of sorted `terms` with known variables."""
    out = Poly.__new__(Poly)
    out.terms, out.vars, out._hash = terms, variables, hash(terms)
    return out


def scale(a: Poly, c: int) -> Poly:
    """a * c for an int c."""
    if c == 1:
        return a
    return Poly(tuple([(m, k * c) for m, k in a.terms])) if c else ZERO


def split_constant(p: Poly) -> tuple[Poly, int]:
    """(rest, c) with p = rest + c and no constant term in rest."""
    t = p.terms
    if not t or t[0][0]:  # the constant monomial sorts first
        return p, 0
    return _of(t[1:], p.vars) if len(t) > 1 else ZERO, t[0][1]


def _atom_key(a: Atom) -> tuple[Any, ...]:
    return a.key


def mul(a: Poly, b: Poly) -> Poly:
    """a * b, expanded."""
    ca, cb = a.const, b.const
    if ca is not None:
        return scale(b, ca)
    if cb is not None:
        return scale(a, cb)
    d: dict[Monomial, int] = {}
    for m1, c1 in a.terms:
        for m2, c2 in b.terms:
            m = tuple(sorted(m1 + m2, key=_atom_key)) if m1 and m2 else m1 or m2
            d[m] = d.get(m, 0) + c1 * c2
    return from_terms(d)


def product(xs: Iterable[Index]) -> Poly:
    """The product of `xs`; 1 if empty."""
    out = ONE
    for x in xs:
        out = mul(out, poly(x))
    return out


def _divide_mono(m: Monomial, d: Monomial) -> Monomial | None:
    rest = list(m)
    for a in d:
        if a not in rest:
            return None
        rest.remove(a)
    return tuple(rest)


def divide_terms(x: Poly, d: Poly) -> tuple[Poly, Poly]:
    """(q, r) with x = q*d + r.  All multiples of a one-term d are extracted and the coefficients of r are reduced, so r is unique."""
    if len(d.terms) != 1:
        return (ONE, ZERO) if x == d else (ZERO, x)
    dm, dc = d.terms[0]
    q: dict[Monomial, int] = {}
    r: dict[Monomial, int] = {}
    for m, c in x.terms:
        e = _divide_mono(m, dm) if dm else m
        if e is None:
            r[m] = r.get(m, 0) + c
            continue
        cq, cr = divmod(c, dc)
        if cq:
            q[e] = q.get(e, 0) + cq
        if cr:
            r[m] = r.get(m, 0) + cr
    return from_terms(q), from_terms(r)


def _divisor(d: Index) -> Poly:
    d = poly(d)
    c = d.const
    if c is not None and c <= 0:
        raise ScriptError(f"division by {c}: index divisors must be >= 1")
    return d


def floordiv(x: Index, d: Index) -> Poly:
    """floor(x / d), d >= 1.  ScriptError for a number below 1."""
    return _floordiv(poly(x), _divisor(d))


def _floordiv(x: Poly, d: Poly) -> Poly:
    """As `floordiv`, also for divisors below 1, which substitution may produce: the result is that of evaluation."""
    if _is_low(d):
        return _floordiv(scale(x, -1), scale(d, -1)) if d.terms else ZERO
    q, r = divide_terms(x, d)
    rc, dc = r.const, d.const
    if rc is not None and dc is not None:
        return add(q, poly(rc // dc))
    if rc == 0:
        return q
    if rc == -1:
        return q - 1
    return add(q, poly(Op("floordiv", (r, d))))


def mod(x: Index, d: Index) -> Poly:
    """x - d * floor(x / d), d >= 1.  ScriptError for a number below 1."""
    return _mod(poly(x), _divisor(d))


def _mod(x: Poly, d: Poly) -> Poly:
    if _is_low(d):
        return scale(_mod(scale(x, -1), scale(d, -1)), -1) if d.terms else ZERO
    _, r = divide_terms(x, d)
    rc, dc = r.const, d.const
    if rc is not None and dc is not None:
        return poly(rc % dc)
    if rc == 0:
        return ZERO
    return poly(Op("mod", (r, d)))


def ceildiv(x: Index, d: Index) -> Poly:
    """ceil(x / d), d >= 1.  ScriptError for a number below 1."""
    return _ceildiv(poly(x), _divisor(d))


def _ceildiv(x: Poly, d: Poly) -> Poly:
    if _is_low(d):
        return _ceildiv(scale(x, -1), scale(d, -1)) if d.terms else ZERO
    q, r = divide_terms(x, d)
    rc, dc = r.const, d.const
    if rc is not None and dc is not None:
        return q - (-rc) // dc
    if rc == 0:
        return q
    return add(q, poly(Op("ceildiv", (r, d))))


def _is_low(d: Poly) -> bool:
    c = d.const
    return c is not None and c < 1


def is_param_only(x: Poly) -> bool:
    """Whether no loop variable occurs, so that the expression is a number in every concrete program."""
    return all(isinstance(v, Param) for v in x.vars)


def _flatten(op: str, xs: Iterable[Poly]) -> list[Poly]:
    """min(min(a, b) + u, c) = min(a + u, b + u, c), for Param-only arguments: over loop variables the rule is not confluent."""
    flat: list[Poly] = []
    for x in xs:
        ops = [(m, c) for m, c in x.terms if any(type(a) is Op and a.op == op for a in m)]
        if len(ops) == 1 and ops[0][1] == 1 and len(ops[0][0]) == 1 and is_param_only(x):
            atom: Any = ops[0][0][0]
            rest = x - poly(atom)
            flat.extend([y + rest for y in atom.args])
        else:
            flat.append(x)
    return flat


def _roundup_min(keep: list[Poly]) -> Poly | None:
    """min(n, ceildiv(n, q) * q) is n for all n and q; Param-only, where every sound rule is confluent."""
    if any(not is_param_only(x) for x in keep):
        return None
    for a, b in (keep, keep[::-1]):
        for m, c in a.terms:
            for at in m:
                if c == 1 and type(at) is Op and at.op == "ceildiv" and a - b == mul(poly(at), at.args[1]) - at.args[0]:
                    return b
    return None


def _distinct(op: str, xs: Iterable[Poly]) -> list[Poly]:
    """Remove arguments that differ from another argument by a constant and never determine the result."""
    keep: list[Poly] = []
    for x in xs:
        for i, y in enumerate(keep):
            c = (x - y).const
            if c is not None:
                if c != 0 and (c < 0) == (op == "min"):
                    keep[i] = x
                break
        else:
            keep.append(x)
    return keep


def _extremum(op: str, xs: tuple[Index, ...]) -> Poly:
    """Normal form of min / max: arguments at a constant distance are merged, and the common part of every monomial is factored out, so that
    min(x + u, y + u) is min(x, y) + u for every u (shift equivariance)."""
    args = [poly(x) for x in xs]
    shift = ZERO
    while True:
        keep = _distinct(op, _flatten(op, args))
        if len(keep) == 1:
            return add(keep[0], shift)
        if len(keep) == 2 and op == "min":
            known = _roundup_min(keep)
            if known is not None:
                return add(known, shift)
        ds = [dict(x.terms) for x in keep]
        common = from_terms({m: min(d.get(m, 0) for d in ds) for m in set().union(*ds)})
        if not common.terms:
            break
        # The remaining arguments may now be Param-only and allow further flattening.
        args, shift = [x - common for x in keep], add(shift, common)
    return add(poly(Op(op, tuple(sorted(keep, key=lambda p: p.key)))), shift)


def minimum(*xs: Index) -> Poly:
    """The smallest of `xs`."""
    return _extremum("min", xs)


def maximum(*xs: Index) -> Poly:
    """The largest of `xs`."""
    return _extremum("max", xs)


MAKE: Mapping[str, Callable[..., Poly]] = {"floordiv": _floordiv, "mod": _mod, "ceildiv": _ceildiv, "min": minimum, "max": maximum}
"""Constructors for rebuilding existing operations with new arguments: divisors may be any number."""
CHECKED: Mapping[str, Callable[..., Poly]] = {**MAKE, "floordiv": floordiv, "mod": mod, "ceildiv": ceildiv}
"""Constructors for operations in source programs: constant divisors must be >= 1."""


def divisors(p: Poly) -> Iterator[Poly]:
    """The divisors of all divisions in `p`."""
    for m, _ in p.terms:
        for a in m:
            if type(a) is Op:
                if a.op in ("floordiv", "mod", "ceildiv"):
                    yield a.args[1]
                for x in a.args:
                    yield from divisors(x)


def substitute(p: Poly, s: Mapping[Var, Poly], memo: dict[Poly, Poly] | None = None) -> Poly:
    """`p` with variables replaced, rebuilt by the constructors.

    Args:
        p: the polynomial.
        s: the replacement of each Var or Param.
        memo: cache shared by the substitutions of a whole program.
    """
    if p.vars.isdisjoint(s):
        return p
    if memo is not None:
        done = memo.get(p)
        if done is not None:
            return done
    out: dict[Monomial, int] = {}
    for m, c in p.terms:
        t: Poly | None = None
        plain: list[Atom] = []
        for a in m:
            if a.vars.isdisjoint(s):
                plain.append(a)
                continue
            if type(a) is Op:
                v = MAKE[a.op](*[substitute(x, s, memo) for x in a.args])
            else:
                v = s[a]
            t = v if t is None else mul(t, v)
        if t is None:
            out[m] = out.get(m, 0) + c
            continue
        if plain:
            t = mul(t, Poly(((tuple(plain), 1),)))
        for tm, tc in t.terms:
            out[tm] = out.get(tm, 0) + tc * c
    result = from_terms(out)
    if memo is not None:
        memo[p] = result
    return result


def evaluate(p: Poly, env: Mapping[Var, int]) -> int:
    """The value of `p`, given a value of every variable."""
    total = 0
    for m, c in p.terms:
        for a in m:
            if type(a) is Op:
                x = [evaluate(y, env) for y in a.args]
                c *= _EVAL[a.op](x)
            else:
                c *= env[a]
        total += c
    return total


def quotient(x: int, d: int) -> int:
    """floor(x / d); 0 for d = 0."""
    return x // d if d else 0


def remainder(x: int, d: int) -> int:
    """x - d * floor(x / d), with the sign of d; 0 for d = 0."""
    return x % d if d else 0


def ceiling(x: int, d: int) -> int:
    """ceil(x / d); 0 for d = 0."""
    return -(-x // d) if d else 0


_EVAL: Mapping[str, Callable[[list[int]], int]] = {
    "floordiv": lambda x: quotient(*x),
    "mod": lambda x: remainder(*x),
    "ceildiv": lambda x: ceiling(*x),
    "min": min,
    "max": max,
}


# ---- operators on expressions of index type ---------------------------------------------------------------------------


@index_operation.register(Poly)
@index_operation.register(Const)
def _(operand: Expr, op: str, a: Expr, b: Expr) -> Expr | None:
    x, y = _operand(a), _operand(b)
    if x is None or y is None:
        return None
    return _compare(op, x, y) if op in COMPARISONS else _binary(op, x, y)


def _operand(x: Expr) -> Poly | None:
    if isinstance(x, Const):
        return poly(int(x.value))
    return x if isinstance(x, Poly) else None


def _binary(op: str, a: Poly, b: Poly) -> Poly | None:
    if op in ("add", "sub", "mul"):
        return add(a, b) if op == "add" else a - b if op == "sub" else mul(a, b)
    make = CHECKED.get(op)
    return make(a, b) if make else None


def less_than(a: Index, b: Index) -> Expr:
    """The index condition a < b, represented as `a - b < 0`; a literal if the difference is a number."""
    d = poly(a) - poly(b)
    return Const(d.const < 0, "bool") if d.const is not None else IsNegative(d)


def _compare(op: str, a: Poly, b: Poly) -> Expr:
    if op == "lt":
        return less_than(a, b)
    if op == "le":
        return less_than(a, b + 1)
    if op == "gt":
        return less_than(b, a)
    if op == "ge":
        return less_than(b, a + 1)
    both = Binary("and", less_than(a, b + 1), less_than(b, a + 1))
    return both if op == "eq" else Not(both)
