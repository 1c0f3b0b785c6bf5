"""Write tables as HTML for notebooks.  All texts are escaped: names and messages come from files of any origin."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence

from tunesmith.support.escaped_text import escaped


def html_text(text: str) -> str:
    """The text with markup escaped, and unprintable characters replaced (see `escaped`)."""
    return html.escape(escaped(text))


def html_paragraph(text: str) -> str:
    """The text as a paragraph that keeps its line ends."""
    return f'<div style="white-space:pre-wrap">{html_text(text)}</div>'


def html_code(text: str) -> str:
    """The text as code in a frame that scrolls."""
    return f'<pre style="max-height:40em;overflow:auto">{html_text(text)}</pre>'


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """A table of texts as an HTML element.

    Args:
        title: the caption; none if empty.
        columns: the header; none if empty.
        rows: cells, as many in each row as there are columns.
        left: positions of the columns that are aligned to the left; the others are aligned to the right.
    """

    def line(cells: Sequence[str], tag: str) -> str:
        sides = ["left" if i in left else "right" for i in range(len(cells))]
        return (
            "<tr>" + "".join(f'<{tag} style="text-align:{s}">{html_text(c)}</{tag}>' for s, c in zip(sides, cells, strict=True)) + "</tr>"
        )

    caption = f'<caption style="text-align:left">{html_text(title)}</caption>' if title else ""
    head = f"<thead>{line(columns, 'th')}</thead>" if columns else ""
    return f"<table>{caption}{head}<tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"
