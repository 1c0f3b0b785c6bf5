"""Make names unique."""

from __future__ import annotations

from collections.abc import Iterable


def unique_names(names: Iterable[str]) -> list[str]:
    """Make names unique: a number is appended to repeated names."""
    taken: set[str] = set()
    found = []
    for name in names:
        fresh, number = name, 1
        while fresh in taken:
            fresh, number = f"{name}_{number}", number + 1
        taken.add(fresh)
        found.append(fresh)
    return found
