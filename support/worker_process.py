"""Run a worker process of the pool: build the job function once, then process jobs one after another.

Runs in a fresh interpreter.  The handshake is `("ready",)`, or `("broken", text)` followed by exit; the answer to
each job is `("done", value)` or `("error", class name, message, traceback)`.  Candidate code may do anything inside
a job, including crash the process; the pool detects this.
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
from tunesmith.support.registry import register_values, resolve

_PR_SET_PDEATHSIG = 1


def main(descriptor: int, parent: int) -> None:
    """Serve jobs from the connection with this file descriptor until the parent closes it or exits."""
    _die_with(parent)
    _no_core_dumps()
    faulthandler.enable()  # a crash leaves its Python stack in the output
    # A connection closed by the parent is the normal end.
    with contextlib.suppress(EOFError, ConnectionError), contextlib.closing(WaitingEnd(descriptor)) as pipe:
        try:
            function_path, init_args, memory_limit, values = pickle.loads(pipe.take())
            register_values(values)
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
        with _closed_at_the_end(function):
            while True:
                pipe.put(_answer(function, pipe.take()))


def _closed_at_the_end(function: Any) -> contextlib.AbstractContextManager[object]:
    return contextlib.closing(function) if hasattr(function, "close") else contextlib.nullcontext()


def _answer(function: Callable[[Any], object], job: bytes) -> bytes:
    """Run one job.  Every exception, including SystemExit, is returned as data."""
    try:
        return pickle.dumps(("done", function(pickle.loads(job))))
    except BaseException as error:
        try:
            message = str(error)
        except BaseException as again:
            message = f"its message cannot be made: {type(again).__name__}"
        return pickle.dumps(("error", type(error).__name__, message, traceback.format_exc()))


def _die_with(parent: int) -> None:
    """End this process when its parent ends, even if it hangs in native code and never reads the pipe again."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent exited before prctl
            os._exit(1)


def _no_core_dumps() -> None:
    """Disable core dumps: crashes are expected here, and each dump would cost seconds and gigabytes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _limit_memory(limit: int) -> None:
    """Make allocations beyond `limit` bytes fail in this process, before the machine runs out of memory."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    # Not RLIMIT_AS: GPU drivers reserve address space far beyond what they use.
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
