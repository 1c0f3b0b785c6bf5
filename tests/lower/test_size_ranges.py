"""Boxes of sizes: text, conditions and back, overlap."""

from __future__ import annotations

import pytest

from tunesmith.ir.analysis.size_ranges import LARGEST_SIZE
from tunesmith.ir.expr import Const, Expr
from tunesmith.ir.poly import Var, less_than, poly
from tunesmith.lower.size_ranges import SizeRanges, ranges_of

N, M = Var("n"), Var("m")


@pytest.mark.parametrize("ranges", [{"n": (1, 1)}, {"n": (65, 128)}, {"m": (1, LARGEST_SIZE), "n": (3, 4)}])
def test_a_condition_gives_its_box_back(ranges: dict[str, tuple[int, int]]) -> None:
    box = SizeRanges.of(ranges)
    assert ranges_of(box.condition([N, M]), [N, M]) == box


@pytest.mark.parametrize(
    "condition", [Const(True, "bool"), less_than(N, M), less_than(poly(N) * 2, 5), less_than(5, 3), less_than(Var("k"), 3)]
)
def test_other_conditions_have_no_box(condition: Expr) -> None:
    assert ranges_of(condition, [N, M]) is None


def test_text_and_parts() -> None:
    box = SizeRanges.of({"n": (65, 128), "m": (4, 4)})
    assert str(box) == "m=4, n=65..128"
    assert box.last == {"m": 4, "n": 128} and box.single == {"m": 4} and box.to_json() == {"m": [4, 4], "n": [65, 128]}


def test_overlap() -> None:
    box = SizeRanges.of({"n": (5, 8), "m": (1, 2)})
    assert box.overlaps(SizeRanges.of({"n": (8, 16), "m": (2, 2)}))
    assert box.overlaps(SizeRanges.of({"n": (8, 8)}))
    assert not box.overlaps(SizeRanges.of({"n": (9, 16), "m": (1, 2)}))
