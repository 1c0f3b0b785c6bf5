"""Numbers that callers give: checked at once, so that no count is NaN, half a trial, or a bool, when it is used for the first time."""

from __future__ import annotations

import math
from numbers import Real
from operator import index

from tunesmith.support.errors import UserError


def as_count(name: str, value: object, least: int = 1, what: str = "") -> int:
    """An int from `least` on; numpy's integers are ints too.

    Args:
        name: of the argument.
        value: what was given.
        least: the least that makes sense.
        what: what the argument is, for the message: "it is at least 1".
    Raises:
        UserError: it is none.
    """
    found = None if isinstance(value, bool) else _index(value)
    if found is None or found < least:
        raise _refusal(name, value, what, f"an integer >= {least} is wanted")
    return found


def as_positive(name: str, value: object, what: str = "") -> float:
    """A positive finite number; the arguments are those of `as_count`.

    Raises:
        UserError: it is none.
    """
    try:
        found = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        found = math.inf
    if not 0 < found < math.inf:
        raise _refusal(name, value, what, "a positive, finite number is wanted")
    return found


def _index(value: object) -> int | None:
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _refusal(name: str, value: object, what: str, wanted: str) -> UserError:
    shown = f"{value!r:.200}"
    return UserError(f"{name}={shown}: {f'{what}, not {shown}' if what else wanted}")
