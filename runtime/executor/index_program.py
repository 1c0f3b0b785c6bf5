"""Check and evaluate index expressions of programs: nested lists over the names of sizes.

Expressions are checked when a program is loaded, and evaluated when the sizes are known.

    "n"   7   ["add", e, e, ...]   ["mul", e, e, ...]   ["min", e, e, ...]   ["max", e, e, ...]
    ["floordiv", e, e]   ["ceildiv", e, e]   ["mod", e, e]      rounded to minus infinity; 0 if the divisor is 0

Conditions on them: true, false, ["negative", e], ["not", c], ["and", c, c, ...], ["or", c, c, ...].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tunesmith.runtime.executor.program_data import LARGEST, int_of, list_of
from tunesmith.support.errors import RunError

_DEPTH = 64
_FOLDS: Mapping[str, Callable[[list[int]], int]] = {"add": sum, "mul": math.prod, "min": min, "max": max}
_DIVISIONS: Mapping[str, Callable[[int, int], int]] = {
    "floordiv": lambda a, b: a // b if b else 0,
    "ceildiv": lambda a, b: -(-a // b) if b else 0,
    "mod": lambda a, b: a % b if b else 0,
}
_SIGNS = {"add": "+", "mul": "*", "floordiv": "//", "mod": "%"}


def check_index(e: Any, names: Collection[str], what: str, depth: int = _DEPTH) -> None:
    """RunError if `e` is not an index expression over the names."""
    if isinstance(e, str):
        if e not in names:
            raise RunError(f"{what}: the size {e!r} is not known. Known are: {', '.join(names) or 'none'}")
    elif isinstance(e, list):
        op = e[0] if e else None
        if depth == 0 or not isinstance(op, str) or (op not in _FOLDS and op not in _DIVISIONS):
            raise RunError(f"{what}: {op!r} is no operation of index expressions, or they are nested deeper than {_DEPTH}")
        list_of(e, what, 3, 3 if op in _DIVISIONS else None)
        for part in e[1:]:
            check_index(part, names, what, depth - 1)
    else:
        int_of(e, what)


def check_condition(c: Any, names: Collection[str], what: str, depth: int = _DEPTH) -> None:
    """RunError if `c` is not a condition over the names."""
    if isinstance(c, bool):
        return
    op = c[0] if isinstance(c, list) and c else None
    if op == "negative":
        check_index(list_of(c, what, 2, 2)[1], names, what)
    elif depth and op in ("not", "and", "or"):
        for part in list_of(c, what, 2, 2 if op == "not" else None)[1:]:
            check_condition(part, names, what, depth - 1)
    else:
        raise RunError(f"{what}: {op!r} is no operation of conditions, or they are nested deeper than {_DEPTH}")


def evaluate(e: Any, sizes: Mapping[str, int]) -> int:
    """The value of a checked expression.

    Raises:
        RunError: it does not fit in 64 bits.
    """
    if isinstance(e, int):
        return e
    if isinstance(e, str):
        return sizes[e]
    values = [evaluate(part, sizes) for part in e[1:]]
    value = _DIVISIONS[e[0]](*values) if e[0] in _DIVISIONS else _FOLDS[e[0]](values)
    if abs(value) > LARGEST:
        raise RunError(f"{shown(e)} does not fit in 64 bits with {_assigned(sizes)}")
    return value


def holds(c: Any, sizes: Mapping[str, int]) -> bool:
    """Whether a checked condition holds; errors as in `evaluate`."""
    if isinstance(c, bool):
        return c
    if c[0] == "negative":
        return evaluate(c[1], sizes) < 0
    parts = [holds(part, sizes) for part in c[1:]]
    return not parts[0] if c[0] == "not" else all(parts) if c[0] == "and" else any(parts)


def shown(e: Any) -> str:
    """An expression in infix notation: `2*n+1`."""
    if not isinstance(e, list):
        return str(e)
    parts = [shown(part) for part in e[1:]]
    sign = _SIGNS.get(e[0])
    if sign is None:
        return f"{e[0]}({', '.join(parts)})"
    if sign != "+":
        parts = [f"({p})" if isinstance(part, list) and part[0] in _SIGNS else p for p, part in zip(parts, e[1:], strict=True)]
        return sign.join(parts).replace("-1*", "-")
    return "+".join(parts).replace("+-", "-")


def shown_condition(c: Any) -> str:
    """A condition in infix notation: `n < 129`."""
    if isinstance(c, bool):
        return str(c)
    if c[0] != "negative":
        parts = [shown_condition(part) for part in c[1:]]
        return f"not ({parts[0]})" if c[0] == "not" else f" {c[0]} ".join(f"({p})" for p in parts)
    e = c[1]
    bound = 0
    if isinstance(e, list) and e[0] == "add" and isinstance(e[-1], int):
        bound, rest = -e[-1], e[1:-1]
        e = rest[0] if len(rest) == 1 else ["add", *rest]
    negated = isinstance(e, list) and e[0] == "mul" and e[1] == -1
    if negated:
        rest = e[2:]
        return f"{shown(rest[0] if len(rest) == 1 else ['mul', *rest])} > {-bound}"
    return f"{shown(e)} < {bound}"


def _assigned(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sizes.items()) or "there are no sizes"
