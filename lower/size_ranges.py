"""Describe ranges of the dynamic sizes of a function: the sizes that a schedule was tuned for, or that a version of the code runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tunesmith.ir.analysis.size_ranges import LARGEST_SIZE
from tunesmith.ir.expr import Binary, Expr, IsNegative
from tunesmith.ir.poly import Var, less_than, poly


@dataclass(frozen=True, order=True, slots=True)
class SizeRanges:
    """A box of sizes.

    Attributes:
        ranges: (size name, lowest, highest), sorted by name; sizes that are not listed have any value from 1 on.
    """

    ranges: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, ranges: Mapping[str, tuple[int, int]]) -> SizeRanges:
        """The box of a mapping from size names to (lowest, highest)."""
        return cls(tuple(sorted([(name, low, high) for name, (low, high) in ranges.items()])))

    @property
    def last(self) -> dict[str, int]:
        """The largest sizes, at which a schedule of the box is measured."""
        return {name: high for name, _, high in self.ranges}

    @property
    def single(self) -> dict[str, int]:
        """The sizes of which the box has one value."""
        return {name: low for name, low, high in self.ranges if low == high}

    def overlaps(self, other: SizeRanges) -> bool:
        """Whether some sizes are in both boxes."""
        mine = {name: (low, high) for name, low, high in self.ranges}
        return all(low <= mine[name][1] and mine[name][0] <= high for name, low, high in other.ranges if name in mine)

    def condition(self, sizes: Iterable[Var]) -> Expr:
        """The condition that sizes are in the box."""
        named = {v.name: v for v in sizes}
        out: Expr | None = None
        for name, low, high in self.ranges:
            v = poly(named[name])
            for part in (less_than(poly(low - 1), v), less_than(v, high + 1)):
                out = part if out is None else Binary("and", out, part)
        assert out is not None
        return out

    def to_json(self) -> dict[str, list[int]]:
        """The box as plain JSON: size name -> [lowest, highest]."""
        return {name: [low, high] for name, low, high in self.ranges}

    def __str__(self) -> str:
        """`n=65..128, m=4`."""
        return ", ".join(f"{name}={low}" if low == high else f"{name}={low}..{high}" for name, low, high in self.ranges)


def ranges_of(condition: Expr, sizes: Iterable[Var]) -> SizeRanges | None:
    """The box of a condition made by `SizeRanges.condition`; None for other conditions."""
    found: dict[str, tuple[int, int]] = {}
    stack = [condition]
    while stack:
        c = stack.pop()
        if type(c) is Binary and c.op == "and":
            stack += [c.a, c.b]
            continue
        v = next((v for v in sizes if c.index.vars == {v}), None) if type(c) is IsNegative and c.lanes == 1 else None
        if v is None or type(c) is not IsNegative:
            return None
        low, high = found.get(v.name, (1, LARGEST_SIZE))
        above, below = (c.index - v).const, (c.index + v).const
        if above is not None:  # v + above < 0
            high = min(high, -above - 1)
        elif below is not None:  # below - v < 0
            low = max(low, below + 1)
        else:
            return None
        found[v.name] = (low, high)
    return SizeRanges.of(found) if found and all(low <= high for low, high in found.values()) else None
