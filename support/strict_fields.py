"""Read the fields of untrusted JSON and TOML objects: each reader removes its field and rejects values of other types.

Each kind of file has a subclass, which defines the error message.  Log lines are read this way too, so a field costs one `dict.pop` and one
type comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NoReturn, TypeVar

from tunesmith.support.errors import RecordError, TunesmithError
from tunesmith.support.nearest_name import did_you_mean

T = TypeVar("T")


class _Missing:
    def __repr__(self) -> str:
        return "missing"


MISSING: Final = _Missing()
"""The value of a field that the object does not have."""


class StrictFields:
    """Validating reader of one object; `rest` holds the fields that were not read.

    Types are exact: true is no integer, and 1 is no float.

    Args:
        where: the object in messages.
        data: the fields; not modified.
    """

    ERROR: ClassVar[type[TunesmithError]] = RecordError
    """The class of errors."""
    NOUNS: ClassVar[Mapping[type, str]] = {str: "a text", bool: "true or false", dict: "an object", list: "a list"}
    """The types in messages."""

    def __init__(self, where: str, data: Mapping[str, object]) -> None:
        self.where = where
        self.rest: dict[str, object] = dict(data)
        self.known: list[str] = []

    def refuse(self, name: str, expected: str, got: object) -> NoReturn:
        """Raise the error for a field; `got` may be MISSING."""
        raise NotImplementedError

    def take(self, name: str, expected: str, default: object = MISSING) -> object:
        """The unvalidated value of a field, or its default; without one, the field is required."""
        self.known.append(name)
        value = self.rest.pop(name, default)
        if value is MISSING:
            self.refuse(name, expected, value)
        return value

    def checked(self, name: str, expected: str, fits: Callable[[Any], bool], default: object = MISSING) -> Any:
        """A value that passes a check."""
        value = self.take(name, expected, default)
        return value if fits(value) else self.refuse(name, expected, value)

    def typed(self, name: str, kind: type[T], default: object = MISSING) -> T:
        """A value of exactly this type, one of `NOUNS`."""
        self.known.append(name)
        value = self.rest.pop(name, default)
        if type(value) is not kind:
            self.refuse(name, self.NOUNS[kind], value)
        return value

    def flag(self, name: str, default: object = MISSING) -> bool:
        """True or false; 0 and 1 are rejected."""
        return self.typed(name, bool, default)

    def integer(self, name: str, least: int | None = 0, default: object = MISSING) -> int:
        """An integer, of at least `least`."""
        expected = "an integer" if least is None else f"an integer, at least {least}"
        return self.checked(name, expected, lambda x: type(x) is int and (least is None or x >= least), default)

    def text(self, name: str, default: object = MISSING) -> str:
        """A string."""
        return self.typed(name, str, default)

    def mapping(self, name: str, default: object = MISSING) -> dict[str, object]:
        """An object with any content."""
        return self.typed(name, dict, default)

    def done(self) -> None:
        """Refuse fields that were not read; the message names the closest known one."""
        for name in self.rest:
            hint = did_you_mean(name, self.known)
            raise self.ERROR(f"{self.where}: unknown key {name!r}.{hint} Known: {', '.join(sorted(self.known))}.")
