"""Convert integer arguments, including numpy integers, to int; bools and floats are rejected."""

from __future__ import annotations

import operator
from typing import Any


def as_integer(x: Any) -> int | None:
    """`x` as an int; None if it is not an integer. Bools and floats are not, even if they are equal to one."""
    if type(x) is int:
        return x
    if isinstance(x, bool):
        return None
    try:
        return operator.index(x)
    except TypeError:
        return None
