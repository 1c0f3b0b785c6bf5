"""Test the suggestion of known names."""

from __future__ import annotations

from tunesmith.support.nearest_name import did_you_mean, nearest_name


def test_the_closest_name_is_suggested() -> None:
    assert nearest_name("slpit", ["reorder", "split", "splits"]) == "split"
    assert did_you_mean("slpit", ["split"]) == " Did you mean 'split'?"


def test_nothing_is_suggested_without_a_similar_name() -> None:
    assert nearest_name("fuse", ["reorder"]) is None
    assert did_you_mean("fuse", []) == ""


def test_the_cutoff_is_the_least_similarity() -> None:
    assert nearest_name("abcd", ["abxy"], 0.5) == "abxy"
    assert nearest_name("abcd", ["abxy"]) is None


def test_long_names_are_not_compared() -> None:
    assert nearest_name("a" * 257, ["a" * 256]) is None
