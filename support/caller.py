"""Attribute warnings to the line of user code that called the library."""

from __future__ import annotations

import sys
from types import FrameType


def stacklevel() -> int:
    """The `stacklevel` at which a warning of the calling function names the line of user code."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "tunesmith":
        frame, level = frame.f_back, level + 1
    return level
