"""Show the results of tunesmith as text, and in notebooks as HTML."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tunesmith.display.tables import as_text
from tunesmith.support.html_table import html_paragraph, html_table


class Rendered(ABC):
    """A result with `render`: `print` shows it as in a terminal, and a notebook as HTML tables."""

    __slots__ = ()

    @abstractmethod
    def render(self) -> RenderableType:
        """The result for a terminal."""

    def __str__(self) -> str:
        return as_text(self.render())

    def _repr_html_(self) -> str:
        return as_html(self.render())


def as_html(shown: RenderableType) -> str:
    """The output of a terminal as HTML: tables become tables, all other parts text.  All texts are escaped."""
    if isinstance(shown, Group):
        return "\n".join(map(as_html, shown.renderables))
    if not isinstance(shown, Table):
        return html_paragraph(shown.plain if isinstance(shown, Text) else as_text(shown))
    columns = [[str(cell) for cell in column.cells] for column in shown.columns]
    left = [i for i, column in enumerate(shown.columns) if column.justify in ("left", "default")]
    head = [str(column.header) for column in shown.columns] if shown.show_header else []
    return html_table(str(shown.title or ""), head, list(zip(*columns, strict=True)), left)
