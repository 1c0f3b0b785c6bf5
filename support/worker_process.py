"""The far end of a worker pool's pipe: build the job function once, then answer one job after another.

Runs in a fresh interpreter.  It answers with `("ready",)` once, or `("broken", text)` and the end; then for
every job with `("done", value)` or `("error", class name, message, traceback)`.  Candidate code may do
anything inside a job; what it breaks is noticed at the other end.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import pickle
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, cast

from tunesmith.support.errors import UserError
from tunesmith.support.message_pipe import WaitingEnd
from tunesmith.support.registry import resolve

_PR_SET_PDEATHSIG = 1


def main(descriptor: int, parent: int) -> None:
    """Serve jobs from the connection with this file descriptor until the parent closes it or is gone."""
    _die_with(parent)
    _no_core_dumps()
    faulthandler.enable()  # a crash leaves its Python stack in the output
    # What the parent has closed is the end.
    with contextlib.suppress(EOFError, ConnectionError), contextlib.closing(WaitingEnd(descriptor)) as pipe:
        try:
            function_path, init_args, memory_limit = pickle.loads(pipe.take())
            if memory_limit is not None:
                _limit_memory(memory_limit)
            factory = cast(Callable[..., Callable[[Any], object]], resolve(function_path))
            function = factory(*init_args)
            if not callable(function):
                raise UserError(f"{function_path} returned {function!r}; it must return the function that does a job")
        except BaseException:
            pipe.put(pickle.dumps(("broken", traceback.format_exc())))
            return
        pipe.put(pickle.dumps(("ready",)))
        while True:
            pipe.put(_answer(function, pipe.take()))


def _answer(function: Callable[[Any], object], job: bytes) -> bytes:
    """Do one job.  Whatever it raises, SystemExit included, is data."""
    try:
        return pickle.dumps(("done", function(pickle.loads(job))))
    except BaseException as error:
        try:
            message = str(error)
        except BaseException as again:
            message = f"its message cannot be made: {type(again).__name__}"
        return pickle.dumps(("error", type(error).__name__, message, traceback.format_exc()))


def _die_with(parent: int) -> None:
    """End this process when its parent ends, even if it hangs in native code and never looks at the pipe again."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before the line above
            os._exit(1)


def _no_core_dumps() -> None:
    """Crashes are expected here: do not spend seconds and gigabytes on each."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _limit_memory(limit: int) -> None:
    """Let allocations beyond `limit` bytes fail in this process instead of bringing the machine down."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    # Not RLIMIT_AS: GPU drivers reserve address space far beyond what they use.
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
