"""Validate arguments on entry: NaN, fractions, bools and unknown keywords are rejected before their first use."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import wraps
from numbers import Real
from operator import index
from typing import ParamSpec, TypeVar

from tunesmith.support.errors import UserError
from tunesmith.support.nearest_name import did_you_mean

P = ParamSpec("P")
T = TypeVar("T")


def as_count(name: str, value: object, least: int = 1, what: str = "") -> int:
    """The argument as an int of at least `least`; numpy integers are accepted.

    Args:
        name: name of the argument, for the message.
        value: the argument.
        least: smallest valid value.
        what: description of valid values for the message, for example "it is at least 1".
    Raises:
        UserError: the value is not such an integer.
    """
    found = None if isinstance(value, bool) else _index(value)
    if found is None or found < least:
        raise _refusal(name, value, what, f"expected an integer >= {least}")
    return found


def as_positive(name: str, value: object, what: str = "") -> float:
    """The argument as a positive finite float; the parameters are those of `as_count`.

    Raises:
        UserError: the value is not a positive finite number.
    """
    found = _number(value)
    if not 0 < found < math.inf:
        raise _refusal(name, value, what, "expected a positive, finite number")
    return found


def as_factor(name: str, value: object, what: str = "") -> float:
    """The argument as a float of at least 1, possibly infinite; the parameters are those of `as_count`.

    Raises:
        UserError: the value is not such a number.
    """
    found = _number(value)
    if not found >= 1:
        raise _refusal(name, value, what, "expected a number >= 1")
    return found


def as_tolerance(name: str, value: object, what: str = "") -> float:
    """The argument as a finite float of at least 0; the parameters are those of `as_count`.

    Raises:
        UserError: the value is not such a number.
    """
    found = _number(value)
    if not 0 <= found < math.inf:
        raise _refusal(name, value, what, "expected a finite number >= 0")
    return found


def refuse_keywords(**present: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function that refuses unknown keywords with a UserError: an earlier or a similar name with the present spelling.

    Args:
        present: earlier name, or that of a similar function -> how the argument is passed.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        known = [name for name in inspect.signature(function).parameters if name != "self"]
        label = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs:
                if name in present:
                    raise UserError(f"{label} has no argument {name!r}: pass {present[name]}")
                if name not in known:
                    hint = did_you_mean(name, known) or f" It has {', '.join(known)}"
                    raise UserError(f"{label} has no argument {name!r}.{hint}")
            return function(*args, **kwargs)

        return checked

    return decorate


def refuse_fields(kind: type[T]) -> type[T]:
    """Decorate a dataclass that refuses unknown fields with a UserError, as `refuse_keywords`."""
    setattr(kind, "__init__", refuse_keywords()(kind.__init__))  # noqa: B010  (an assignment is an error of types)
    return kind


def _index(value: object) -> int | None:
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _number(value: object) -> float:
    """A real number as a float: infinity if it is too large, NaN for other objects."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]  # a real number


def _refusal(name: str, value: object, what: str, expected: str) -> UserError:
    shown = f"{value!r:.200}"
    return UserError(f"{name}={shown}: {f'{what}, not {shown}' if what else expected}")
