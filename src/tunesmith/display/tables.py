"""Format numbers and tables for terminals, files and `str()`."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tunesmith.support.escaped_text import escaped

PIPED_WIDTH = 160
"""Columns of a table written to a file or a pipe."""
NOISY = "  (~ other processes used the machine)"
"""The end of a table's title that explains the mark of `microseconds`."""
_BARS = "▁▂▃▄▅▆▇█"


def as_text(shown: RenderableType, width: int = PIPED_WIDTH) -> str:
    """The output of a terminal of the given width, without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    console.print(shown, crop=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n")


def comment(text: str) -> str:
    """Each line of the text as a comment of Python."""
    return textwrap.indent(text, "# ", lambda _: True)


def as_comment(shown: RenderableType) -> Text:
    """The output of a terminal as comments of Python."""
    return code(comment(as_text(shown)))


def code(text: str) -> Text:
    """Program text for a terminal or a file; long lines are not wrapped."""
    return Text(escaped(text), no_wrap=True, overflow="ignore")


def console(stderr: bool = False) -> Console:
    """A console of this process: the width of the terminal; `PIPED_WIDTH` columns and no colour when piped."""
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=PIPED_WIDTH)


def plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = ()) -> Table:
    """A table of texts; the first column and those in `left` are aligned to the left, all others to the right."""
    table = Table(title=printable(title, "table.title"), title_justify="left")
    for i, name in enumerate(columns):
        is_left = i == 0 or name in left
        table.add_column(printable(name), justify="left" if is_left else "right", no_wrap=not is_left, overflow="fold")
    for row in rows:
        table.add_row(*[printable(cell) for cell in row])
    return table


def facts_table(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    """A table of names and values without a header."""
    table = Table(title=printable(title, "table.title"), title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in rows:
        table.add_row(printable(name), printable(value))
    return table


def printable(text: str, style: str = "") -> Text:
    """The text for a terminal, with markup escaped (see `escaped`).  All terminal output is created here."""
    return Text(escaped(text), style)


def microseconds(seconds: float | None, clean: bool = True) -> str:
    """`123.4` for 123.4 us, with four digits; `123.4~` for a measurement that is not clean; `-` for None."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    us = seconds * 1e6
    return (f"{us:.0f}" if us >= 1000 else f"{us:.4g}") + ("" if clean else "~")


def rate(gflops: float | None) -> str:
    """`312` GFLOP/s; `-` if operations are not counted."""
    return f"{gflops:.3g}" if gflops and gflops < 100 else f"{gflops:.0f}" if gflops else "-"


def plural(n: int, noun: str, several: str = "") -> str:
    """`1 pool`, `2 pools`."""
    return f"{n} {noun if n == 1 else several or noun + 's'}"


def counted(errors: Mapping[str, int]) -> str:
    """`build_error 3, crash 1`."""
    return ", ".join(f"{name} {errors[name]}" for name in sorted(errors))


def sparkline(values: Sequence[float | None], width: int = 32) -> str:
    """A curve in at most `width` characters: low values are better, the scale is logarithmic, a dot marks a missing or infinite value."""
    if not values:
        return ""
    picks = [values[i * len(values) // width] for i in range(width)] if len(values) > width else list(values)
    picks[-1] = values[-1]
    picks = [v if v and math.isfinite(v) else None for v in picks]
    known = [math.log(v) for v in picks if v]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    step = (high - low) / (len(_BARS) - 1) or 1.0
    return "".join("·" if not v else _BARS[round((math.log(v) - low) / step)] for v in picks)
