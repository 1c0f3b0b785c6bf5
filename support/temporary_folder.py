"""Create temporary folders that are removed when the process ends, including by SIGTERM.

Python runs neither `finally` blocks nor exit handlers on SIGTERM, so batch systems and `kill` would leave the folders behind.  The first
clean-up registered in the main thread installs a signal handler, unless the program has its own: it cleans up and then lets the signal
end the process as before.
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
    """A function called once: on an explicit call, when its owner is collected, at process exit, or on SIGTERM or SIGHUP.

    Args:
        owner: the object whose collection triggers the call.  The function must not refer to it.
        function: the function to call.
        arguments: arguments of the function.
    """

    def __init__(self, owner: object, function: Callable[..., object], *arguments: object) -> None:
        self._finalizer = weakref.finalize(owner, function, *arguments)
        self._process = os.getpid()
        _clean_ups.add(self)
        for number in _SIGNALS if threading.current_thread() is threading.main_thread() else ():
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _terminate)

    def __call__(self) -> None:
        if self._process == os.getpid():  # a forked child must not clean up for its parent
            self._finalizer()


class _Scope:
    """Owner of the clean-up of a `with` block."""


_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Signals sent by `kill` and by a closed terminal."""
_clean_ups: weakref.WeakSet[CleanUp] = weakref.WeakSet()


@contextlib.contextmanager
def temporary_folder(prefix: str = "tunesmith-", parent: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Create a folder that is removed with its contents at the end of the `with` block or of the process.

    Args:
        prefix: prefix of the folder name.
        parent: the parent folder; by default the system folder for temporary files.
    """
    folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
    scope = _Scope()
    remove = CleanUp(scope, remove_folder, folder)
    try:
        yield Path(folder)
    finally:
        remove()


def remove_folder(folder: str | os.PathLike[str]) -> None:
    """Remove a folder and its contents; errors are ignored."""
    shutil.rmtree(folder, ignore_errors=True)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Run the clean-ups of this process, then end it by the default action of the signal."""
    for clean_up in list(_clean_ups):
        with contextlib.suppress(Exception):
            clean_up()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
