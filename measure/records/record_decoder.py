"""Decode lines of a tuning log several times faster than a JSON parser, by parsing each distinct trace step once.

Most of a record is its trace, and all traces of a log consist of a few hundred distinct steps.  A line in the layout written by tunesmith
is split at step boundaries, each step's text is looked up in a cache, and only the rest is parsed.

This is correct for any line.  The parts are used only if each is valid JSON on its own and the line with an empty array in their place is
valid JSON, too; the line then has the same meaning.  The position of the trace is matched from the beginning of the line, where a string
cannot imitate it: a quote in a string would be escaped, and an escape ends the match.  All other lines are parsed as a whole.
"""

from __future__ import annotations

import re

from tunesmith.measure.records.fields import ValuePool
from tunesmith.support import json_lines

_HEAD = re.compile(rb'\{"v":1,"kind":"record","workload":"[\w.:-]{1,128}","target":\{[^{}\\]{0,2000}\},"trace":\[')
_TAIL = b'],"sketch":'
_BETWEEN = b'],["'
"""A boundary of steps.  Splitting there, restoring the brackets and joining by commas gives the same text."""
_MAX_BRACKETS = 90
"""Brackets in a step's text beyond which the line is parsed as a whole, with a check of the nesting depth."""


class RecordDecoder:
    """Decodes lines to the same values as `json_lines.parse`.  Equal trace steps are one shared object and must not be modified.

    Attributes:
        pool: cache of other equal parts of lines.
        parsed: number of JSON parser calls, for lines and steps.
    """

    def __init__(self) -> None:
        self.pool = ValuePool()
        self.parsed = 0
        self._steps: dict[bytes, list[object]] = {}  # by the text between two boundaries
        self._texts: dict[bytes, list[object]] = {}  # by the complete text

    def read(self, line: bytes) -> object:
        """The value of one line, or a BadLine.  Never raises."""
        head = _HEAD.match(line)
        if head is not None:
            end = line.find(_TAIL, head.end())
            tail = line[end:]
            if end >= 0 and b'"trace"' not in tail and b"\\u" not in tail:  # of duplicate field names, in any spelling, the last counts
                value = self._assembled(line, head.end(), end)
                if value is not None:
                    return value
        return self._whole(line)

    def _assembled(self, line: bytes, start: int, end: int) -> object | None:
        """The line assembled from cached parts; None if they are not valid on their own."""
        if len(line) > json_lines.MAX_LINE_BYTES:
            return None
        parts = line[start:end].split(_BETWEEN)
        trace = list(map(self._steps.get, parts[1:-1]))
        if None in trace:  # a step that is not cached
            trace = [self._step(part) for part in parts[1:-1]]
        ends = [parts[0] + b"]", b'["' + parts[-1]] if len(parts) > 1 else parts if parts[0] else []
        trace[0:0] = map(self._text, ends[:1])
        trace += map(self._text, ends[1:])
        if None in trace:
            return None
        rest = self._parse(line[:start] + line[end:])
        if not isinstance(rest, dict):
            return None
        rest["trace"] = trace
        return rest

    def _step(self, part: bytes) -> list[object] | None:
        """The step between two boundaries; None if it is invalid."""
        if part not in self._steps and (step := self._text(b'["' + part + b"]")) is not None:
            self._steps[part] = step
        return self._steps.get(part)

    def _text(self, text: bytes) -> list[object] | None:
        """The step with this complete text; None if it is not a JSON array, or has too many brackets."""
        if text not in self._texts:
            parsed = self._parse(text) if text.count(b"[") + text.count(b"{") <= _MAX_BRACKETS else None
            if not isinstance(parsed, list):
                return None
            self._texts[text] = parsed
        return self._texts[text]

    def _whole(self, line: bytes) -> object:
        value = self._parse(line)
        if isinstance(value, dict) and isinstance(value.get("trace"), list):
            value["trace"] = [self.pool.one(step) for step in value["trace"]]
        return value

    def _parse(self, text: bytes) -> object:
        self.parsed += 1
        return json_lines.parse(text)
