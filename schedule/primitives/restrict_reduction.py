"""Leave out the values of a reduction variable for which a condition makes every term zero."""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.ir.analysis.reduction_update import reassociable_update
from tunesmith.ir.arith.linear import coefficient
from tunesmith.ir.expr import Binary, Const, Expr, IsNegative, Select, conjunction
from tunesmith.ir.poly import ZERO, Op, Poly, Var, floordiv, mod, poly, substitute
from tunesmith.ir.stmt import Block, For
from tunesmith.ir.visit import blocks_under, transform
from tunesmith.ir.visit import substitute as substitute_statement
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def restrict_reduction(s: ScheduleState, block: BlockRV, variable: int) -> None:
    """Let a reduction variable take only the values for which a remainder has the value that the terms require.

    A transposed convolution with stride 2 adds a term for every second row of the filter; the others are zero.

    Args:
        block: the block, a sum of terms that are 0 unless `e % m == t`.
        variable: position of the reduction variable among the iteration variables, counted from 0.
    Rewrite: `restrict_reduction(C, 1)`
        for i, k in T.grid(6, 4):
            init: C[i] = 0.0
            C[i] = C[i] + T.select((i + k) % 2 == 0, A[(i + k) // 2], 0.0) * B[k]
      ->
        for i, k in T.grid(6, 2):
            if k < 1:
                C[i] = 0.0
            C[i] = C[i] + A[k + (i + 1) // 2] * B[k * 2 + i % 2]
    Requires:
        sum: the block is a sum, C[...] = C[...] + term, whose term is T.select(condition, x, 0) or a product with it.
        variable: there is a reduction variable at this position, whose extent is a number.
        congruence: the condition contains `e % m == t`, where e is linear in the variable with the coefficient 1 modulo m.
        divisible: m divides the extent.
        trivial: the variable is a serial loop of its own, without annotations, of the same extent.
        single-block: the loop contains no other block.
        block-exists: the block is still in the program.
    Keeps: results, unless a factor of a term that is left out is infinite or NaN, as the lowering of padding does (source: tunesmith; a
        lattice as the domain of a statement, as in polyhedral compilers).
    """
    b = s.block(block)
    update = reassociable_update(b)
    padded = None if update is None or update.op != "add" else _padded(update.term)
    if update is None or padded is None:
        raise s.refuse("sum", f"block {b.name} is no sum of terms T.select(condition, x, 0), or of products with them", b)
    it = b.iters[variable] if 0 <= variable < len(b.iters) else None
    extent = None if it is None else it.extent.const
    if it is None or it.kind != "R" or extent is None:
        raise s.refuse("variable", f"block {b.name} has no reduction variable of constant extent at position {variable}", b)
    found = _congruence(it.var, padded.cond)
    if found is None:
        raise s.refuse("congruence", f"the condition of block {b.name} has no part (e + {it.var.name}) % m == t", b)
    if extent % found.modulus:
        raise s.refuse("divisible", f"the extent {extent} of {it.var.name} is no multiple of {found.modulus}", b)
    loop = _own_loop(s, b, variable)
    if blocks_under(loop) != [b]:
        raise s.refuse("single-block", f"loop {loop.var.name} contains other blocks; distribute them first", loop)
    fresh = it.with_(var=Var(it.var.name), extent=poly(extent // found.modulus))
    solved = _Solution(it.var, fresh.var, found)
    conditions = [c for c in _conjuncts(padded.cond) if not found.implies(c)]
    chosen: Expr = Select(conjunction(tuple(conditions)), padded.a, padded.b) if conditions else padded.a
    body = transform(b.body, {Select: lambda n, recurse: chosen if n is padded else n.map_children(recurse)})
    body = transform(body, {Poly: lambda p, _: solved(p)})
    iters = (*b.iters[:variable], fresh, *b.iters[variable + 1 :])

    def changed(c: Block) -> Block:
        init = None if c.init is None else substitute_statement(c.init, {it.var: ZERO})
        return c.with_(iters=iters, init=init, body=body)

    s.replace_block(b.name, changed)
    s.replace_loop(loop.var, lambda f: f.with_(extent=fresh.extent))


def congruent_variables(b: Block) -> list[int]:
    """The positions of the reduction variables that `restrict_reduction` accepts, one after the other."""
    update = reassociable_update(b)
    padded = None if update is None or update.op != "add" else _padded(update.term)
    if padded is None:
        return []
    out: list[int] = []
    for n, it in enumerate(b.iters):
        found = _congruence(it.var, padded.cond) if it.kind == "R" else None
        if found is not None and it.extent.const is not None and it.extent.const % found.modulus == 0:
            out.append(n)
    return out


@dataclass(frozen=True, slots=True)
class _Congruence:
    """The condition (variable + others) % modulus == rest, where `remainder` is its left side."""

    remainder: Op
    others: Poly
    modulus: int
    rest: int

    def implies(self, c: Expr) -> bool:
        """Whether a part of the condition follows from the congruence."""
        bound = _bound(c, self.remainder)
        return bound is not None and bound[0] * self.rest + bound[1] < 0


@dataclass(frozen=True, slots=True)
class _Solution:
    """Indices in terms of a new variable: the old one is modulus * new + (the least solution of the congruence)."""

    old: Var
    new: Var
    congruence: _Congruence

    def __call__(self, p: Poly) -> Poly:
        """The index for the new variable.

        With x = others, the solutions are m * (new + Q) + rest - x, where Q = ceil((x - rest) / m).  The sum of x and Q that remains is
        a remainder, a quotient, or both.
        """
        if self.old not in p.vars:
            return p
        x, m, t, q = self.congruence.others, self.congruence.modulus, self.congruence.rest, Var("q")
        ceiling = floordiv(x - t + m - 1, m)
        found = substitute(p, {self.old: m * poly(self.new) + m * poly(q) + t - x})
        split = coefficient(found, q)
        scale = self._multiple_of_others(found)
        if split is None or scale is None:
            return substitute(found, {q: ceiling})
        factor, remaining = split[0], split[1] - scale * x
        if scale * m + factor == 0:
            return remaining - scale * (mod(t - x, m) - t)
        if m == 2 and factor == -scale:
            return remaining + scale * floordiv(x + t, 2)
        return remaining + scale * x + factor * ceiling

    def _multiple_of_others(self, p: Poly) -> int | None:
        """The multiple of x in an index; None if x is not linear in a variable."""
        for v in sorted(self.congruence.others.vars, key=lambda v: v.key):
            own, whole = coefficient(self.congruence.others, v), coefficient(p, v)
            if own is None or whole is None or own[0] == 0 or whole[0] % own[0]:
                return None
            return whole[0] // own[0]
        return 0


def _padded(term: Expr) -> Select | None:
    """The selection between a value and 0 that is the term or one of its factors."""
    for e in (term, *((term.a, term.b) if type(term) is Binary and term.op == "mul" else ())):
        if type(e) is Select and type(e.b) is Const and e.b.value == 0:
            return e
    return None


def _conjuncts(cond: Expr) -> list[Expr]:
    if type(cond) is Binary and cond.op == "and":
        return [*_conjuncts(cond.a), *_conjuncts(cond.b)]
    return [cond]


def _bound(c: Expr, a: Op) -> tuple[int, int] | None:
    """(k, n) for the condition k * a + n < 0; None for other conditions."""
    if type(c) is not IsNegative or c.lanes != 1:
        return None
    terms = dict(c.index.terms)
    factor = terms.pop((a,), 0)
    return (factor, terms.get((), 0)) if factor and set(terms) <= {()} else None


def _congruence(v: Var, cond: Expr) -> _Congruence | None:
    """A congruence in the variable that the condition contains."""
    conjuncts = _conjuncts(cond)
    atoms = dict.fromkeys([a for c in conjuncts if type(c) is IsNegative for m, _ in c.index.terms for a in m])
    for a in atoms:
        modulus = a.args[1].const if type(a) is Op and a.op == "mod" else None
        split = None if modulus is None else coefficient(a.args[0], v)  # type: ignore[union-attr]
        if modulus is None or split is None or split[0] % modulus != 1 % modulus or modulus < 2:
            continue
        low, high = 0, modulus - 1
        for bound in [x for c in conjuncts if (x := _bound(c, a)) is not None]:  # type: ignore[arg-type]
            if bound[0] == 1:
                high = min(high, -bound[1] - 1)
            elif bound[0] == -1:
                low = max(low, bound[1] + 1)
        if low == high:
            return _Congruence(a, a.args[0] - split[0] * poly(v), modulus, low)  # type: ignore[arg-type, union-attr]
    return None


def _own_loop(s: ScheduleState, b: Block, position: int) -> For:
    """The loop of an iteration variable."""
    it, loop = b.iters[position], b.bindings[position].as_var()
    found = next((f for f in s.loops_of(b.name) if f.var is loop), None)
    others = [e for n, e in enumerate(b.bindings) if n != position] + [*b.predicate]
    if (
        found is None
        or found.extent != it.extent
        or found.kind != "serial"
        or found.annotations
        or any(found.var in e.vars for e in others)
        or any(found.var in f.extent.vars for f in s.loops_of(b.name))
    ):
        what = f"iteration variable {it.var.name} of block {b.name} is not a serial loop of its own with the extent {it.extent!r}"
        raise s.refuse("trivial", f"{what}; restrict the reduction before its loops are split, fused or marked", b)
    return found
