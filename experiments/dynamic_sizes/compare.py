"""Time calls in turns, and print their medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

SIZES = (1, 16, 64, 100, 128)
Call = Callable[[], object]


def interleaved(calls: dict[str, Call], seconds: float = 4.0) -> dict[str, float]:
    """Median microseconds of each call; the calls take turns."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for name, call in calls.items():
            call()
            begin = time.perf_counter()
            for _ in range(4):
                call()
            samples[name].append((time.perf_counter() - begin) / 4)
    return {name: statistics.median(s) * 1e6 for name, s in samples.items()}


def show(size: int, times: dict[str, float]) -> None:
    cells = "  ".join(f"{name} {us:9.1f} us" for name, us in times.items())
    print(f"n = {size:4d}  {cells}  range / size {times['range'] / times['size']:.2f}", flush=True)
