"""Match chains of calls by the names of their operators, with optional and alternative operators.

    Pattern("dense", ("permute_dims?", "matmul", "add?", "relu|gelu?"), check=two_dimensional)

Each call of a chain has one result, and the next call of the chain is its only user.  `?` marks an optional call, `|` separates
alternative operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tunesmith.graph.ir.node import Binding, Call, Region
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.graph.ir.outline import users_of
from tunesmith.support.errors import UserError

Check = Callable[[Sequence[Binding]], bool]
"""Predicate on a chain whose operators match."""


@dataclass(frozen=True)
class Pattern:
    """A pattern of chains.

    Args:
        name: name of the pattern, an identifier because it is part of function names.
        operators: operators of the calls, in order.
        check: further condition on a chain; by default every chain matches.
    """

    name: str
    operators: tuple[str, ...]
    check: Check = lambda calls: True

    @cached_property
    def steps(self) -> tuple[tuple[frozenset[str], bool], ...]:
        """The operators at each position, and whether the position is optional.

        Raises:
            UserError: an operator of the pattern does not exist, all positions are optional, or the name is not an identifier.
        """
        if not self.name.isidentifier():
            raise UserError(f"{self.name!r} is not a valid pattern name: use letters, digits and underscores")
        steps = [(frozenset(text.removesuffix("?").split("|")), text.endswith("?")) for text in self.operators]
        if all(optional for _, optional in steps):
            raise UserError(f"the pattern {self.name} {self.operators!r} must have a call that is not optional")
        for operator in sorted(set().union(*[names for names, _ in steps])):
            try:
                GRAPH_OPERATORS.get(operator)
            except UserError as error:
                raise UserError(f"the pattern {self.name} {self.operators!r}: {error}") from error
        return tuple(steps)


def chains(region: Region, pattern: Pattern) -> Iterator[list[int]]:
    """Chains of the pattern in a region, as positions of bindings; chains with the same first call in order of decreasing length.

    Chains may overlap; callers skip a chain that shares calls with one already accepted.
    """
    users = users_of(region)
    for i in range(len(region.bindings)):
        yield from _from(region, users, pattern.steps, i)


def _from(region: Region, users: Sequence[Sequence[int]], steps: Sequence[tuple[frozenset[str], bool]], i: int) -> Iterator[list[int]]:
    """The matches of `steps` that start at binding `i`, each with at least one call."""
    if not steps:
        return
    (names, optional), rest = steps[0], steps[1:]
    operation = region.bindings[i].operation
    if isinstance(operation, Call) and operation.operator in names:
        if len(region.bindings[i].results) == 1 and len(users[i]) == 1 and users[i][0] < len(region.bindings):
            # An `if` that uses the value in its regions is not a Call, so it matches no step.
            yield from ([i, *following] for following in _from(region, users, rest, users[i][0]))
        if all(o for _, o in rest):
            yield [i]
    if optional:
        yield from _from(region, users, rest, i)
