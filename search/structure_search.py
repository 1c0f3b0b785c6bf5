"""Find good sketches by the analytic model without generating all: coordinate descent over the structural choices.

The name of a sketch lists its choices, such as `tile rows-vec pad(inline) window`.  The first word is its family.  Two sketches of a family
are adjacent if one choice is added, removed or replaced; a family is divided into groups that adjacency connects.  In each group, the first
sketch is priced, and then those adjacent to the best so far, until none of them is better.  A convolution has 30 sketches, of which a third
is generated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tunesmith.ir.target.target import Target
from tunesmith.search.samplers.proposal_generator import Population
from tunesmith.search.space.sketch import Sketch
from tunesmith.support.seeds import stream

SCREENED = 1 / 16
"""Share of the draws that prices one sketch."""
REFINED = 3
"""Number of sketches that share the rest of the draws."""
_CHOICE = re.compile(r"(?:\([^()]*\)|[^\s()])+")


@dataclass(slots=True)
class Drawn:
    """Sketches that were generated, and their priced rows: the population's index of a sketch is its position here."""

    sketches: list[Sketch] = field(default_factory=list)
    population: Population = field(default_factory=lambda: Population({}, {}))


def choices(name: str) -> tuple[str, frozenset[str]]:
    """The family of a sketch, and its structural choices.

    >>> choices("tile vec-rows pack(W const)") == ("tile", frozenset({"vec-rows", "pack(W const)"}))
    True
    """
    found = _CHOICE.findall(name) or [name]
    return found[0], frozenset(found[1:])


def adjacent(a: str, b: str) -> bool:
    """Whether two sketches of a family differ by one choice, which is added, removed or replaced."""
    (family, x), (other, y) = choices(a), choices(b)
    return family == other and len(x - y) <= 1 and len(y - x) <= 1


def groups(names: Sequence[str]) -> list[list[int]]:
    """The positions of names that are connected by adjacent ones.

    >>> groups(["tile a", "tile b", "tile a x y", "tile b x y"])
    [[0, 1], [2, 3]]
    """
    out: list[list[int]] = []
    left = list(range(len(names)))
    while left:
        group = [left.pop(0)]
        for at in group:
            near = [i for i in left if adjacent(names[at], names[i])]
            group += near
            left = [i for i in left if i not in near]
        out.append(sorted(group))
    return out


def draw(names: Sequence[str], make: Callable[[int], Sketch | None], target: Target, digest: str, n: int) -> Drawn:
    """About n priced rows of the sketches that a descent visits; the result depends only on the arguments.

    Args:
        names: names of the sketches, in order of preference.
        make: generates a sketch by its position in `names`; None if it has no admissible rows.
        target: the machine whose analytic model prices rows.
        digest: identifies the function; a seed of the draws.
        n: number of rows.
    """
    search = _Search(names, make, target, digest, max(round(n * SCREENED), 1))
    for group in groups(names):
        search.descend(group)
    left = n - search.each * len(search.drawn.sketches)
    best = sorted(search.best, key=lambda i: search.best[i])[:REFINED]
    for i in best if left > 0 else ():
        search.price(i, max(left // len(best), 1), "again")
    return search.drawn


class _Search:
    def __init__(self, names: Sequence[str], make: Callable[[int], Sketch | None], target: Target, digest: str, each: int) -> None:
        self.names, self.make, self.target, self.digest, self.each = names, make, target, digest, each
        self.drawn = Drawn()
        self.position: dict[int, int] = {}
        """Position in `names` -> position in `drawn`, of those with rows."""
        self.best: dict[int, float] = {}
        """Position in `names` -> lowest predicted seconds."""
        self._visited: set[int] = set()

    def descend(self, group: Sequence[int]) -> None:
        """Visit sketches of a group until none that is adjacent to the best is better."""
        at = next((i for i in group if self._visit(i)), None)
        while at is not None:
            here = self.names[at]
            near = [i for i in group if i not in self._visited and adjacent(here, self.names[i])]
            at = next((i for i in near if self._visit(i) and self.best[i] < self.best[at]), None)

    def _visit(self, i: int) -> bool:
        self._visited.add(i)
        sketch = self.make(i)
        if sketch is None:
            return False
        self.position[i] = len(self.drawn.sketches)
        self.drawn.sketches.append(sketch)
        self.price(i, self.each, "first")
        return True

    def price(self, i: int, n: int, part: str) -> None:
        """Price n more rows of a sketch."""
        k = self.position[i]
        sketch, population = self.drawn.sketches[k], self.drawn.population
        rows = sketch.space.sample(n, stream(0, "untuned", self.digest, self.names[i], part))
        if k in population.rows:
            rows = np.concatenate([population.rows[k], rows])
        if sketch.space.size() <= 8 * len(rows):  # in a small space most draws are duplicates, which would fill the ranking
            rows = np.unique(rows, axis=0)
        population.rows[k], population.values[k] = rows, sketch.analytic(self.target).seconds(rows)
        self.best[i] = float(population.values[k].min())
