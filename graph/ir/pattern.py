"""Patterns: chains of calls by the names of their operators, some of which may be missing.

    Pattern("dense", ("permute_dims?", "matmul", "add?", "relu|gelu?"), check=two_dimensional)

A call of a chain has one result, which the next call of the chain takes and nobody else does.  `?` marks a call that may be missing, `|`
separates operators of which any will do.
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
"""Says of a chain that has the right operators whether it is wanted."""


@dataclass(frozen=True)
class Pattern:
    """One form of a chain.

    Args:
        name: what such a chain is called; part of the names of functions, so an identifier.
        operators: of its calls, in order.
        check: what a chain must be besides; by default every chain will do.
    """

    name: str
    operators: tuple[str, ...]
    check: Check = lambda calls: True

    @cached_property
    def steps(self) -> tuple[tuple[frozenset[str], bool], ...]:
        """For each position the operators, and whether it may be missing.

        Raises:
            UserError: the pattern names an operator that does not exist, all of it may be missing, or its name is no identifier.
        """
        if not self.name.isidentifier():
            raise UserError(f"{self.name!r} cannot name a pattern: use letters, digits and underscores")
        steps = [(frozenset(text.removesuffix("?").split("|")), text.endswith("?")) for text in self.operators]
        if all(optional for _, optional in steps):
            raise UserError(f"the pattern {self.name} {self.operators!r} must have a call that may not be missing")
        for operator in sorted(set().union(*[names for names, _ in steps])):
            try:
                GRAPH_OPERATORS.get(operator)
            except UserError as error:
                raise UserError(f"the pattern {self.name} {self.operators!r}: {error}") from error
        return tuple(steps)


def chains(region: Region, pattern: Pattern) -> Iterator[list[int]]:
    """Chains of the pattern in a region, as positions of bindings; for each first call the longest first.

    Chains may share calls: whoever takes one refuses those that come later.
    """
    users = users_of(region)
    for i in range(len(region.bindings)):
        yield from _from(region, users, pattern.steps, i)


def _from(region: Region, users: Sequence[Sequence[int]], steps: Sequence[tuple[frozenset[str], bool]], i: int) -> Iterator[list[int]]:
    """The ways in which `steps` fit calls from binding `i` on; no way holds fewer than one call."""
    if not steps:
        return
    (names, optional), rest = steps[0], steps[1:]
    operation = region.bindings[i].operation
    if isinstance(operation, Call) and operation.operator in names:
        if len(region.bindings[i].results) == 1 and len(users[i]) == 1 and users[i][0] < len(region.bindings):
            # The user may be an `if`, which takes the value into its regions; that is no call and fits no step.
            yield from ([i, *following] for following in _from(region, users, rest, users[i][0]))
        if all(o for _, o in rest):
            yield [i]
    if optional:
        yield from _from(region, users, rest, i)
