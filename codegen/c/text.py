"""Match parentheses in C source text."""

from __future__ import annotations


def closes(text: str, at: int) -> bool:
    """Whether the parenthesis opened at `at` closes at the end of the text."""
    depth = 0
    for i in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i == len(text) - 1
    return False
