"""Suggest the known name closest to a misspelled one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CUTOFF = 0.6
"""Similarity from which a name is suggested, as `difflib` computes it."""
_MAX_NAME = 256
"""Characters of a name beyond which none is suggested: the comparison takes quadratic time."""


def nearest_name(name: str, known: Iterable[str], cutoff: float = CUTOFF) -> str | None:
    """The closest known name; None if none is similar."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff) if len(name) <= _MAX_NAME else []
    return near[0] if near else None


def did_you_mean(name: str, known: Iterable[str], cutoff: float = CUTOFF) -> str:
    """` Did you mean 'NAME'?`, to append to a message; empty if no name is similar."""
    near = nearest_name(name, known, cutoff)
    return f" Did you mean {near!r}?" if near is not None else ""
