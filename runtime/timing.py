"""Timing that can be trusted on a machine others use too: samples are taken in windows, and only quiet ones count.

A window is quiet while everything that is not this process (its threads and finished children count as it) used less
than a few percent of one core, as `/proc/stat` tells; samples of other windows are dropped and taken again.  This
is what makes medians of different minutes comparable; when no quiet window comes, the result says so.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from tunesmith.support.errors import RunError, UserError

_STAT = Path("/proc/stat")
_PAUSE_S = 0.15
"""Rest after a noisy window: what disturbs usually lasts longer than a few milliseconds."""
_HICCUP_S = 0.05
"""Longer than any interruption by the scheduler."""
_WINDOW_SAMPLES = 3
"""Samples a window has at least, however long one takes."""


@dataclass(frozen=True, slots=True)
class TimingPolicy:
    """How a function is timed.  A value that is stored with the samples.

    Args:
        warmup: untimed calls first.
        min_repeat_ms: a sample is the mean of so many calls in a row that they take this long together.
        number: calls in a sample; None chooses it from `min_repeat_ms`.
        repeats: clean samples wanted; a window that was begun is finished, so that there may be more.
        quiet_fraction: a window counts when foreign processes used less than this part of one core in it.
            `math.inf` takes what comes, and exactly as much as is wanted.
        window_s: length of a window, at least.  Below 0.1 s the clock of `/proc/stat`, 10 ms, makes windows look noisy.
        limit_s: time after which the best that was seen is given, clean or not.
    """

    warmup: int = 3
    min_repeat_ms: float = 2.0
    number: int | None = None
    repeats: int = 7
    quiet_fraction: float = 0.08
    window_s: float = 0.25
    limit_s: float = 12.0

    def __post_init__(self) -> None:
        wrong = [
            name
            for name, good in (
                ("warmup", self.warmup >= 0),
                ("min_repeat_ms", self.min_repeat_ms >= 0),
                ("number", self.number is None or self.number >= 1),
                ("repeats", self.repeats >= 1),
                ("quiet_fraction", self.quiet_fraction >= 0),
                ("window_s", self.window_s >= 0),
                ("limit_s", self.limit_s > 0),
            )
            if not good
        ]
        if wrong:
            values = ", ".join(f"{name}={getattr(self, name)!r}" for name in wrong)
            raise UserError(f"timing policy out of range: {values}. Counts of samples and calls start at 1, times at 0")


@dataclass(frozen=True, slots=True)
class Samples:
    """What was measured.

    Args:
        seconds: seconds of one call, one entry a sample, in the order taken; never empty.
        clean: all samples come from quiet windows.
        foreign: mean part of one core that other processes used in the windows the samples come from.
        number: calls in each sample.
    """

    seconds: tuple[float, ...]
    clean: bool
    foreign: float
    number: int = 1

    @property
    def median(self) -> float:
        """Median of the samples, in seconds."""
        return statistics.median(self.seconds)

    @property
    def minimum(self) -> float:
        """Fastest sample, in seconds."""
        return min(self.seconds)

    def quantile(self, q: float) -> float:
        """The q-quantile of the samples in seconds, interpolated; `quantile(0.9)` is the slow end."""
        ordered = sorted(self.seconds)
        at = q * (len(ordered) - 1)
        low = math.floor(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (at - low)

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        """`12.3 us (min 11.9, p90 12.8, 21 samples of 163 calls)`, in a fitting unit."""
        scale, unit = (1e6, "us") if self.median < 1e-3 else (1e3, "ms") if self.median < 1 else (1.0, "s")
        quiet = "" if self.clean else f"; noisy: others used {self.foreign:.0%} of a core"
        return (
            f"{self.median * scale:.4g} {unit} (min {self.minimum * scale:.4g}, p90 {self.quantile(0.9) * scale:.4g}, "
            f"{len(self.seconds)} samples of {self.number} calls{quiet})"
        )


@dataclass(frozen=True, slots=True)
class CpuClock:
    """CPU time used so far: `now()` reads it, and two readings tell what others did in between."""

    wall: float
    everybody: float
    own: float

    @staticmethod
    def now() -> CpuClock:
        """Wall time, CPU seconds of the whole machine (stolen time included), and those of this process.

        Raises:
            RunError: the system does not tell (no `/proc/stat`).
        """
        try:
            with _STAT.open() as file:
                user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
        except (OSError, ValueError) as error:
            raise RunError(
                f"quiet windows need {_STAT}, which cannot be read ({error}). Time without them: TimingPolicy(quiet_fraction=math.inf)"
            ) from error
        own = os.times()
        ticks = user + nice + system + irq + softirq + steal
        busy = own.user + own.system + own.children_user + own.children_system
        return CpuClock(time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), busy)

    def foreign(self, later: CpuClock) -> float:
        """CPU seconds that anything but this process used until `later`, as a fraction of one core."""
        others = (later.everybody - self.everybody) - (later.own - self.own)
        return max(0.0, others / max(1e-9, later.wall - self.wall))


def measure(call: Callable[[], object], policy: TimingPolicy | None = None) -> Samples:
    """Time one callable.

    A sample is the mean over `number` calls in a row.  The loop around them is Python's and its cost is part of the
    sample: about 20 ns a call, and what the call itself costs (a TVM-FFI function with prepared arguments 0.1 us).

    Args:
        call: what to time; called many times.
        policy: how; by default `TimingPolicy()`.
    Raises:
        RunError: quiet windows are wanted and the system cannot tell them.
    """
    return interleaved({"": call}, policy)[""]


def interleaved(
    calls: Mapping[str, Callable[[], object]], policy: TimingPolicy | None = None, rounds: int | None = None
) -> dict[str, Samples]:
    """Time several callables in turn, so that clock drift and noise of the minute meet all of them alike.

    A round takes one sample of each; who begins moves on by one each round.  Where there are several, a turn begins
    with an untimed call, so that nobody pays for the caches and the sleeping threads that the one before left behind.
    A window is judged as a whole: its rounds count for all or for none.

    Args:
        calls: what to time, by name.
        policy: how; `limit_s` is for each callable, that is, it is multiplied by their number.
        rounds: clean rounds wanted; by default the policy's `repeats`.
    Returns:
        Samples of each name, equally many.
    Raises:
        RunError: quiet windows are wanted and the system cannot tell them.
    """
    policy = policy or TimingPolicy()
    if not calls:
        return {}
    wanted = policy.repeats if rounds is None else rounds
    if wanted < 1:
        raise UserError(f"cannot time {wanted} rounds: ask for at least 1")
    deadline = time.perf_counter() + policy.limit_s * len(calls)
    numbers = {name: _warm_up(call, policy, deadline) for name, call in calls.items()}
    quiet: list[_Window] = []
    best: _Window | None = None
    while sum(len(window.rounds) for window in quiet) < wanted:
        window = _window(calls, numbers, policy, wanted, deadline)
        if window.foreign < policy.quiet_fraction:
            quiet.append(window)
        elif best is None or window.foreign < best.foreign:
            best = window
        if time.perf_counter() > deadline:
            break
        if not quiet or quiet[-1] is not window:
            time.sleep(_PAUSE_S)
    if not quiet and best is not None:
        return _samples([best], numbers, clean=False)
    return _samples(quiet, numbers, clean=True)


@dataclass(frozen=True, slots=True)
class _Window:
    rounds: list[dict[str, float]]
    foreign: float


def _samples(windows: list[_Window], numbers: Mapping[str, int], clean: bool) -> dict[str, Samples]:
    foreign = statistics.fmean(window.foreign for window in windows)
    rounds = [times for window in windows for times in window.rounds]
    return {name: Samples(tuple(times[name] for times in rounds), clean, foreign, number) for name, number in numbers.items()}


def _warm_up(call: Callable[[], object], policy: TimingPolicy, deadline: float) -> int:
    """Calls in one sample, after the untimed calls."""
    for _ in range(policy.warmup):
        call()
        if time.perf_counter() > deadline:
            break
    if policy.number is not None:
        return policy.number
    least = policy.min_repeat_ms * 1e-3
    number = 1
    while True:
        taken = _sample(call, number) * number
        if least <= taken < _HICCUP_S:
            # Long enough, or only interrupted: a sleeping thread that is woken costs milliseconds.
            taken = min(taken, _sample(call, number) * number)
        if taken >= least or time.perf_counter() > deadline:
            return number
        # One call is too short to tell, so the estimate is refined until a whole sample has been long enough.
        number = max(number + 1, math.ceil(number * min(100.0, 1.05 * least / max(taken, 1e-7))))


def _window(
    calls: Mapping[str, Callable[[], object]], numbers: Mapping[str, int], policy: TimingPolicy, wanted: int, deadline: float
) -> _Window:
    """Rounds for as long as a window lasts, and what others did meanwhile."""
    names = list(calls)
    watch = policy.quiet_fraction < math.inf
    length, least = (policy.window_s, min(_WINDOW_SAMPLES, wanted)) if watch else (0.0, wanted)
    before = CpuClock.now() if watch else None
    start = time.perf_counter()
    rounds: list[dict[str, float]] = []
    while time.perf_counter() - start < length or len(rounds) < least:
        first = len(rounds) % len(names)
        times = {}
        for name in names[first:] + names[:first]:
            if len(names) > 1:
                calls[name]()
            times[name] = _sample(calls[name], numbers[name])
        rounds.append(times)
        if time.perf_counter() > deadline:
            break
    return _Window(rounds, before.foreign(CpuClock.now()) if before else 0.0)


def _sample(call: Callable[[], object], number: int) -> float:
    """Seconds of one call, mean over `number` of them."""
    start = time.perf_counter()
    for _ in repeat(None, number):
        call()
    return (time.perf_counter() - start) / number
