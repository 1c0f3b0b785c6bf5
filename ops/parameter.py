"""Parse and print the parameters of operators: the values in `NAME(key=value,...)`.

A value has one text, so that equal workloads have equal names: 1e-05 and not 0.00001, 1 and not -1 for the last of two axes.
"""

from __future__ import annotations

import difflib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tunesmith.support.errors import UserError

Value = int | float | str | tuple[int, ...]
"""An integer or flag, a real number, a word, a shape or a list of axes."""


@dataclass(frozen=True, slots=True)
class Parameter(ABC):
    """One parameter.

    Attributes:
        name: the key.
        default: the default value; None if the parameter is required.
    """

    name: str
    default: Value | None = None

    kind: ClassVar[str] = ""
    """The expected kind of value, for messages and tables."""

    @abstractmethod
    def read(self, text: str) -> Value:
        """The value of a text.

        Raises:
            UserError: the text is not a value of this parameter.
        """

    def text(self, value: Value) -> str:
        """The canonical text of a value."""
        return str(value)

    def checked(self, value: object) -> Value:
        """The checked value of `value`, a text or a value of this parameter's type.

        Raises:
            UserError: it is neither.
        """
        return self.read(value.strip() if isinstance(value, str) else self.text(value))  # type: ignore[arg-type]  # read refuses it

    def refuse(self, text: str, hint: str = "") -> UserError:
        """The error for a bad value."""
        return UserError(f"parameter {self.name}: expected {self.expected()}, got {text!r}.{hint}")

    def expected(self) -> str:
        """The description of a value, for messages."""
        return self.kind


@dataclass(frozen=True, slots=True)
class IntParameter(Parameter):
    """An integer from `least`, or one of `choices`."""

    least: int = 1
    choices: tuple[int, ...] = ()

    kind: ClassVar[str] = "an integer"

    def read(self, text: str) -> Value:
        """`64`."""
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise self.refuse(text)
        value = int(text)
        if value < self.least or (self.choices and value not in self.choices):
            raise self.refuse(text)
        return value

    def expected(self) -> str:
        """The range or the choices."""
        return " or ".join(map(str, self.choices)) if self.choices else f"an integer from {self.least}"


def flag(name: str, default: int = 0) -> IntParameter:
    """A parameter that is 0 or 1."""
    return IntParameter(name, default, 0, (0, 1))


@dataclass(frozen=True, slots=True)
class WordParameter(Parameter):
    """One of a few words."""

    choices: tuple[str, ...] = ()

    kind: ClassVar[str] = "a word"

    def read(self, text: str) -> Value:
        """`NHWC`."""
        if text not in self.choices:
            near = difflib.get_close_matches(text.lower(), [c.lower() for c in self.choices], n=1)
            meant = next((c for c in self.choices if near and c.lower() == near[0]), None)
            raise self.refuse(text, f" Did you mean {meant!r}?" if meant else "")
        return text

    def expected(self) -> str:
        """The words."""
        return " or ".join(self.choices)


@dataclass(frozen=True, slots=True)
class RealParameter(Parameter):
    """A finite number >= 0."""

    kind: ClassVar[str] = "a number from 0"

    def read(self, text: str) -> Value:
        """`1e-5`."""
        try:
            value = float(text)
        except ValueError:
            raise self.refuse(text) from None
        if not (math.isfinite(value) and value >= 0):
            raise self.refuse(text)
        return value

    def text(self, value: Value) -> str:
        """The shortest text of the number."""
        return repr(float(value)) if isinstance(value, (int, float)) else str(value)


@dataclass(frozen=True, slots=True)
class ShapeParameter(Parameter):
    """Extents, spelled 64x56x56; the word `empty`, if given, spells ()."""

    empty: str = ""

    kind: ClassVar[str] = "extents from 1, spelled like 64x56x56"

    def read(self, text: str) -> Value:
        """`64x56x56`."""
        if self.empty and text == self.empty:
            return ()
        if not re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18})*", text):
            raise self.refuse(text)
        value = tuple([int(n) for n in text.split("x")])
        if 0 in value:
            raise self.refuse(text)
        return value

    def text(self, value: Value) -> str:
        """Extents with x between them."""
        return self.empty if value == () else _joined("x", value)

    def expected(self) -> str:
        """The form, and the word."""
        return f"{self.kind}, or {self.empty}" if self.empty else self.kind


@dataclass(frozen=True, slots=True)
class AxesParameter(Parameter):
    """Positions of axes, spelled 0+2, negative ones counted from the end; () means all axes."""

    kind: ClassVar[str] = "positions of axes, spelled like 1 or 0+2, or all"

    def read(self, text: str) -> Value:
        """`0+2`, `-1` or `all`."""
        if text == "all":
            return ()
        if not re.fullmatch(r"-?[0-9]{1,2}(\+-?[0-9]{1,2})*", text):
            raise self.refuse(text)
        return tuple([int(n) for n in text.split("+")])

    def text(self, value: Value) -> str:
        """Positions with + between them."""
        return "all" if value == () else _joined("+", value)


@dataclass(frozen=True, slots=True)
class AxisParameter(Parameter):
    """The position of one axis, a negative one counted from the end; the last is -1."""

    kind: ClassVar[str] = "the position of an axis, spelled like 1 or -1"

    def read(self, text: str) -> Value:
        """`0` or `-1`."""
        if not re.fullmatch(r"-?[0-9]{1,2}", text):
            raise self.refuse(text)
        return int(text)


def _joined(separator: str, value: object) -> str:
    return separator.join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


FLOATS = WordParameter("dtype", "float32", ("float16", "float32", "float64"))
"""The element type of all tensors of an operator."""
