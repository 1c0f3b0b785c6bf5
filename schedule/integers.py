"""Integers at the boundary: whatever counts as one (numpy's too) becomes an int, and what only looks like one does not."""

from __future__ import annotations

import operator
from typing import Any


def as_integer(x: Any) -> int | None:
    """`x` as an int; None when it is none: a bool and a float are not, also where they are equal to one."""
    if type(x) is int:
        return x
    if isinstance(x, bool):
        return None
    try:
        return operator.index(x)
    except TypeError:
        return None
