"""Time candidates by racing: stop early for candidates clearly slower than the best, and time the others thoroughly.

A search measures thousands of candidates, most of them slow, with a budget of 0.1 s each.  That is too short for the quiet windows of
`runtime.timing`, which detect other processes with a clock of 10 ms.  Instead, the kernel reports in nanoseconds how long the threads of
*this* process waited for a core during a sample, which is the time lost to other processes.  A sample with much waiting is repeated, and
never ends a race on its own: its time less the waiting differs from an undisturbed time.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from tunesmith.measure.policies import RacePolicy

_TASKS = Path("/proc/self/task")
_COLD_S = 0.005
"""If the first call takes longer, the cost of cold caches and sleeping threads is negligible."""
_WARM_S = 0.02
"""If the first call takes longer, it is a sample: cold caches and pages that are touched first add a few milliseconds."""
_COLD_FACTOR = 2.0
_PAUSE_S = 0.01
"""Pause after a disturbed sample; later pauses are longer."""
_MAX_NUMBER = 1_000_000
_SPREAD = 1.5
"""Ratio of samples of one candidate from which on they are not clean: another machine on the same processor leaves no waiting times."""


@dataclass(frozen=True, slots=True)
class Race:
    """Timing result of a candidate.

    Attributes:
        seconds: seconds per call, one entry per sample, in the order taken; never empty.
        clean: no sample was disturbed, and they agree.
        waited: mean over samples of the time threads waited for a core, summed over threads, as a fraction of the sample (may exceed 1);
            NaN if the system does not report it.
        number: calls per sample.
        gave_up: the candidate was clearly behind and timing stopped early.
    """

    seconds: tuple[float, ...]
    clean: bool
    waited: float
    number: int
    gave_up: bool


@dataclass(frozen=True, slots=True)
class _Sample:
    seconds: float
    waited: float
    """Waiting time as a fraction of the sample; NaN if unknown."""

    def at_least(self) -> float:
        """Lower bound of the undisturbed time: all waiting subtracted, as waiting of several threads may add up at barriers."""
        return self.seconds if math.isnan(self.waited) else self.seconds * max(0.0, 1.0 - self.waited)


def waiting() -> int | None:
    """Nanoseconds that the threads of this process have waited for a core, summed; None if the system does not report it.

    Read from the second number of `/proc/self/task/*/schedstat` (Linux with CONFIG_SCHED_INFO).  Takes 10 us per thread.
    """
    total = 0
    try:
        for thread in os.listdir(_TASKS):
            with open(f"{_TASKS}/{thread}/schedstat", "rb") as file:
                total += int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return total


Clock = Callable[[Callable[[], object], int], float]
"""Function that returns the total seconds of `number` consecutive calls."""


def wall_clock(call: Callable[[], object], number: int) -> float:
    """Total seconds by the process's clock, for calls that are complete when they return."""
    start = time.perf_counter()
    for _ in repeat(None, number):
        call()
    return time.perf_counter() - start


def race(
    call: Callable[[], object],
    policy: RacePolicy,
    best: float | None = None,
    flush: Callable[[], object] | None = None,
    clock: Clock = wall_clock,
) -> Race:
    """Time `call`, and stop early if it is clearly slower than the best.

    The first call is a quick estimate: if it is far behind, it is the only sample.  Then samples are taken, which end early in two ways.
    The candidate is behind if all of its clean samples exceed a multiple of the best time that falls with their number
    (`RacePolicy.behind`); a disturbed sample behind counts only together with another one, and the faster of the two is the result.  And
    fewer samples, at least two, are enough if they take as long together as all samples of a short call.

    Args:
        call: function to time.
        policy: timing policy.
        best: seconds of the best so far; None disables the comparison.
        flush: run untimed before each sample.
        clock: measures consecutive calls.
    """
    start = time.perf_counter()
    behind = math.inf if best is None else policy.behind(1) * best
    estimate = _sample(call, 1, clock)
    if estimate.at_least() > max(_COLD_S, _COLD_FACTOR * behind):
        if _disturbed(estimate, policy) and estimate.seconds < policy.limit_s:
            estimate = min(estimate, _sample(call, 1, clock), key=_Sample.at_least)
        if estimate.at_least() > max(_COLD_S, _COLD_FACTOR * behind):
            return _result([estimate], policy, 1, gave_up=True)
    number, taken = (1, None) if flush is not None else _number(call, estimate, policy, start + policy.limit_s, clock)
    clean: list[_Sample] = []
    disturbed: list[_Sample] = []
    late: list[_Sample] = []
    lost = 0.0
    while not _enough(clean, number, policy):
        begun = time.perf_counter()
        if clean or disturbed:
            if begun - start > policy.limit_s:
                break
            if lost > policy.patience_s and len(clean) + len(disturbed) >= policy.repeats:
                break
        if taken is None and flush is not None:
            flush()
        sample, taken = taken or _sample(call, number, clock), None
        if sample.at_least() > behind:
            late.append(sample)
            if len(late) > 1 or not _disturbed(sample, policy):
                return _result([min(late, key=_Sample.at_least)], policy, number, gave_up=True)
        if not _disturbed(sample, policy):
            clean.append(sample)
            n = len(clean)
            if best is not None and n < policy.repeats and min(s.seconds for s in clean) > policy.behind(n) * best:
                return _result(clean, policy, number, gave_up=True)
            continue
        disturbed.append(sample)
        if lost <= policy.patience_s:
            time.sleep(min(_PAUSE_S * len(disturbed), policy.patience_s))
        lost += time.perf_counter() - begun
    if not _enough(clean, number, policy):  # fill up with the least disturbed samples, so that medians remain comparable
        disturbed.sort(key=lambda s: s.waited)
        clean += disturbed[: policy.repeats - len(clean)]
    return _result(clean, policy, number, gave_up=False)


def _enough(clean: list[_Sample], number: int, policy: RacePolicy) -> bool:
    """Whether a candidate needs no more samples: it has all, or two that are as long together as all of a short call."""
    length = sum(s.seconds for s in clean) * number
    return len(clean) >= policy.repeats or (len(clean) >= 2 and length > policy.repeats * policy.min_repeat_ms * 1e-3 > 0)


def _disturbed(sample: _Sample, policy: RacePolicy) -> bool:
    """True if a sample should be repeated; False if its waiting time is unknown, as a repetition would add no information."""
    return sample.waited > policy.quiet_fraction


def _sample(call: Callable[[], object], number: int, clock: Clock) -> _Sample:
    """Mean seconds per call over `number` calls."""
    before = waiting()
    seconds = clock(call, number)
    after = waiting()
    if before is None or after is None:
        return _Sample(seconds / number, math.nan)
    return _Sample(seconds / number, (after - before) * 1e-9 / seconds)


def _number(call: Callable[[], object], estimate: _Sample, policy: RacePolicy, until: float, clock: Clock) -> tuple[int, _Sample | None]:
    """Number of calls per sample, such that a sample has the minimum length; and the first such sample, if it is warm."""
    least = policy.min_repeat_ms * 1e-3
    number, sample, taken = 1, estimate, estimate.at_least()
    while taken < least and time.perf_counter() < until and number < _MAX_NUMBER:
        # A cold call overestimates, so the number is refined until a whole sample was long enough.
        number = min(_MAX_NUMBER, max(number + 1, math.ceil(number * min(100.0, 1.05 * least / max(taken, 1e-7)))))
        sample = _sample(call, number, clock)
        taken = sample.seconds * number
    return number, sample if number > 1 or (taken > _WARM_S and not _disturbed(sample, policy)) else None


def _result(samples: list[_Sample], policy: RacePolicy, number: int, gave_up: bool) -> Race:
    waited = sum(s.waited for s in samples) / len(samples)
    clean = all(s.waited <= policy.quiet_fraction for s in samples) and not _disagree([s.seconds for s in samples], number, policy)
    return Race(tuple(s.seconds for s in samples), clean, waited, number, gave_up)


def _disagree(seconds: list[float], number: int, policy: RacePolicy) -> bool:
    """Whether samples of the minimum length differ much; shorter ones, such as those of single calls with cold caches, naturally do."""
    tolerated = max(_SPREAD, 1.0 + policy.quiet_fraction) * min(seconds)
    return min(seconds) * number >= policy.min_repeat_ms * 1e-3 > 0 and max(seconds) > tolerated
