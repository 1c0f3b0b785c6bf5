"""Time functions reliably on a shared machine: samples are taken in windows, and only quiet windows count.

A window is quiet if other processes used less than a few percent of one core in it, according to `/proc/stat` (threads
and finished children of this process count as this process).  Samples of other windows are discarded and repeated, so
that medians measured at different times are comparable.  If there was no quiet window, the result is marked as not clean.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat
from numbers import Real
from pathlib import Path

from tunesmith.support.arguments import as_count
from tunesmith.support.errors import RunError, UserError

LONGEST = "TUNESMITH_TIMING_LIMIT"
"""Environment variable: the most seconds for a callable, for machines that are never quiet, such as those of continuous integration."""
_STAT = Path("/proc/stat")
_PAUSE_S = 0.15
"""Pause after a noisy window: disturbances usually last longer than a few milliseconds."""
_HICCUP_S = 0.05
"""Longer than any interruption by the scheduler."""
_WINDOW_SAMPLES = 3
"""Minimal number of samples in a window, independent of their duration."""


@dataclass(frozen=True, slots=True)
class TimingPolicy:
    """Parameters of a timing.  Stored with the samples.

    Args:
        warmup: number of untimed calls at the start.
        min_repeat_ms: minimal duration of a sample, which is the mean over consecutive calls.
        number: calls in a sample; None derives it from `min_repeat_ms`.
        repeats: clean samples required; a started window is finished, so that there may be more.
        quiet_fraction: a window counts if other processes used less than this fraction of one core in it.
            `math.inf` accepts all samples, and takes exactly `repeats`.
        window_s: minimal length of a window.  Below 0.1 s the resolution of `/proc/stat`, 10 ms, makes windows look noisy.
        limit_s: time limit, after which the best samples so far are returned, clean or not.
    """

    warmup: int = 3
    min_repeat_ms: float = 2.0
    number: int | None = None
    repeats: int = 7
    quiet_fraction: float = 0.08
    window_s: float = 0.25
    limit_s: float = 12.0

    def __post_init__(self) -> None:
        for name, least in (("warmup", 0), ("number", 1), ("repeats", 1)):
            if getattr(self, name) is not None or name != "number":
                object.__setattr__(self, name, as_count(name, getattr(self, name), least))
        for name in ("min_repeat_ms", "quiet_fraction", "window_s", "limit_s"):
            value = getattr(self, name)
            if not isinstance(value, Real) or isinstance(value, bool) or not float(value) >= 0 or (name == "limit_s" and value == 0):
                raise UserError(f"{name}={value!r:.200}: expected {'a positive number' if name == 'limit_s' else 'a number of at least 0'}")


@dataclass(frozen=True, slots=True)
class Samples:
    """Measured times of a function.

    Args:
        seconds: seconds per call, one entry per sample, in the order taken; never empty.
        clean: all samples are from quiet windows.
        foreign: mean fraction of one core that other processes used in the windows of the samples.
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
        """`12.3 us (min 11.9, p90 12.8, 21 samples of 163 calls)`, in us, ms or s."""
        scale, unit = (1e6, "us") if self.median < 1e-3 else (1e3, "ms") if self.median < 1 else (1.0, "s")
        quiet = "" if self.clean else f"; noisy: others used {self.foreign:.0%} of a core"
        return (
            f"{self.median * scale:.4g} {unit} (min {self.minimum * scale:.4g}, p90 {self.quantile(0.9) * scale:.4g}, "
            f"{len(self.seconds)} samples of {self.number} calls{quiet})"
        )


@dataclass(frozen=True, slots=True)
class CpuClock:
    """A reading of CPU time; the difference of two readings gives the load of other processes in between."""

    wall: float
    everybody: float
    own: float

    @staticmethod
    def now() -> CpuClock:
        """Wall time, CPU seconds of the whole machine (stolen time included), and those of this process.

        Raises:
            RunError: the system has no readable `/proc/stat`.
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

    @staticmethod
    def readable() -> CpuClock | None:
        """`now`, or None on a system without `/proc/stat`."""
        try:
            return CpuClock.now()
        except RunError:
            return None

    def foreign(self, later: CpuClock) -> float:
        """CPU time used by other processes until `later`, as a fraction of one core."""
        others = (later.everybody - self.everybody) - (later.own - self.own)
        return max(0.0, others / max(1e-9, later.wall - self.wall))


def measure(call: Callable[[], object], policy: TimingPolicy | None = None) -> Samples:
    """Time one callable.

    A sample is the mean over `number` consecutive calls.  It includes the overhead of the Python loop, about 20 ns per
    call, and of the call (0.1 us for a TVM-FFI function with prepared arguments).

    Args:
        call: the function to time; called many times.
        policy: timing parameters; by default `TimingPolicy()`.
    Raises:
        RunError: quiet windows are required and the system has no `/proc/stat`.
    """
    return interleaved({"": call}, policy)[""]


def interleaved(
    calls: Mapping[str, Callable[[], object]], policy: TimingPolicy | None = None, rounds: int | None = None
) -> dict[str, Samples]:
    """Time several callables in turn, so that clock drift and noise affect all of them equally.

    A round takes one sample of each; the order rotates by one per round.  With several callables, each sample is preceded
    by an untimed call, which restores the caches and wakes threads after the previous callable.  A window is accepted or
    rejected as a whole: its rounds count for all callables or for none.

    Args:
        calls: the callables, by name.
        policy: timing parameters; `limit_s` is per callable, that is, it is multiplied by their number.  The environment variable
            TUNESMITH_TIMING_LIMIT shortens it.
        rounds: clean rounds required; by default the policy's `repeats`.
    Returns:
        Samples by name, the same number for each.
    Raises:
        RunError: quiet windows are required and the system has no `/proc/stat`.
        UserError: the environment variable is not a positive number.
    """
    policy = policy or TimingPolicy()
    if not calls:
        return {}
    required = policy.repeats if rounds is None else rounds
    if required < 1:
        raise UserError(f"cannot time {required} rounds: pass at least 1")
    deadline = time.perf_counter() + _limit(policy) * len(calls)
    numbers = {name: _warm_up(call, policy, deadline) for name, call in calls.items()}
    quiet: list[_Window] = []
    best: _Window | None = None
    while sum(len(window.rounds) for window in quiet) < required:
        window = _window(calls, numbers, policy, required, deadline)
        if window.foreign < policy.quiet_fraction and window.is_whole:
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


def _limit(policy: TimingPolicy) -> float:
    """The time limit of a policy, or that of the environment if it is shorter."""
    text = os.environ.get(LONGEST)
    if text is None:
        return policy.limit_s
    try:
        longest = float(text)
    except ValueError:
        longest = math.nan
    if not longest > 0:
        raise UserError(f"{LONGEST}={text:.200}: expected a positive number of seconds")
    return min(policy.limit_s, longest)


@dataclass(frozen=True, slots=True)
class _Window:
    rounds: list[dict[str, float]]
    foreign: float
    is_whole: bool
    """False for one that the time limit cut short: it is too short to know whether it was quiet."""


def _samples(windows: list[_Window], numbers: Mapping[str, int], clean: bool) -> dict[str, Samples]:
    foreign = statistics.fmean(window.foreign for window in windows)
    rounds = [times for window in windows for times in window.rounds]
    return {name: Samples(tuple(times[name] for times in rounds), clean, foreign, number) for name, number in numbers.items()}


def _warm_up(call: Callable[[], object], policy: TimingPolicy, deadline: float) -> int:
    """Run the untimed calls, then determine the number of calls in a sample."""
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
            # Repeat, because an interruption may have lengthened it: waking a sleeping thread takes milliseconds.
            taken = min(taken, _sample(call, number) * number)
        if taken >= least or time.perf_counter() > deadline:
            return number
        # A single call is too short for a good estimate, so it is refined until a whole sample is long enough.
        number = max(number + 1, math.ceil(number * min(100.0, 1.05 * least / max(taken, 1e-7))))


def _window(
    calls: Mapping[str, Callable[[], object]], numbers: Mapping[str, int], policy: TimingPolicy, required: int, deadline: float
) -> _Window:
    """The rounds of one window, and the load of other processes meanwhile."""
    names = list(calls)
    watch = policy.quiet_fraction < math.inf
    length, least = (policy.window_s, min(_WINDOW_SAMPLES, required)) if watch else (0.0, required)
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
    return _Window(rounds, before.foreign(CpuClock.now()) if before else 0.0, time.perf_counter() - start >= length)


def _sample(call: Callable[[], object], number: int) -> float:
    """Seconds per call, mean over `number` calls."""
    start = time.perf_counter()
    for _ in repeat(None, number):
        call()
    return (time.perf_counter() - start) / number
