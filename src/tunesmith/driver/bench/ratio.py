"""Estimate the ratio of two systems' times with its interval, and refuse a verdict that the windows do not carry.

The unit of repetition is a start of the processes: windows of one process share its memory pages, its thread placement and its variant of
the library, and vary less than processes do.  Within a start the windows of a round are paired, because the machine's clock and its other
load change between rounds; the median of the pairs leaves out a disturbed one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scipy import special

from tunesmith.display.noise import LEAST_CLEAN

CONFIDENCE = 0.95
LEAST_STARTS = 3
"""Starts below which there is no interval: the spread of two numbers says nothing."""
MORE_STARTS = 5
"""Starts to advise: as many as by default."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The time of a baseline over that of tunesmith.

    Attributes:
        value: geometric mean over starts of the median over rounds; above 1 if tunesmith is faster.
        low, high: `CONFIDENCE` interval by Student's t of the logarithms over starts; None below `LEAST_STARTS`, and if too few windows are
            clean: other load shifts the ratio, which an interval does not show.
        clean: share of the pairs of windows in which other processes used neither system's cores.
        starts: starts that the ratio is from.
        starved: further starts, in which each pair of windows lost a core to other processes.
    """

    value: float
    low: float | None = None
    high: float | None = None
    clean: float = 1.0
    starts: int = MORE_STARTS
    starved: int = 0

    @property
    def verdict(self) -> str:
        """`faster` or `slower` (tunesmith is), or why neither can be said."""
        if self.clean < LEAST_CLEAN:
            return f"not decided: {self.clean:.0%} of the pairs of windows are clean"
        if self.low is None or self.high is None:
            made = self.starts + self.starved
            if made >= LEAST_STARTS:
                return f"not decided: in {self.starved} of {made} starts, each pair of windows lost a core"
            return f"not decided: fewer than {LEAST_STARTS} starts"
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "not decided"

    @property
    def advice(self) -> str:
        """What to do for a verdict, as a sentence; empty if there is one."""
        if self.clean < LEAST_CLEAN:
            return "other processes disturbed the windows: run the same command again on a quiet machine"
        if self.low is None or self.high is None:
            if self.starts + self.starved >= LEAST_STARTS:
                return "other processes took cores: run the same command again on a quiet machine, or give more --starts"
            return f"an interval requires {LEAST_STARTS} starts with windows in which no system lost a core: give --starts {MORE_STARTS}"
        return "" if self.verdict != "not decided" else "the interval contains 1: more --starts make it narrower"

    def __str__(self) -> str:
        """`1.22 [1.10, 1.35]`."""
        return f"{self.value:.2f}" + ("" if self.low is None or self.high is None else f" [{self.low:.2f}, {self.high:.2f}]")

    def to_json(self) -> dict[str, float | str | None]:
        """The data written by `tunesmith bench --json`."""
        return {"value": self.value, "low": self.low, "high": self.high, "clean": self.clean, "verdict": self.verdict}


def ratio(starts: Sequence[Sequence[float]], clean: float = 1.0, starved: int = 0) -> Ratio:
    """The ratio from the paired ratios of the rounds of each start.

    Args:
        starts: for each start at least one ratio of a round, all positive.
        clean: share of clean pairs.
        starved: further starts, see `Ratio`.
    """
    logs = [statistics.median([math.log(x) for x in rounds]) for rounds in starts]
    mean, n = statistics.fmean(logs), len(logs)
    if n < LEAST_STARTS or clean < LEAST_CLEAN:
        return Ratio(math.exp(mean), None, None, clean, n, starved)
    half = _quantile(n) * statistics.stdev(logs) / math.sqrt(n)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), clean, n, starved)


def best_of(ratios: Sequence[Ratio]) -> Ratio | None:
    """The ratio of the fastest of several baselines, with an interval for the least of the true ratios; None without baselines.

    The baseline that was fastest in a run was in part lucky in it, so that its own interval is too low.  The least true ratio is below the
    upper bound of each baseline, and all m of these hold together if each has an error of 1 / m of that of one (Bonferroni).  It is the
    true ratio of one baseline, whose lower bound the least lower bound does not exceed: these need no adjustment.  So tunesmith is
    faster if it is faster than each baseline, and slower if it is slower than one by an interval that is wider on that side.

    Args:
        ratios: those of all baselines that are compared.  Without an interval of one of them there is none of the fastest.
    """
    if not ratios:
        return None
    least = min(r.value for r in ratios)
    unsure = [r for r in ratios if r.low is None or r.high is None]
    if unsure:
        return replace(min(unsure, key=lambda r: r.clean), value=least, low=None, high=None)
    low = min(r.low for r in ratios if r.low is not None)
    high = min(r.high * (r.high / r.value) ** (_widening(r.starts, len(ratios)) - 1) for r in ratios if r.high is not None)
    return Ratio(least, low, high, min(r.clean for r in ratios), min(r.starts for r in ratios), max(r.starved for r in ratios))


def _quantile(starts: int, baselines: int = 1) -> float:
    """The quantile of Student's t for a bound that is one of this many simultaneous ones."""
    return float(special.stdtrit(starts - 1, 1 - (1 - CONFIDENCE) / 2 / baselines))


def _widening(starts: int, baselines: int) -> float:
    """Half the width of an adjusted interval over that of one, in logarithms."""
    return _quantile(starts, baselines) / _quantile(starts)
