"""Attribute warnings to the line of user code that called the library."""

from __future__ import annotations

import sys
from types import FrameType

_LIBRARIES = sys.stdlib_module_names | {"tunesmith"}
"""Top-level modules that call no tunesmith function on their own account: `functools.cached_property` calls one for its reader."""


def stacklevel() -> int:
    """The `stacklevel` at which a warning of the calling function names the line of user code, or its own line without any."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    return level if frame is not None else 1
