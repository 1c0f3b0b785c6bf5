"""Texts of others where people or programs read them: in terminals, pages and pictures."""

from __future__ import annotations


def escaped(text: str, mark: str = "?") -> str:
    """The text with a mark for each character that is not printed, line ends excepted: names, messages and programs come from
    logs, tables and models, and these from anywhere.  An escape sequence could set a terminal's title, hide text, or change its order;
    and no XML may hold a control character."""
    return "".join(c if c.isprintable() or c == "\n" else mark for c in text)
