"""What compiling gives: object bytes and what they are, the only thing a builder ships."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Artifact:
    """Compiled functions for one target.

    Attributes:
        data: relocatable object bytes.
        functions: names of the entry points.
        target: the target, as JSON.
        facts: what the compiler measured, for records (sizes, times in seconds).
    """

    data: bytes
    functions: tuple[str, ...]
    target: dict[str, Any]
    facts: dict[str, float] = field(default_factory=dict)
