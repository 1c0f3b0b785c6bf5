"""Temporary folders that are removed when the process ends, also by SIGTERM.

Python runs neither `finally` nor exit handlers when SIGTERM ends it, so batch systems and `kill` would leave the folders.  The first
clean-up that is registered in the main thread installs a handler, unless the program has its own: it cleans up, and lets the signal end
the process as before.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType


class CleanUp:
    """A function that is called once: when this is called, its owner is collected, or the process exits or gets SIGTERM or SIGHUP.

    Args:
        owner: keeps this.  The function must not refer to it.
        function: what to call.
        arguments: of the function.
    """

    def __init__(self, owner: object, function: Callable[..., object], *arguments: object) -> None:
        self._finalizer = weakref.finalize(owner, function, *arguments)
        self._process = os.getpid()
        _clean_ups.add(self)
        for number in _SIGNALS if threading.current_thread() is threading.main_thread() else ():
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _terminate)

    def __call__(self) -> None:
        if self._process == os.getpid():  # a forked child has the parent's
            self._finalizer()


class _Scope:
    """What a `with` statement owns."""


_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""What `kill` and a closed terminal send."""
_clean_ups: weakref.WeakSet[CleanUp] = weakref.WeakSet()


@contextlib.contextmanager
def temporary_folder(prefix: str = "tunesmith-", parent: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """A new folder, removed with all that is in it at the end of the `with` block, or of the process.

    Args:
        prefix: of its name.
        parent: where it goes; by default where temporary files go.
    """
    folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
    scope = _Scope()
    remove = CleanUp(scope, remove_folder, folder)
    try:
        yield Path(folder)
    finally:
        remove()


def remove_folder(folder: str | os.PathLike[str]) -> None:
    """Remove a folder and what is in it, as far as that is possible."""
    shutil.rmtree(folder, ignore_errors=True)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Clean up what this process has registered, and end as the signal ends a process that does not handle it."""
    for clean_up in list(_clean_ups):
        with contextlib.suppress(Exception):
            clean_up()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
