"""Replace unprintable characters in untrusted text before it is shown in terminals, pages and images."""

from __future__ import annotations


def escaped(text: str, mark: str = "?") -> str:
    """The text with `mark` in place of each unprintable character except line ends.

    Names, messages and programs come from logs, tables and models of any origin.  An escape sequence could set the title of a terminal,
    or hide or reorder text, and XML forbids control characters.
    """
    return "".join(c if c.isprintable() or c == "\n" else mark for c in text)
