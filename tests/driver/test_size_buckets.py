"""Sizes to tune for: forms of the argument, buckets at powers of two, refusals."""

from __future__ import annotations

import pytest

from tunesmith.driver.size_buckets import boxes_of, parse_sizes, powers_of_two
from tunesmith.support.errors import UserError

LISTED = {"n": [(16, 16), (64, 64)]}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("n=16,64", LISTED),
        (["n=16,64"], LISTED),
        ({"n": [64, 16]}, LISTED),
        ({"n": "16,64"}, LISTED),
        ({"n": 16}, {"n": [(16, 16)]}),
        ({"n": range(1, 6)}, {"n": [(1, 1), (2, 2), (3, 4), (5, 5)]}),
        ("n=1..5 m=7", {"n": [(1, 1), (2, 2), (3, 4), (5, 5)], "m": [(7, 7)]}),
        (["n=1..2", "m=100..128,1"], {"n": [(1, 1), (2, 2)], "m": [(1, 1), (100, 128)]}),
    ],
    ids=str,
)
def test_forms(given: object, found: dict[str, list[tuple[int, int]]]) -> None:
    assert parse_sizes(given) == found


def test_buckets_end_at_powers_of_two_and_cover_the_range() -> None:
    assert powers_of_two(1, 128) == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 64), (65, 128)]
    for low, high in ((1, 100), (7, 9), (8, 8), (33, 1000)):
        buckets = powers_of_two(low, high)
        assert [n for a, b in buckets for n in range(a, b + 1)] == list(range(low, high + 1))


def test_several_sizes_are_combined() -> None:
    assert [str(b) for b in boxes_of(parse_sizes("n=1..4 m=8"))] == ["m=8, n=1", "m=8, n=2", "m=8, n=3..4"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("n=5..2", "the range of n from 5 to 2 is empty. Give the lower end first"),
        ({"n": range(3, 3)}, "the range of n from 3 to 2 is empty"),
        ("n=0..4", "sizes to tune for are from 1 to 2147483647; a call with size 0 runs without tuning"),
        ("n=-3", "sizes to tune for are from 1 to 2147483647. Change the range of n"),
        ({"n": [2**31]}, "sizes to tune for are from 1 to 2147483647"),
        ("n=1..8,8", "n = 8 is in two ranges"),
        (["n=1", "n=2"], "the size n is given twice"),
        ({"n": range(1, 9, 2)}, "the range of n has the step 2"),
        ("n=1..9 m=1..1000 k=1..9", "are 275 buckets, more than 64"),
        *[
            (given, "expected a text such as 'n=1..128'")
            for given in ("", "n", "=3", "n=x", "n=1..", 3, [], {}, {"n": []}, {"n": [1.5]}, {"n": True})
        ],
    ],
    ids=str,
)
def test_refusals(given: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_sizes(given)
    assert message in str(caught.value) and str(caught.value).startswith("sizes=")
