from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from itertools import count, cycle
from pathlib import Path

import pytest

from tunesmith.runtime import timing
from tunesmith.runtime.timing import CpuClock, Samples, TimingPolicy, interleaved, measure
from tunesmith.support.errors import RunError, UserError

QUICK = TimingPolicy(warmup=1, number=2, repeats=5, window_s=0.0, quiet_fraction=math.inf)


def clocks(fractions: Iterator[float]) -> Callable[[], CpuClock]:
    """Clock readings whose successive pairs report the given load of other processes, in windows of one second."""
    ticks = count()
    state = {"used": 0.0}

    def now() -> CpuClock:
        tick = next(ticks)
        if tick % 2:
            state["used"] += next(fractions)
        return CpuClock(float(tick), state["used"], 0.0)

    return now


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the load of other processes in each window."""
    monkeypatch.setattr(timing.time, "sleep", lambda _: None)

    def use(*fractions: float) -> None:
        monkeypatch.setattr(timing.CpuClock, "now", staticmethod(clocks(cycle(fractions))))

    return use


def test_calls_are_counted() -> None:
    calls = []
    samples = measure(lambda: calls.append(1), QUICK)
    assert len(samples.seconds) == 5
    assert len(calls) == 1 + 5 * 2
    assert samples.number == 2
    assert samples.clean
    assert all(s > 0 for s in samples.seconds)


def test_number_reaches_the_minimal_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"t": 0.0}
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now["t"])

    def call() -> None:
        now["t"] += 1e-5

    samples = measure(call, TimingPolicy(min_repeat_ms=2.0, repeats=3, window_s=0.0, quiet_fraction=math.inf))
    assert 200 <= samples.number <= 230
    assert samples.median == pytest.approx(1e-5)


def test_an_interruption_does_not_affect_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"t": 0.0, "calls": 0}
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now["t"])

    def call() -> None:
        now["calls"] += 1
        now["t"] += 5e-3 if now["calls"] == 4 else 1e-5

    assert measure(call, TimingPolicy(repeats=3, window_s=0.0, quiet_fraction=math.inf)).number >= 200


def test_noisy_windows_are_discarded(others: Callable[..., None]) -> None:
    others(0.5, 0.02, 0.3, 0.04)
    samples = measure(lambda: None, TimingPolicy(number=1, repeats=5, window_s=0.0))
    assert samples.clean
    assert samples.foreign == pytest.approx(0.03)
    assert len(samples.seconds) == 6  # two windows of three


def test_the_quietest_window_is_used_when_none_is_quiet(others: Callable[..., None]) -> None:
    others(0.5, 0.2, 0.4)
    samples = measure(lambda: None, TimingPolicy(number=1, repeats=5, window_s=0.0, limit_s=0.05))
    assert not samples.clean
    assert samples.foreign == pytest.approx(0.2)
    assert len(samples.seconds) == 3
    assert "noisy: others used 20% of a core" in str(samples)


def test_limit_ends_a_slow_function() -> None:
    now = []
    samples = measure(lambda: now.append(sum(range(30000))), TimingPolicy(warmup=10**6, repeats=10**6, limit_s=0.05, window_s=0.0))
    assert 1 <= len(samples.seconds) < 10**5


def test_interleaved_takes_turns() -> None:
    order: list[str] = []
    calls = {name: (lambda n=name: order.append(n)) for name in "abc"}
    samples = interleaved(calls, TimingPolicy(warmup=0, number=1, window_s=0.0, quiet_fraction=math.inf), rounds=3)
    # Each turn is an untimed and a timed call; the order rotates.
    assert "".join(order) == "aabbcc" + "bbccaa" + "ccaabb"
    assert {name: len(s.seconds) for name, s in samples.items()} == {"a": 3, "b": 3, "c": 3}


def test_interleaved_accepts_or_rejects_whole_windows(others: Callable[..., None]) -> None:
    others(0.5, 0.01)
    samples = interleaved({"a": lambda: None, "b": lambda: None}, TimingPolicy(number=1, window_s=0.0), rounds=3)
    assert all(s.clean and len(s.seconds) == 3 for s in samples.values())


def test_nothing_to_time() -> None:
    assert interleaved({}) == {}
    with pytest.raises(UserError, match="cannot time 0 rounds"):
        interleaved({"a": lambda: None}, rounds=0)


def test_statistics() -> None:
    samples = Samples((3e-6, 1e-6, 2e-6, 10e-6), True, 0.0, 7)
    assert samples.median == pytest.approx(2.5e-6)
    assert samples.minimum == 1e-6
    assert samples.quantile(0) == 1e-6
    assert samples.quantile(1) == 10e-6
    assert samples.quantile(0.5) == pytest.approx(samples.median)
    assert str(samples) == "2.5 us (min 1, p90 7.9, 4 samples of 7 calls)"
    assert str(Samples((0.25,), True, 0.0)).startswith("250 ms")
    assert str(Samples((25.0,), True, 0.0)).startswith("25 s")


def test_own_threads_are_not_foreign() -> None:
    before = CpuClock(0.0, 100.0, 10.0)
    assert before.foreign(CpuClock(2.0, 104.0, 14.0)) == 0.0
    assert before.foreign(CpuClock(2.0, 104.0, 13.0)) == pytest.approx(0.5)
    assert before.foreign(CpuClock(2.0, 103.0, 14.0)) == 0.0


def test_clock_reads_this_machine() -> None:
    first = CpuClock.now()
    sum(range(3_000_000))
    second = CpuClock.now()
    assert second.wall > first.wall
    assert second.everybody >= first.everybody > 0
    assert second.own >= first.own


def test_system_without_proc_stat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(timing, "_STAT", tmp_path / "stat")
    with pytest.raises(RunError, match=r"quiet windows need .*stat, which cannot be read .*quiet_fraction=math.inf"):
        measure(lambda: None)
    assert measure(lambda: None, QUICK).clean


OUT_OF_RANGE = (("warmup", -1), ("number", 0), ("repeats", 0), ("repeats", 1.5), ("repeats", True), ("repeats", "2"))


def test_a_window_that_the_time_limit_ends_is_not_clean() -> None:
    """It is too short to know whether other processes used the machine."""
    samples = measure(lambda: None, TimingPolicy(number=1000, repeats=3, window_s=10.0, limit_s=0.05, quiet_fraction=100.0))
    assert not samples.clean and len(samples.seconds) >= 1 and "noisy" in str(samples)


OUT_OF_RANGE_TIMES = (("window_s", -0.1), ("limit_s", 0), ("limit_s", math.nan), ("min_repeat_ms", "2"), ("quiet_fraction", None))


@pytest.mark.parametrize(("name", "value"), [*OUT_OF_RANGE, *OUT_OF_RANGE_TIMES])
def test_policy_out_of_range(name: str, value: object) -> None:
    with pytest.raises(UserError, match=f"{name}={value!r}: expected"):
        TimingPolicy(**{name: value})  # type: ignore[arg-type]


def test_the_environment_shortens_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(timing.LONGEST, "0.02")
    start = time.perf_counter()
    samples = measure(lambda: None, TimingPolicy(repeats=10**6, quiet_fraction=0.0))
    assert time.perf_counter() - start < 2 and not samples.clean
    for wrong in ("0", "-1", "soon", "nan"):
        monkeypatch.setenv(timing.LONGEST, wrong)
        with pytest.raises(UserError, match=f"TUNESMITH_TIMING_LIMIT={wrong}: expected a positive number of seconds"):
            measure(lambda: None)
