"""Read the parameters of `path.py:function(key=value,...)`, and call the function with them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping

from tunesmith.support import user_code
from tunesmith.support.errors import UserError
from tunesmith.support.nearest_name import did_you_mean

_TEXT = re.compile(r"(.*\.py:[^/():]*(?:\([^()]*\))?)\s*(?:/(.*))?", re.DOTALL)
_SIGNS, _SIGN = re.compile(r"\s*([(),=])\s*"), r"\1"
_CALL = re.compile(r"(.*\.py:\w+)\s*\((.*)\)\s*", re.DOTALL)


def split_function(text: str) -> tuple[str, str | None]:
    """The `path.py:model` of `path.py:model/FUNCTION`, without blanks around its parameters, and the function; None if it names none."""
    match = _TEXT.fullmatch(text)
    model, function = match.groups() if match is not None else (text, None)
    file, colon, name = model.rpartition(".py:")
    return f"{file}{colon}{_SIGNS.sub(_SIGN, name) if '(' in name else name}", function


def split_call(text: str) -> tuple[str, dict[str, object]]:
    """The `path.py:function` of a text, and its parameters; none without parentheses.

    A value is a number, True, False, None or a text in quotes, as in Python; any other value is a text as it is.

    Raises:
        UserError: a parameter is not of the form key=value, or is given twice.
    """
    match = _CALL.fullmatch(text)
    if match is None:
        return text, {}
    given: dict[str, object] = {}
    for part in match[2].split(",") if match[2].strip() else []:
        key, equals, value = [x.strip() for x in part.partition("=")]
        if not equals or not key.isidentifier():
            raise UserError(f"{text!r}: {part.strip()!r} is not of the form key=value. Spell it {match[1]}(key=value,...)")
        if "=" in value:
            raise UserError(f"{text!r}: {part.strip()!r} is more than one parameter. Separate parameters by commas")
        if key in given:
            raise UserError(f"{text!r}: the parameter {key} is given twice")
        given[key] = _value(value)
    return match[1], given


def call_with(text: str, function: Callable[..., object], given: Mapping[str, object]) -> object:
    """Call a function of the user with the parameters of `text`; the others have their defaults.

    Raises:
        UserError: the function has no such parameter, or another one without a default, or it fails.
    """
    _check(text, function, given)
    with user_code.running(text):
        return function(**given)


def _check(text: str, function: Callable[..., object], given: Mapping[str, object]) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # functions of C without a signature
        return
    path = split_call(text)[0]
    name = path.rpartition(":")[2]
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = next((key for key in given if key not in known), None)
    if unknown is not None and not any(p.kind == p.VAR_KEYWORD for p in parameters):
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise UserError(f"{text!r}: {name} has no parameter {unknown!r}; {has}.{did_you_mean(unknown, known)}")
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [p for p in required if p not in given]
    if missing:
        one = len(missing) == 1
        how = f"called without {'arguments' if not given else 'them all'}"
        example = ",".join([f"{p}=..." for p in missing])
        raise UserError(
            f"{text!r} is {how}, but {', '.join(missing)} of {name} {'has' if one else 'have'} no default. "
            f"Give {'it one' if one else 'each one'}, or name a function without arguments that calls {name}, or pass {path}({example})"
        )


def _value(text: str) -> object:
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return found if isinstance(found, (bool, int, float, str, type(None))) else text
