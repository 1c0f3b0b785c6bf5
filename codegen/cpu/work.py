"""Count the elements that a parallel loop stores, to run loops with little work on one thread."""

from __future__ import annotations

from collections.abc import Container

from tunesmith.ir.arith.interval import bounds
from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.stmt import GRAIN, BufferStore, For, Stmt, annotation
from tunesmith.ir.visit import walk_objects
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError


def grain_of(n: For, function: str) -> int | None:
    """The elements from which on a parallel loop runs on several threads; None if it always does.

    Args:
        n: the loop.
        function: name of its function, for the message.
    Raises:
        BuildError: the annotation is not a number.
    """
    grain = annotation(n, GRAIN)
    least = grain.const if isinstance(grain, Poly) else None
    if grain is not None and least is None:
        raise BuildError(f"{function}: the annotation {GRAIN!r} of loop {n.var.name} is {grain!r}; it takes a number")
    return least


def elements_stored(n: Stmt, ranges: dict[Var, tuple[int, int]], known: Container[Var]) -> dict[tuple[Poly, ...], float]:
    """Number of elements stored under a statement: a factor for each product of extents.

    Args:
        n: the statement.
        ranges: lowest and highest values of variables; unchanged at the end.
        known: the variables that have a value before the statement; an extent that varies inside counts as its maximum.
    """
    if type(n) is BufferStore:
        # A store of one value may reduce a vector.
        return {(): float(max(dt.lanes(x.dtype) for x in walk_objects(n.value) if isinstance(x, Expr)))}
    if type(n) is For:
        most = bounds(n.extent, ranges)[1]
        ranges[n.var] = (0, max(most - 1, 0))  # extents inside may depend on it
    inside: list[Stmt] = []
    n.each_child(lambda x: inside.append(x) if isinstance(x, Stmt) else None)
    found: dict[tuple[Poly, ...], float] = {}
    for x in inside:
        for loops, times in elements_stored(x, ranges, known).items():
            found[loops] = found.get(loops, 0.0) + times
    if type(n) is not For:
        return found
    del ranges[n.var]
    if n.extent.const is None and all(v in known for v in n.extent.vars):
        return {(*loops, n.extent): times for loops, times in found.items()}
    # The maximum, if the extent varies with an outer loop.
    return {loops: times * min(max(most, 0), 1 << 31) for loops, times in found.items()}
