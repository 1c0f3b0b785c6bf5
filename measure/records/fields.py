"""Validate the fields of a log line; each reader removes its field from the line and rejects invalid values.

Lines are untrusted.  Error messages name the field, the expected and the actual value, and have bounded length for any value.
"""

from __future__ import annotations

import json
import marshal
import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import ClassVar, NoReturn, TypeVar

import numpy as np

from tunesmith.support.errors import RecordError
from tunesmith.support.strict_fields import MISSING, StrictFields

T = TypeVar("T")

VERSION = 1
"""Line format version that is written, and the newest that can be read."""

MAX_NAME = 256
MAX_MESSAGE = 16_384
MAX_SCRIPT = 4 << 20
MAX_ROW = 4_096
MAX_SAMPLES = 100_000
MAX_SIZES = 64

_DIGEST = re.compile(r"[0-9A-Za-z_.:-]{1,128}")
_CANONICAL = json.JSONEncoder(sort_keys=True, allow_nan=False, separators=(",", ":"))
_INT64 = range(-(1 << 63), 1 << 63)
_UINT64 = range(1 << 64)
_YEAR_10000 = 253_402_300_800


class NewerRecordError(RecordError):
    """The line was written by a newer tunesmith.  A merge preserves it, but this version cannot use it."""


class ValuePool:
    """Interning of equal parts of lines: most of a log repeats a few instructions, targets and hosts."""

    def __init__(self) -> None:
        self._parts: dict[bytes, object] = {}
        self._texts: dict[int, tuple[object, str]] = {}

    def one(self, part: T) -> T:
        """The interned object equal to this one.  Keys are bytes, because `==` does not distinguish 1 from 1.0 and True."""
        key = marshal.dumps(part, 2)  # type: ignore[arg-type]  # in version 2 equal parts have equal bytes
        return self._parts.setdefault(key, part)  # type: ignore[return-value]

    def text(self, items: Sequence[object]) -> str:
        """Result of `canonical` for a list whose items are interned, here or by the log reader, and never modified."""
        cached = [self._texts.get(id(item)) for item in items]
        if None in cached:
            cached = [self._texts.setdefault(id(item), (item, canonical("trace", item))) for item in items]
        return f"[{','.join([text for _, text in cached])}]"  # type: ignore[misc]  # none is None


class LineFields(StrictFields):
    """Validating reader of one line.

    Args:
        kind: required kind of the line, named in errors.
        line: the line as returned by `json.loads`.
        pool: pool for interning objects, or None.

    Raises:
        NewerRecordError: the line is of a newer version.
        RecordError: the line is not an object, or of another kind.  All reader methods raise RecordError, too.
    """

    NOUNS: ClassVar = {bool: "true or false", dict: "a JSON object", list: "a JSON array"}

    def __init__(self, kind: str, line: object, pool: ValuePool | None = None) -> None:
        self._pool = pool
        if not isinstance(line, dict):
            raise RecordError(f"{kind} line: expected a JSON object, got {show(line)}")
        super().__init__(f"{kind} line", line)
        version = self.take("v", f"a version number from 1 to {VERSION}")
        if type(version) is not int or version < 1:
            self.refuse("v", f"a version number from 1 to {VERSION}", version)
        if version > VERSION:
            raise NewerRecordError(
                f"{self.where}: format version {show(version)} is newer than the supported version {VERSION}. Upgrade tunesmith"
            )
        found = self.take("kind", repr(kind))
        if found != kind:
            self.refuse("kind", repr(kind), found)

    def refuse(self, name: str, expected: str, got: object) -> NoReturn:
        """Raise the RecordError for a field."""
        if got is MISSING:
            raise RecordError(f"{self.where}: field `{name}` is missing: expected {expected}")
        raise RecordError(f"{self.where}: field `{name}`: expected {expected}, got {show(got)}")

    def digest(self, name: str) -> str:
        """A digest: a short name that cannot contain a path separator."""
        expected = "a digest of 1 to 128 letters, digits or _.:-"
        value = self.take(name, expected)
        if not isinstance(value, str) or not is_digest(value):
            self.refuse(name, expected, value)
        return value

    def string(self, name: str, limit: int) -> str:
        """A string of bounded length."""
        expected = f"a string of at most {limit} characters"
        value = self.take(name, expected)
        if not isinstance(value, str) or len(value) > limit:
            self.refuse(name, expected, value)
        return value

    def shared(self, name: str) -> dict[str, object]:
        """A JSON object with any content, see `canonical` for its values; equal ones of many lines are one object."""
        value = self.mapping(name)
        return value if self._pool is None else self._pool.one(value)

    def array(self, name: str) -> list[object]:
        """A JSON array with any content."""
        return self.typed(name, list)

    def integer64(self, name: str) -> int:
        """A signed or unsigned 64-bit integer."""
        value = self.take(name, "a 64-bit integer")
        if type(value) is not int or (value not in _INT64 and value not in _UINT64):
            self.refuse(name, "a 64-bit integer", value)
        return value

    def row(self, name: str) -> tuple[int, ...]:
        """An array of signed 64-bit integers."""
        expected = f"an array of at most {MAX_ROW} 64-bit integers"
        value = self.take(name, expected)
        if not isinstance(value, list) or len(value) > MAX_ROW:
            self.refuse(name, expected, value)
        for item in value:
            if type(item) is not int or item not in _INT64:
                self.refuse(name, expected, item)
        return tuple(value)

    def samples(self, name: str) -> tuple[float, ...]:
        """Durations above 0: a time of zero would remain the best forever."""
        expected = f"an array of at most {MAX_SAMPLES} finite seconds above 0"
        value = self.take(name, expected)
        if not isinstance(value, list) or len(value) > MAX_SAMPLES:
            self.refuse(name, expected, value)
        for item in value:
            if type(item) is not float or not 0.0 < item < math.inf:  # also false for NaN
                self._number(name, expected, item, positive=True)  # integers are accepted
        return tuple(map(float, value))

    def timestamp(self, name: str) -> float:
        """A time in seconds since 1970."""
        expected = "seconds since 1970, before the year 10000"
        value = self.take(name, expected)
        number = self._number(name, expected, value, positive=False)
        if number >= _YEAR_10000:
            self.refuse(name, expected, value)
        return number

    def _number(self, name: str, expected: str, value: object, positive: bool) -> float:
        if type(value) is not float and type(value) is not int:
            self.refuse(name, expected, value)
        try:
            number = float(value)
        except OverflowError:
            self.refuse(name, expected, value)
        if not 0 <= number < math.inf or (positive and number == 0):  # NaN fails the first condition
            self.refuse(name, expected, value)
        return number


def is_digest(text: str) -> bool:
    """Whether a text has the form of a digest."""
    return _DIGEST.fullmatch(text) is not None


def canonical(name: str, value: object) -> str:
    """Canonical text of a JSON value, independent of key order.  Uses the C encoder, because a log holds millions of values.

    Raises:
        RecordError: the value contains non-JSON data or a non-finite number.
    """
    try:
        return _CANONICAL.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RecordError(f"field `{name}`: expected plain JSON data with finite numbers: {error}") from error


def plain(where: str, value: object) -> object:
    """The value converted to JSON types: lists for tuples, Python numbers for numpy numbers.

    Raises:
        RecordError: the value contains other data; the message names its position.
    """
    try:
        return _plain(where, value)
    except RecursionError:
        raise RecordError(f"field `{where}`: nested too deeply to write") from None


def clip(text: str) -> str:
    """Shorten a long message to its beginning and end: compilers print the error first, tracebacks last."""
    if len(text) <= MAX_MESSAGE:
        return text
    half = MAX_MESSAGE // 2 - 40
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def show(value: object) -> str:
    """A short text for a value of any size."""
    try:
        return reprlib.repr(value)
    except (ValueError, RecursionError):  # for example, an integer with thousands of digits
        return f"{type(value).__name__} too large to show"


def _plain(where: str, value: object) -> object:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise RecordError(f"field `{where}`: expected a finite number, got {value}")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise RecordError(f"field `{where}`: expected string keys, got {show(key)}")
        return {key: _plain(f"{where}.{key}", item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(f"{where}[{index}]", item) for index, item in enumerate(value)]
    raise RecordError(f"field `{where}`: expected plain JSON data, got {show(value)}, a {type(value).__name__}")
