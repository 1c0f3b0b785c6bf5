"""Measure rates in a fresh process, which starts with empty pools and caches and releases its memory when it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from tunesmith.ir.target.target import Target
from tunesmith.support.errors import RunError
from tunesmith.support.worker_pool import WorkerPool

_TIMEOUT_S = 120.0
_PATIENCE_S = 1.0


def print_progress(message: str) -> None:
    """Print one line on standard error."""
    print(message, file=sys.stderr, flush=True)


def measure_in_worker(
    factory: str, target: Target, device: str, progress: Callable[[str], None], *, doing: str, env: Mapping[str, str] | None = None
) -> object:
    """The answer of a worker process to `target`.

    Args:
        factory: dotted path of the worker's factory; its job takes the target as JSON and returns rates as JSON.
        target: the device to measure, sent with its attributes.
        device: the device in words, for the error message.
        progress: receives a message if measuring takes longer than a second.
        doing: the activity in words, for this message.
        env: environment variables of the process.

    Raises:
        RunError: the process failed or did not answer.
    """
    with WorkerPool(factory, 1, env=env, timeout=_TIMEOUT_S) as pool:
        pool.submit(target.to_json(facts=True))
        result = pool.next_result(_PATIENCE_S)
        if result is None:
            progress(f"{doing} (once, takes a few seconds) ...")
            result = pool.next_result()
    if result is None or result.error is not None:
        reason = f"{result.message}\n{result.detail}" if result else "the measuring process did not answer"
        raise RunError(f"cannot measure the rates of {device}: {reason}")
    return result.value
