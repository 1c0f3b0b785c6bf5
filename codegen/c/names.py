"""Make C identifiers from the names of buffers, variables and functions."""

from __future__ import annotations

import re


def identifier(name: str) -> str:
    """A C identifier that resembles the name."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII) or "x"
    return f"_{text}" if text[0].isdigit() else text


def unused(base: str, taken: set[str]) -> str:
    """The name, with a number if it is taken; it is added to `taken`."""
    name, n = base, 1
    while name in taken:
        name, n = f"{base}_{n}", n + 1
    taken.add(name)
    return name
