"""Estimate the ratio of two systems' times with its interval, and refuse a verdict that the windows do not carry.

The unit of repetition is a start of the processes: windows of one process share its memory pages, its thread placement and its variant of
the library, and vary less than processes do.  Within a start the windows of a round are paired, because the machine's clock and its other
load change between rounds; the median of the pairs leaves out a disturbed one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

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
    """

    value: float
    low: float | None = None
    high: float | None = None
    clean: float = 1.0

    @property
    def verdict(self) -> str:
        """`faster` or `slower` (tunesmith is), or why neither can be said."""
        if self.clean < LEAST_CLEAN:
            return f"not decided: {self.clean:.0%} of the windows are clean"
        if self.low is None or self.high is None:
            return f"not decided: fewer than {LEAST_STARTS} starts"
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "not decided"

    @property
    def advice(self) -> str:
        """What to do for a verdict, as a sentence; empty if there is one."""
        if self.clean < LEAST_CLEAN:
            return "other processes disturbed the windows: run the same command again on a quiet machine"
        if self.low is None or self.high is None:
            return f"an interval requires {LEAST_STARTS} starts with windows in which no system lost a core: give --starts {MORE_STARTS}"
        return "" if self.verdict != "not decided" else "the interval contains 1: more --starts make it narrower"

    def __str__(self) -> str:
        """`1.22 [1.10, 1.35]`."""
        return f"{self.value:.2f}" + ("" if self.low is None or self.high is None else f" [{self.low:.2f}, {self.high:.2f}]")

    def to_json(self) -> dict[str, float | str | None]:
        """The data written by `tunesmith bench --json`."""
        return {"value": self.value, "low": self.low, "high": self.high, "clean": self.clean, "verdict": self.verdict}


def ratio(starts: Sequence[Sequence[float]], clean: float = 1.0) -> Ratio:
    """The ratio from the paired ratios of the rounds of each start.

    Args:
        starts: for each start at least one ratio of a round, all positive.
        clean: share of clean pairs.
    """
    logs = [statistics.median([math.log(x) for x in rounds]) for rounds in starts]
    mean, n = statistics.fmean(logs), len(logs)
    if n < LEAST_STARTS or clean < LEAST_CLEAN:
        return Ratio(math.exp(mean), clean=clean)
    half = float(special.stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(logs) / math.sqrt(n)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), clean)
