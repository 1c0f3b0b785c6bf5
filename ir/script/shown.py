"""Show programs as their script: printed, and in notebooks."""

from __future__ import annotations

from tunesmith.support.html_table import html_code


class ShownAsScript:
    """A program whose `str` is its script; `repr` is one line."""

    __slots__ = ()

    def show(self) -> None:
        """Print the script, which parses back."""
        print(self)

    def _repr_html_(self) -> str:
        return html_code(str(self))
