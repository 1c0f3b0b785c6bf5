"""Count the arithmetic operations of a function, which give a rate to programs that declare no count.

An arithmetic operator and a call of an intrinsic count one, a multiply-add two; loads, casts, comparisons, selections and index arithmetic
count none.  A block runs once for each point of the domain of its iteration variables, whatever its predicate and the loops around it, so
that splits which overhang and recomputation do not change the count.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.expr import ARITHMETIC, Binary, Call, Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.intrinsics import intrinsic
from tunesmith.ir.poly import ZERO, Poly, poly, product
from tunesmith.ir.stmt import Allocate, BindIndex, Block, BufferStore, Evaluate, For, If, Seq, Stmt


def operation_count(func: PrimFunc) -> int | None:
    """The arithmetic operations of one call of a function that is not lowered; None if they depend on a dynamic size.

    Both sides of a selection or a conditional statement are counted.
    """
    return _of_statement(func.body, poly(1), False).const


def _of_statement(s: Stmt | None, times: Poly, in_block: bool) -> Poly:
    """The operations of `times` executions; loops outside all blocks do not repeat a block."""
    if isinstance(s, BufferStore | Evaluate):
        return times * _of_expression(s.value)
    if isinstance(s, For):
        return _of_statement(s.body, times * s.extent, in_block)
    if isinstance(s, Block):
        once = times if in_block else poly(1)
        spatial = product([once, *[it.extent for it in s.iters if it.kind == "S"]])
        return _of_statement(s.init, spatial, True) + _of_statement(s.body, product([once, *[it.extent for it in s.iters]]), True)
    if isinstance(s, If):
        return times * _of_expression(s.cond) + _of_statement(s.then, times, in_block) + _of_statement(s.orelse, times, in_block)
    if isinstance(s, Allocate | BindIndex):
        return _of_statement(s.body, times, in_block)
    return sum([_of_statement(part, times, in_block) for part in s.stmts], ZERO) if isinstance(s, Seq) else ZERO


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
