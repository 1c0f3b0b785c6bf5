"""Test the strict reader of JSON and TOML objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest

from tunesmith.support.errors import RecordError
from tunesmith.support.strict_fields import StrictFields


class Fields(StrictFields):
    """A reader with the simplest messages."""

    def refuse(self, name: str, expected: str, got: object) -> NoReturn:
        raise RecordError(f"{self.where}: {name}: {expected}, not {got}")


def test_fields_are_read_and_removed() -> None:
    data = {"name": "a", "seed": 3, "on": True, "parts": {"x": 1}, "other": None}
    fields = Fields("the file", data)
    assert (fields.text("name"), fields.integer("seed"), fields.flag("on"), fields.mapping("parts")) == ("a", 3, True, {"x": 1})
    assert fields.rest == {"other": None}
    assert len(data) == 5


def test_defaults_stand_for_missing_fields_only() -> None:
    fields = Fields("the file", {"name": None})
    assert (fields.text("title", "none"), fields.integer("seed", 0, 7), fields.take("target", "a text", None)) == ("none", 7, None)
    with pytest.raises(RecordError, match="name: a text, not None"):
        fields.text("name", "none")


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (lambda f: f.text("x"), 1, "a text, not 1"),
        (lambda f: f.flag("x"), 1, "true or false, not 1"),
        (lambda f: f.mapping("x"), [], r"an object, not \[\]"),
        (lambda f: f.integer("x"), True, "an integer, at least 0, not True"),
        (lambda f: f.integer("x"), -1, "an integer, at least 0, not -1"),
        (lambda f: f.integer("x", None), 1.0, "an integer, not 1.0"),
        (lambda f: f.checked("x", "an even number", lambda x: x % 2 == 0), 3, "an even number, not 3"),
    ],
)
def test_other_values_are_refused(read: Callable[[Fields], object], value: object, message: str) -> None:
    with pytest.raises(RecordError, match=f"^the file: x: {message}$"):
        read(Fields("the file", {"x": value}))


@pytest.mark.parametrize("read", [Fields.text, Fields.flag, Fields.mapping, Fields.integer])
def test_missing_fields_are_refused(read: Callable[[Fields, str], object]) -> None:
    with pytest.raises(RecordError, match="x: .*, not missing"):
        read(Fields("the file", {}), "x")


def test_unknown_fields_are_refused_with_the_closest_known_one() -> None:
    fields = Fields("the file", {"trails": 3})
    fields.integer("trials", 0, 5)
    fields.text("name", "")
    with pytest.raises(RecordError, match="the file: unknown key 'trails'. Did you mean 'trials'. Known: name, trials."):
        fields.done()
