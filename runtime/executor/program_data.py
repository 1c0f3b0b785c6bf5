"""Validate decoded JSON of untrusted programs: each function returns the value with its type, or raises RunError."""

from __future__ import annotations

from typing import Any

from tunesmith.support import dtype as dt
from tunesmith.support.errors import RunError

LARGEST = 2**62
"""Larger numbers are refused, so that sizes and sums of sizes fit in 64 bits."""


def field(data: object, key: str, what: str) -> Any:
    """The value of a key of an object."""
    if not isinstance(data, dict) or key not in data:
        raise RunError(f"{what} has no {key!r}. Build it again")
    return data[key]


def list_of(value: object, what: str, least: int = 0, most: int | None = None) -> list[Any]:
    """A list with `least` to `most` items."""
    if not isinstance(value, list) or not least <= len(value) <= (len(value) if most is None else most):
        length = "" if least == 0 and most is None else f" of {least}" if least == most else f" of {least} or more"
        raise RunError(f"{what}: expected a list{length}, got {_shown(value)}")
    return value


def text_of(value: object, what: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise RunError(f"{what}: expected a text, got {_shown(value)}")
    return value


def int_of(value: object, what: str, least: int = -LARGEST, most: int = LARGEST) -> int:
    """An int from `least` to `most`, inclusive; bools are refused."""
    if type(value) is not int or not least <= value <= most:
        raise RunError(f"{what}: expected an integer from {least} to {most}, got {_shown(value)}")
    return value


def dtype_of(value: object, what: str) -> str:
    """A scalar type."""
    if not isinstance(value, str) or value not in dt.SCALARS:
        raise RunError(f"{what}: {_shown(value)} is no element type. Known are {', '.join(dt.SCALARS)}")
    return value


def shape_of(value: object, what: str) -> tuple[int, ...]:
    """Extents, all >= 0."""
    return tuple([int_of(e, f"{what}: extent {i}", 0) for i, e in enumerate(list_of(value, f"{what}: shape", 0, 32))])


def numbers_of(value: object, what: str, count: int) -> tuple[int, ...]:
    """A list of indices below `count`."""
    return tuple([int_of(n, what, 0, count - 1) for n in list_of(value, what)])


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, (int, float, str, bool)) or value is None else type(value).__name__
    return text if len(text) < 60 else text[:57] + "..."
