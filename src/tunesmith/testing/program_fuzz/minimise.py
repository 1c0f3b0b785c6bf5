"""Minimise a failing trial: remove steps, then parts of the program, while the kind of failure is unchanged.

Trials run in a worker process, so that crashes and hangs are reported as findings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tunesmith.support.worker_pool import JobResult, WorkerPool
from tunesmith.testing.program_fuzz import shrink
from tunesmith.testing.program_fuzz.check import Finding
from tunesmith.testing.program_fuzz.worker import ATTRIBUTE, MARK, Trial

TRIAL_SECONDS = 25.0
Attempt = Callable[[Trial], Finding | None]
"""Function that runs a trial and returns its finding, or None."""


def minimise(trial: Trial, kind: str, attempt: Attempt, seconds: float) -> tuple[Trial, Finding | None]:
    """The smallest trial of this kind found in the time limit, and its finding; None if the failure is not reproduced."""
    until = time.monotonic() + seconds
    finding = attempt(trial)
    if finding is None or finding.kind != kind:
        return trial, None
    changed = True
    while changed and time.monotonic() < until:
        changed = False
        for smaller in candidates(trial):
            if time.monotonic() > until:
                break
            found = attempt(smaller)
            if found is not None and found.kind == kind:
                trial, finding, changed = smaller, found, True
                break
    return trial, finding


def candidates(trial: Trial) -> Iterator[Trial]:
    """Smaller trials, largest reductions first."""
    n = len(trial.steps)
    for size in [x for x in (n, n // 2, n // 4) if x > 1]:
        for at in range(0, n, size):
            yield replace(trial, steps=trial.steps[:at] + trial.steps[at + size :])
    for at in reversed(range(n)):
        yield replace(trial, steps=trial.steps[:at] + trial.steps[at + 1 :])
    for program in shrink.smaller(trial.program):
        yield replace(trial, program=program)
    if not trial.target.endswith("-num-cores=1"):
        yield replace(trial, target=trial.target[:-1] + "1")


def in_pool(trial: Trial, pool: WorkerPool, kind: str = "") -> Finding | None:
    """The finding of a trial that runs in a worker process, or None."""
    pool.submit(("trial", trial, kind), timeout=TRIAL_SECONDS)
    result = pool.next_result()
    assert result is not None
    if result.error is None:
        value = result.value
        return value if isinstance(value, Finding) else None
    return crash(result)[1]


def crash(result: JobResult) -> tuple[int, Finding]:
    """The schedule and finding of a job whose process crashed, hung or raised."""
    marks = [line for line in result.detail.splitlines() if line.startswith(MARK)]
    words = marks[-1].split(maxsplit=2) if marks else [MARK, "0", "start"]
    phase = words[2] if len(words) > 2 else "?"
    if result.error == "error":
        return int(words[1]), Finding(f"fuzzer: {result.exception}", result.detail[-3000:])
    if phase.startswith(ATTRIBUTE):
        return int(words[1]), Finding(phase.removeprefix(ATTRIBUTE), result.detail[-1500:])
    what = f"hang in {phase}" if result.error == "timeout" else f"crash in {phase}: {result.message}"
    return int(words[1]), Finding(what, result.detail[-1500:])
