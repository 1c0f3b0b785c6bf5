"""Count the arithmetic operations of a function, which give a rate to programs that declare no count.

An arithmetic operator and a call of an intrinsic count one, a multiply-add two; loads, casts, comparisons, logical operators and selections
count none.  Neither does arithmetic of loop variables and sizes, as an index or as a value, because it is simplified.

A block runs once for each point of the domain of its iteration variables, whatever its predicate and the loops around it, so that splits
which overhang and recomputation do not change the count.  If that domain depends on the loops around the block, as in a triangular nest,
the iterations of these loops count.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tunesmith.ir.expr import ARITHMETIC, Binary, Call, Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.intrinsics import intrinsic
from tunesmith.ir.poly import Poly, Var, poly, substitute
from tunesmith.ir.stmt import Allocate, BindIndex, Block, BufferStore, Evaluate, For, If, Seq, Stmt, While

MOST = 1 << 16
"""Maximum number of iterations that are counted one by one."""

Domain = tuple[tuple[Var, Poly], ...]
"""Variables and their extents, which may contain earlier variables."""


def operation_count(func: PrimFunc) -> int | None:
    """The arithmetic operations of one call of a function that is not lowered; None if they depend on a dynamic size.

    Both sides of a selection or a conditional statement are counted, and one iteration of a while loop.
    The result is also None if extents that depend on other loops, and
    are not linear in their variables or negative for some of them, have more than `MOST` iterations around them.
    """
    return _of_statement(func.body, (), {}, False)


def _of_statement(s: Stmt | None, domain: Domain, bound: Mapping[Var, Poly], in_block: bool) -> int | None:
    """The operations of a statement for all points of a domain; loops outside all blocks repeat a block only if it depends on them.

    Args:
        s: the statement.
        domain: of its executions.
        bound: values of iteration variables that are not in the domain, in its variables.
        in_block: the statement is part of a block.
    """
    if isinstance(s, BufferStore | Evaluate):
        return _times(_of_expression(s.value), domain)
    if isinstance(s, For):
        return _of_statement(s.body, (*domain, (s.var, substitute(s.extent, bound))), bound, in_block)
    if isinstance(s, Block):
        return _of_block(s, domain, bound, in_block)
    if isinstance(s, If):
        both = [_of_statement(part, domain, bound, in_block) for part in (s.then, s.orelse)]
        return _sum([_times(_of_expression(s.cond), domain), *both])
    if isinstance(s, While):
        return _sum([_times(_of_expression(s.cond), domain), _of_statement(s.body, domain, bound, in_block)])
    if isinstance(s, Allocate | BindIndex):
        return _of_statement(s.body, domain, bound, in_block)
    return _sum([_of_statement(part, domain, bound, in_block) for part in s.stmts]) if isinstance(s, Seq) else 0


def _of_block(s: Block, domain: Domain, bound: Mapping[Var, Poly], in_block: bool) -> int | None:
    """The operations of a block: of its init for each point of its spatial variables, of its body for each point of all."""
    around = {v for v, _ in domain}
    if not in_block and any(around & it.extent.vars for it in s.iters):
        reduced = {v for it, e in zip(s.iters, s.bindings, strict=True) if it.kind == "R" for v in e.vars}
        spatial = tuple([(v, e) for v, e in domain if v not in reduced])
        bound = {**bound, **{it.var: e for it, e in zip(s.iters, s.bindings, strict=True)}}
        return _sum([_of_statement(s.init, spatial, bound, True), _of_statement(s.body, domain, bound, True)])
    once = domain if in_block else ()
    own = [(it.kind, it.var, substitute(it.extent, bound)) for it in s.iters]
    spatial = (*once, *[(v, e) for kind, v, e in own if kind == "S"])
    return _sum([_of_statement(s.init, spatial, bound, True), _of_statement(s.body, (*once, *[x[1:] for x in own]), bound, True)])


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [n for n in counts if n is not None]
    return sum(known) if len(known) == len(counts) else None


def _times(operations: int, domain: Domain) -> int | None:
    """The operations of all points of a domain, which is not counted for none."""
    points = _points(domain, MOST, _is_linear(domain)) if operations else 0
    return None if points is None else operations * points


def _points(domain: Domain, most: int, linear: bool) -> int | None:
    """The number of points of a domain; None if it is not constant, or needs more than `most` iterations one by one.

    If the extents are linear and never negative, the sum over a variable is that of a polynomial, and follows from its first values.
    """
    if not domain:
        return 1
    (v, extent), *rest = domain
    n = extent.const
    if n is None or n <= 0:
        return None if n is None else 0
    if not any(v in e.vars for _, e in rest):
        each = _points(tuple(rest), most, linear)
        return None if each is None else n * each
    values = min(n, len(rest) + 1) if linear else n
    if values > most:
        return None
    counts = []
    for k in range(values):
        at = {v: poly(k)}
        counts.append(_points(tuple([(w, substitute(e, at)) for w, e in rest]), most // values, linear))
    found = [c for c in counts if c is not None]
    if len(found) < values:
        return None
    return sum(found) if values == n else _sum_of_polynomial(found, n)


def _sum_of_polynomial(values: list[int], n: int) -> int:
    """The sum of n values of a polynomial at 0, 1, ..., of which the first are given, more than its degree."""
    total = 0
    for k in range(len(values)):
        total += values[0] * math.comb(n, k + 1)  # Newton's forward differences
        values = [b - a for a, b in itertools.pairwise(values)]
    return total


def _is_linear(domain: Domain) -> bool:
    """Whether all extents are linear in earlier variables, and never negative."""
    last: dict[Var, int] = {}
    for v, extent in domain:
        low = high = 0
        for atoms, factor in extent.terms:
            variable = atoms[0] if len(atoms) == 1 else None
            if len(atoms) > 1 or (atoms and variable not in last):
                return False
            most = last[variable] if isinstance(variable, Var) else 1
            least = 0 if atoms else 1
            low += factor * (least if factor > 0 else most)
            high += factor * (most if factor > 0 else least)
        if low < 0:
            return False
        last[v] = max(high - 1, 0)
    return True


def _of_expression(root: Expr) -> int:
    """The operations of one evaluation; a shared part counts once per use, so that the text of a program has the same count."""
    count = 0
    stack: list[Any] = [root]
    while stack:
        n = stack.pop()
        kind = type(n)
        if kind is Poly:
            continue
        if kind is IndirectIndex:
            stack.append(n.body)
            continue
        if kind is Binary:
            count += n.op in ARITHMETIC
        elif kind is Call:
            count += min(intrinsic(n.name).flops, 2 if n.name == "fma" else 1)
        n.each_child(stack.append)
    return count
