"""Racing: a candidate that is clearly behind the best is not timed a second time, and one that is not is timed well.

A search measures thousands of candidates, most of them far from the best, and has a tenth of a second for each.  That is
too short for the quiet windows of `runtime.timing`, which see other processes through a clock of 10 ms.  Here the
kernel is asked how long the threads of *this* process waited for a core while a sample was taken: nanoseconds, and
exactly the time that others took from it.  A sample with much waiting is taken again, and alone it ends no race: what is left of
it after the waiting is not what the candidate takes undisturbed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path

from tunesmith.support.errors import UserError

_TASKS = Path("/proc/self/task")
_COLD_S = 0.005
"""A first call that takes longer pays a negligible part of it for cold caches and threads that were asleep."""
_COLD_FACTOR = 2.0
_PAUSE_S = 0.01
"""Rest after a disturbed sample; the next pauses are longer."""
_MAX_NUMBER = 1_000_000


@dataclass(frozen=True, slots=True)
class RacePolicy:
    """How a candidate of a search is timed.  A value that is stored with its record.

    Args:
        min_repeat_ms: a sample is the mean of so many calls in a row that they take this long together.
        repeats: samples of a candidate that is not clearly behind.
        give_up: a candidate is clearly behind when a sample, less the time it waited, is this many times the best.
        quiet_fraction: a sample counts as clean when its threads waited for less than this part of it, all together.
        patience_s: seconds for samples that are taken again because they were not clean.
        limit_s: no sample is begun after these seconds.
        flush_bytes: so much memory is written before each sample, which is then a single call; 0 for warm caches.
        constant_bytes: constants are taken from another place in so much memory at each call, as cold as weights are in a model
            whose other layers ran meanwhile; 0 for the same ones, which stay in the caches.
    """

    min_repeat_ms: float = 3.0
    repeats: int = 5
    give_up: float = 1.5
    quiet_fraction: float = 0.05
    patience_s: float = 0.1
    limit_s: float = 2.0
    flush_bytes: int = 0
    constant_bytes: int = 0

    def __post_init__(self) -> None:
        good = {
            "min_repeat_ms": self.min_repeat_ms >= 0,
            "repeats": self.repeats >= 1,
            "give_up": self.give_up > 1,
            "quiet_fraction": self.quiet_fraction >= 0,
            "patience_s": self.patience_s >= 0,
            "limit_s": self.limit_s > 0,
            "flush_bytes": self.flush_bytes >= 0,
            "constant_bytes": self.constant_bytes >= 0,
        }
        wrong = ", ".join(f"{name}={getattr(self, name)!r}" for name, fine in good.items() if not fine)
        if wrong:
            raise UserError(f"race policy out of range: {wrong}. repeats starts at 1, give_up and limit_s are above 1 and 0, others from 0")

    def to_json(self) -> dict[str, object]:
        """As a record holds it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Race:
    """How a candidate ran.

    Attributes:
        seconds: seconds of one call, one entry a sample, in the order taken; never empty.
        clean: no sample was disturbed.
        waited: mean of the time that threads waited for a core in a sample, all together, as a part of the sample, which may
            be above 1; NaN where the system does not tell.
        number: calls in each sample.
        gave_up: it was clearly behind and not timed further.
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
    """As a part of the sample; NaN if unknown."""

    def at_least(self) -> float:
        """What is left when all the waiting is taken off: at barriers it adds up, and others cannot be blamed for more."""
        return self.seconds if math.isnan(self.waited) else self.seconds * max(0.0, 1.0 - self.waited)


def waiting() -> int | None:
    """Nanoseconds that the threads of this process have waited for a core, all together; None where the system does not tell.

    It is the second number of `/proc/self/task/*/schedstat` (Linux with CONFIG_SCHED_INFO).  Takes 10 us a thread.
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
"""Seconds that so many calls in a row take, all together."""


def wall_clock(call: Callable[[], object], number: int) -> float:
    """By the clock of the process, for calls that are done when they return."""
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
    """Time `call` as far as it deserves.

    The first call is a look: one that is far behind ends there, with that one sample.  Then follow samples: the first that
    is clearly behind ends the race, or if it was disturbed the second, and the lesser of the two is what remains.

    Args:
        call: what to time.
        policy: how.
        best: seconds of the best so far; None times to the end.
        flush: run before each sample, untimed.
        clock: how long calls take.
    """
    start = time.perf_counter()
    behind = math.inf if best is None else policy.give_up * best
    look = _sample(call, 1, clock)
    if look.at_least() > max(_COLD_S, _COLD_FACTOR * behind):  # most of what waited is cold as well
        if _disturbed(look, policy) and look.seconds < policy.limit_s:
            look = min(look, _sample(call, 1, clock), key=_Sample.at_least)
        if look.at_least() > max(_COLD_S, _COLD_FACTOR * behind):
            return _result([look], policy, 1, gave_up=True)
    number = 1 if flush is not None else _number(call, look.seconds, policy, start + policy.limit_s, clock)
    clean: list[_Sample] = []
    disturbed: list[_Sample] = []
    late: list[_Sample] = []
    lost = 0.0
    while len(clean) < policy.repeats:
        begun = time.perf_counter()
        if clean or disturbed:
            if begun - start > policy.limit_s:
                break
            if lost > policy.patience_s and len(clean) + len(disturbed) >= policy.repeats:
                break
        if flush is not None:
            flush()
        sample = _sample(call, number, clock)
        if sample.at_least() > behind:
            late.append(sample)
            if len(late) > 1 or not _disturbed(sample, policy):
                return _result([min(late, key=_Sample.at_least)], policy, number, gave_up=True)
        if not _disturbed(sample, policy):
            clean.append(sample)
            continue
        disturbed.append(sample)
        if lost <= policy.patience_s:
            time.sleep(min(_PAUSE_S * len(disturbed), policy.patience_s))
        lost += time.perf_counter() - begun
    if len(clean) < policy.repeats:  # fill up with the least disturbed, so that the median means the same
        disturbed.sort(key=lambda s: s.waited)
        clean += disturbed[: policy.repeats - len(clean)]
    return _result(clean, policy, number, gave_up=False)


def _disturbed(sample: _Sample, policy: RacePolicy) -> bool:
    """Whether to take it again; not if its waiting is unknown, for that would tell no more."""
    return sample.waited > policy.quiet_fraction


def _sample(call: Callable[[], object], number: int, clock: Clock) -> _Sample:
    """Seconds of one call, mean over `number` of them."""
    before = waiting()
    seconds = clock(call, number)
    after = waiting()
    if before is None or after is None:
        return _Sample(seconds / number, math.nan)
    return _Sample(seconds / number, (after - before) * 1e-9 / seconds)


def _number(call: Callable[[], object], seconds: float, policy: RacePolicy, until: float, clock: Clock) -> int:
    """Calls that make a sample long enough."""
    least = policy.min_repeat_ms * 1e-3
    number, taken = 1, seconds
    while taken < least and time.perf_counter() < until and number < _MAX_NUMBER:
        # A cold call overestimates, so the estimate is refined until a whole sample was long enough.
        number = min(_MAX_NUMBER, max(number + 1, math.ceil(number * min(100.0, 1.05 * least / max(taken, 1e-7)))))
        taken = _sample(call, number, clock).seconds * number
    return number


def _result(samples: list[_Sample], policy: RacePolicy, number: int, gave_up: bool) -> Race:
    waited = sum(s.waited for s in samples) / len(samples)
    clean = all(s.waited <= policy.quiet_fraction for s in samples)
    return Race(tuple(s.seconds for s in samples), clean, waited, number, gave_up)
