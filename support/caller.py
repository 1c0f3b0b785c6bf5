"""Where a warning belongs: in the user's code, which called the library."""

from __future__ import annotations

import sys
from types import FrameType


def stacklevel() -> int:
    """The `stacklevel` with which the caller of this function warns about the line of the user's that led to it."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "tunesmith":
        frame, level = frame.f_back, level + 1
    return level
