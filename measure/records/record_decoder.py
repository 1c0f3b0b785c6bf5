"""Data from the lines of a tuning log, several times as fast as from any JSON: the steps of traces are parsed once.

Most of a record is its trace, and the steps of all traces of a log are a few hundred texts.  So a line in the layout
that this tool writes is taken apart at the boundaries of steps, each text is looked up, and only the rest is parsed.

This is sound for any line.  The pieces are used only if each is JSON by itself and the line with an empty array in their place is
JSON too, and then the line says the same.  The place itself is known from the beginning of the line, in which no string
can hide it: a quote in a string would be escaped, and an escape ends the match.  All else is parsed as a whole.
"""

from __future__ import annotations

import re

from tunesmith.measure.records.fields import Pool
from tunesmith.support import json_lines

_HEAD = re.compile(rb'\{"v":1,"kind":"record","workload":"[\w.:-]{1,128}","target":\{[^{}\\]{0,2000}\},"trace":\[')
_TAIL = b'],"sketch":'
_BETWEEN = b'],["'
"""A boundary of steps.  What is split there and joined by commas again, with the brackets put back, is the same text."""
_DEEPEST = 90
"""Brackets in a text of a step beyond which the line is left to the parser of whole lines, which counts levels."""


class LineReader:
    """Gives what `json_lines.parse` gives; equal steps of traces are one object, which nobody may change.

    Attributes:
        pool: where other equal parts of lines are kept.
        parsed: how often the parser of JSON was called, on lines and on steps.
    """

    def __init__(self) -> None:
        self.pool = Pool()
        self.parsed = 0
        self._steps: dict[bytes, list[object]] = {}  # by the text between two boundaries
        self._texts: dict[bytes, list[object]] = {}  # by the whole text

    def read(self, line: bytes) -> object:
        """The data of one line, or a BadLine.  Never raises."""
        head = _HEAD.match(line)
        if head is not None:
            end = line.find(_TAIL, head.end())
            tail = line[end:]
            if end >= 0 and b'"trace"' not in tail and b"\\u" not in tail:  # of two fields of one name, however spelled, the last counts
                value = self._assembled(line, head.end(), end)
                if value is not None:
                    return value
        return self._whole(line)

    def _assembled(self, line: bytes, start: int, end: int) -> object | None:
        """The line from its parts; None if they are not what they seem."""
        if len(line) > json_lines.MAX_LINE_BYTES:
            return None
        parts = line[start:end].split(_BETWEEN)
        trace = list(map(self._steps.get, parts[1:-1]))
        if None in trace:  # a step that was not met before
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
        """The step that stands between two boundaries; None if there is none."""
        if part not in self._steps and (step := self._text(b'["' + part + b"]")) is not None:
            self._steps[part] = step
        return self._steps.get(part)

    def _text(self, text: bytes) -> list[object] | None:
        """The step of a whole text; None if it is no JSON array, or a deep one."""
        if text not in self._texts:
            parsed = self._parse(text) if text.count(b"[") + text.count(b"{") <= _DEEPEST else None
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
