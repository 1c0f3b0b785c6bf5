"""Test the descent over the structural choices of sketches: what it visits, and how near it comes to the best of all sketches."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tunesmith.ir import structural
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.search.space.rules_table import generate
from tunesmith.search.structure_search import Drawn, adjacent, choices, draw, groups

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


class Made:
    """A sketch whose rows all cost the same."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.space = SimpleNamespace(sample=lambda n, rng: rng.integers(0, 9, (n, 1)), size=lambda: 1 << 40)

    def analytic(self, target: Target) -> Any:
        return SimpleNamespace(seconds=lambda rows: np.full(len(rows), self.seconds))


def visited(costs: dict[str, float | None], n: int = 64) -> tuple[Drawn, list[str]]:
    """The result, and the names in the order of their generation; None costs have no admissible rows."""
    names, seen = list(costs), []

    def make(i: int) -> Any:
        seen.append(names[i])
        cost = costs[names[i]]
        return None if cost is None else Made(cost)

    return draw(names, make, TARGET, "digest", n), seen


def test_choices_are_words_outside_of_parentheses() -> None:
    assert choices("tile vec-rows pack(W const) pad(root)") == ("tile", frozenset({"vec-rows", "pack(W const)", "pad(root)"}))
    assert choices("derived apart(A,B) inline(C)") == ("derived", frozenset({"apart(A,B)", "inline(C)"}))
    assert choices("") == ("", frozenset()) and choices("odd (") == ("odd", frozenset())


def test_adjacent_sketches_differ_by_one_choice() -> None:
    assert adjacent("tile a", "tile a b") and adjacent("tile a", "tile b") and adjacent("tile a(1 2) c", "tile a(3) c")
    assert not adjacent("tile a", "tile b c d") and not adjacent("tile a", "other a")
    assert groups(["tile a", "winograd", "tile b", "tile x y z"]) == [[0, 2], [1], [3]]


def test_a_part_of_the_sketches_is_generated_and_the_best_is_found() -> None:
    dims = [("rows", "vec"), ("p1", "p2", "p3"), ("", "window"), ("", "pack")]
    names = [" ".join(["tile", *[c for c in combination if c]]) for combination in itertools.product(*dims)]
    best = frozenset({"vec", "p2", "pack"})
    drawn, seen = visited({name: 1.0 + len(choices(name)[1] ^ best) for name in names})
    assert len(seen) == len(set(seen)) < len(names) * 2 / 3
    ((seconds, candidate),) = drawn.population.best(1)
    assert seconds == 1.0 and drawn.sketches[candidate.sketch] is min(drawn.sketches, key=lambda s: s.seconds)  # type: ignore[attr-defined]


def test_groups_that_no_choice_connects_are_visited_and_refused_sketches_are_passed_over() -> None:
    drawn, seen = visited({"tile a": 5.0, "tile b x y": None, "tile c x y": 1.0, "other": 3.0})
    assert seen == ["tile a", "tile b x y", "tile c x y", "other"]
    assert drawn.population.best(1)[0][0] == 1.0 and len(drawn.sketches) == 3
    assert visited({"tile a": None})[0].population.best(3) == [] and visited({})[0].sketches == []


def test_the_best_sketches_share_the_draws_that_are_left() -> None:
    drawn, _ = visited({f"family{i}": float(i) for i in range(5)}, n=320)
    assert [len(drawn.population.rows[k]) for k in range(5)] == [20 + 73, 20 + 73, 20 + 73, 20, 20]


@pytest.mark.parametrize(
    "text", ("conv2d(n=1,h=14,w=14,ci=32,co=32,kh=3,kw=3,pad=1)", "matmul(m=128,n=96,k=64)", "attention(b=2,m=32,n=32,d=16)")
)
def test_the_result_is_near_that_of_all_sketches(text: str) -> None:
    func = workload(text).func
    sketches = generate(func, TARGET).sketches
    digest = structural.digest(func)
    found = draw([s.name for s in sketches], lambda i: sketches[i], TARGET, digest, 4096)
    each = [draw([s.name], lambda i, s=s: s, TARGET, digest, 4096 // len(sketches)) for s in sketches]  # type: ignore[misc]
    assert found.population.best(1)[0][0] <= 1.15 * min(d.population.best(1)[0][0] for d in each)
