"""Format errors and marks in program text: the source line, and carets under the error."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from tunesmith.support.errors import ScriptError

OPEN, CLOSE = "\x01", "\x02"
"""Markers around printed text under which `underlined` draws carets.  No name or literal contains them."""

_WIDTH = 140


class SourceError(ScriptError):
    """An error at a position of a script; `line` counts from 1 in `file`, `column` from 0."""

    file: str = ""
    line: int = 0
    column: int = 0


def shorten(text: str, width: int = 60) -> str:
    """`text` shortened for a message: at most `width` characters, without control characters."""
    clean = "".join(c if c.isprintable() else "?" for c in text[: width + 1])
    return clean if len(clean) <= width else clean[: width - 3] + "..."


def _window(line: str, start: int, end: int) -> tuple[str, int, int]:
    """A window of at most `_WIDTH` characters of a line that contains `start`, with the error position in it."""
    left = 0
    if len(line) > _WIDTH:
        left = max(0, min(start - _WIDTH // 3, len(line) - _WIDTH))
        line = line[left : left + _WIDTH]
    clean = "".join(c if c.isprintable() else " " for c in line)
    start, end = min(start - left, len(clean)), min(end - left, len(clean))
    return clean, start, max(end, start + 1)


@dataclass(frozen=True, slots=True)
class Source:
    """The parsed text and its origin.

    Attributes:
        lines: its lines.
        file: the name of the text in messages.
        first_line: the number of its first line in the file.
        tvm: whether it is TVM's: integers of an index may be data, and indices take the integer type that they are combined with.
    """

    lines: tuple[str, ...]
    file: str = "<script>"
    first_line: int = 1
    tvm: bool = False

    @staticmethod
    def of(text: str, file: str = "<script>", first_line: int = 1) -> Source:
        """`text` split into lines as Python counts them."""
        return Source(tuple(re.split(r"\r\n|\r|\n", text)), file, first_line)

    def error(self, at: ast.AST | None, what: str, hint: str = "") -> SourceError:
        """Create the error `what` at the position of `at`, or for the whole text if that is None; the caller raises it."""
        if at is None:
            error = SourceError(f"{self.file}: {what}\n  {hint}" if hint else f"{self.file}: {what}")
            error.file, error.line = self.file, self.first_line
            return error
        line = getattr(at, "lineno", 1)
        text = self.lines[line - 1].encode("utf-8", "replace") if line <= len(self.lines) else b""
        first = getattr(at, "col_offset", 0)
        last = getattr(at, "end_col_offset", None)
        if last is None or getattr(at, "end_lineno", line) != line:
            last = len(text)
        # ast columns count UTF-8 bytes; messages count characters.
        start, end = len(text[:first].decode("utf-8", "replace")), len(text[:last].decode("utf-8", "replace"))
        return self.error_at(line, start, end, what, hint)

    def error_at(self, line: int, start: int, end: int, what: str, hint: str = "") -> SourceError:
        """As `error`, for characters `start` to `end` of line `line`, counted from 1."""
        shown = self.lines[line - 1] if 1 <= line <= len(self.lines) else ""
        shown, left, right = _window(shown, start, end)
        number = str(line + self.first_line - 1)
        message = f"{self.file}:{number}: {what}\n  {number} | {shown}\n  {' ' * len(number)} | {' ' * left}{'^' * (right - left)}"
        error = SourceError(f"{message}\n  {hint}" if hint else message)
        error.file, error.line, error.column = self.file, line + self.first_line - 1, start
        return error


def underlined(text: str) -> str:
    """`text` without `OPEN` / `CLOSE` marks, with a line of carets below each marked line."""
    out: list[str] = []
    for line in text.split("\n"):
        if OPEN not in line:
            out.append(line)
            continue
        plain: list[str] = []
        carets: list[str] = []
        depth = 0
        for c in line:
            if c == OPEN:
                depth += 1
            elif c == CLOSE:
                depth -= 1
            else:
                plain.append(c)
                carets.append("^" if depth else " ")
        out += ["".join(plain), "".join(carets).rstrip()]
    return "\n".join(out)
