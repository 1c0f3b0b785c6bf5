"""Declare, set and parse the options of passes: the keyword-only parameters of their functions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self
from weakref import WeakValueDictionary

from tunesmith.support import user_code
from tunesmith.support.errors import UserError
from tunesmith.support.nearest_name import did_you_mean

Option = bool | int | float | str
"""A value of an option."""

_TYPES = (bool, int, float, str)
LEVELS = (1, 2, 3)
"""Levels of passes that can be left out: 1 simplifies, 2 reorganises, 3 is run on request only (see `PassContext`)."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Configurable:
    """A named rewrite with options.

    Attributes:
        name: the label in dumps, times and errors.
        run: the rewrite.  Its keyword-only parameters are the options.  Each has a default, a bool, int, float or str, and values
            have the type of the default.
        options: values of options; defaults are not listed.
        level: one of `LEVELS`; a context of a lower level leaves the pass out.
        needed_by: what does not work without the pass, such as "code generators, which have no blocks"; such a pass is never left out.
            Empty for an optional pass.
    Raises:
        UserError: the name is no text, `run` is no function, an option has no such default, or there is no such level.
    """

    name: str
    run: Callable[..., Any]
    options: tuple[tuple[str, Option], ...] = field(default=(), kw_only=True)
    level: int = field(default=1, kw_only=True)
    needed_by: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not callable(self.run):
            raise UserError(f"a pass has a name, which is a text, and a function; got {self.name!r:.100} and {self.run!r:.100}")
        for key, default in self.defaults.items():
            if type(default) not in _TYPES:
                found = "no default" if default is inspect.Parameter.empty else f"the default {default!r:.60}"
                raise UserError(
                    f"the option {key!r} of the pass {self.name!r} ({_where(self.run)}) has {found}: keyword-only parameters are options, "
                    f"whose values have the type of the default, a bool, int, float or str. Give {key} such a default, or bind other "
                    "values in an enclosing function"
                )
        if type(self.level) is not int or self.level not in LEVELS:
            raise UserError(f"the pass {self.name!r} has level={self.level!r:.60}: levels of passes are {', '.join(map(str, LEVELS))}")
        if not isinstance(self.needed_by, str):
            raise UserError(f"the pass {self.name!r} has needed_by={self.needed_by!r:.60}: write a text, what does not work without it")
        _MADE[id(self)] = self

    def __str__(self) -> str:
        given = ",".join([f"{k}={text_of(v)}" for k, v in self.options])
        return f"{self.name}{{{given}}}" if given else self.name

    @property
    def defaults(self) -> dict[str, Any]:
        """The options and their default values."""
        try:
            found = inspect.signature(self.run).parameters.values()
        except ValueError:  # functions of C without a signature
            return {}
        return {p.name: p.default for p in found if p.kind is p.KEYWORD_ONLY}

    def with_options(self, /, **options: Option) -> Self:
        """The pass with other options; an int is also a value of an option of type float.

        Raises:
            UserError: there is no such option, or its value has another type than the default.
        """
        known = self.defaults
        for key, value in options.items():
            if key not in known:
                raise UserError(
                    f"the pass {self.name!r} has no option {key!r}; it has {', '.join(known) or 'none'}.{did_you_mean(key, known)}"
                )
            wanted = type(known[key])
            if wanted is float and type(value) is int:
                options[key] = float(value)
            elif type(value) is not wanted:
                raise UserError(f"the option {key!r} of the pass {self.name!r} is of type {wanted.__name__}, got {value!r:.100}")
        return replace(self, options=tuple(sorted({**dict(self.options), **options}.items())))

    def needed(self, by: str) -> Self:
        """The pass as one that is never left out, for pipelines in which `by` does not work without it."""
        return replace(self, needed_by=by)

    def with_texts(self, given: Mapping[str, str]) -> Self:
        """The pass with options that are read from text, each as the type of its default.  UserError as `with_options`."""
        known = self.defaults
        return self.with_options(**{k: _read(v, type(known.get(k))) for k, v in given.items()})


_MADE: WeakValueDictionary[int, Configurable] = WeakValueDictionary()
"""The passes of this process by identity: those that a context can name."""


def passes_named(name: str) -> list[Configurable]:
    """The passes of this process that are called `name`: an option of any of them can be set by name."""
    return [p for p in list(_MADE.values()) if p.name == name]


def names_made() -> list[str]:
    """The names of all passes of this process, sorted."""
    return sorted({p.name for p in list(_MADE.values())})


def name_of(run: Callable[..., Any]) -> str:
    """The name of a function, for its pass.  UserError for other objects."""
    if not callable(run) or not isinstance(getattr(run, "__name__", None), str):
        raise UserError(f"{run!r:.100} is no function with a name: make a pass of a function, or give Pass or ModulePass a name")
    return run.__name__


def check_parameters(run: Callable[..., Any], parameters: str) -> None:
    """Check that a function can be called with `parameters`, the names of the operands of a pass.  UserError if it cannot."""
    user_code.check_parameters(run, parameters.split(", "), f"the pass {_where(run)}")


def parse_pass(text: str) -> tuple[str, dict[str, str]]:
    """The name of a pass and the texts of its options: `simplify`, `version_loops{most=8}`, `path.py:name{most=8}`.

    Raises:
        UserError: the text has another form, or gives an option twice.
    """
    match = re.fullmatch(r"\s*([^{}]+\.py:\w+|[\w.]+)\s*(?:\{([^{}]*)\})?\s*", text)
    if match is None:
        raise UserError(f"{text[:200]!r} is no pass: write NAME or NAME{{option=value,...}}, where NAME may be path.py:name")
    options: dict[str, str] = {}
    for entry in (match[2] or "").split(","):
        if entry.strip():
            key, equals, value = [part.strip() for part in entry.partition("=")]
            if not equals:
                raise UserError(f"{key!r} is no option of {match[1]}: write option=value")
            if key in options:
                raise UserError(f"the option {key!r} of {match[1]} is given twice, as {options[key]} and {value}: give it once")
            options[key] = value
    return match[1], options


def text_of(value: Option) -> str:
    """A value as `parse_pass` reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(text: str, wanted: type) -> Option:
    """The value of a type that a text spells; the text itself if it spells none."""
    if wanted is bool:
        return {"true": True, "false": False}.get(text, text)
    try:
        return wanted(text) if wanted in (int, float) else text
    except ValueError:
        return text


def _where(run: Callable[..., Any]) -> str:
    """Module and name of a function."""
    return f"{getattr(run, '__module__', None) or '?'}.{getattr(run, '__qualname__', None) or type(run).__name__}"
