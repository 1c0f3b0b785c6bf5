"""Test races on a simulated clock, without measuring real time."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tunesmith.measure import race as race_module
from tunesmith.measure.policies import RacePolicy
from tunesmith.measure.race import race


class Clock:
    """Simulated clock, advanced only by calls and sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waited: int | None = 0
        self.calls = 0
        self.sleeps: list[float] = []

    def call(self, seconds: Callable[[int], float] | float, waits: Callable[[int], float] | float = 0.0) -> Callable[[], None]:
        """A function that takes `seconds` and waits for the fraction `waits` of them; both may depend on the call index."""

        def run() -> None:
            taken = seconds(self.calls) if callable(seconds) else seconds
            waited = waits(self.calls) if callable(waits) else waits
            self.calls += 1
            self.now += taken
            if self.waited is not None:
                self.waited += round(taken * waited * 1e9)

        return run

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(race_module.time, "perf_counter", lambda: made.now)
    monkeypatch.setattr(race_module.time, "sleep", made.sleep)
    monkeypatch.setattr(race_module, "waiting", lambda: made.waited)
    return made


POLICY = RacePolicy()


def test_without_a_best_all_samples_are_taken(clock: Clock) -> None:
    timed = race(clock.call(0.001), RacePolicy(min_repeat_ms=2.0))
    assert timed.seconds == pytest.approx([0.001] * 4)
    assert (timed.clean, timed.waited, timed.number, timed.gave_up) == (True, 0.0, 3, False)
    assert clock.calls == 13 and clock.sleeps == [], "a quick estimate, and samples of three calls, four of which are longer than 10 ms"
    clock.calls = 0
    assert len(race(clock.call(1e-4), POLICY).seconds) == 5


def test_two_samples_of_long_calls_are_enough(clock: Clock) -> None:
    """The first call is a sample if it takes so long that cold caches matter little."""
    timed = race(clock.call(0.021), POLICY)
    assert timed.seconds == pytest.approx([0.021] * 2) and not timed.gave_up and clock.calls == 2
    clock.calls = 0
    assert len(race(clock.call(0.019), POLICY).seconds) == 2 and clock.calls == 3
    clock.calls = 0
    assert len(race(clock.call(0.004), POLICY).seconds) == 4 and clock.calls == 5, "together as long as five of 3 ms"


def test_short_calls_are_repeated_until_a_sample_is_long_enough(clock: Clock) -> None:
    timed = race(clock.call(lambda n: 1e-3 if n == 0 else 1e-5), POLICY)
    assert timed.seconds == pytest.approx([1e-5] * 5)
    assert timed.number * 1e-5 >= POLICY.min_repeat_ms * 1e-3
    assert timed.number <= 400


def test_race_ends_after_the_first_call_if_far_behind(clock: Clock) -> None:
    timed = race(clock.call(0.04), POLICY, best=0.01)
    assert timed.seconds == pytest.approx([0.04])
    assert timed.gave_up and timed.clean and clock.calls == 1


def test_short_slow_first_call_does_not_end_the_race(clock: Clock) -> None:
    timed = race(clock.call(lambda n: 0.004 if n == 0 else 1e-4), POLICY, best=1e-4)
    assert timed.seconds == pytest.approx([1e-4] * 5) and not timed.gave_up


def test_candidate_clearly_behind_is_timed_once(clock: Clock) -> None:
    timed = race(clock.call(0.0151), POLICY, best=0.01)
    assert timed.seconds == pytest.approx([0.0151])
    assert timed.gave_up and clock.calls == 2


@pytest.mark.parametrize(("times", "samples"), [(1.49, 2), (1.24, 3), (1.12, 4), (1.06, 5), (1.0, 5)])
def test_the_nearer_to_the_best_the_more_samples(clock: Clock, times: float, samples: int) -> None:
    timed = race(clock.call(times * 1e-4), POLICY, best=1e-4)
    assert len(timed.seconds) == samples and timed.gave_up == (samples < 5)


def test_one_slow_sample_among_others_does_not_end_the_race(clock: Clock) -> None:
    timed = race(clock.call(lambda n: 1.4e-4 if n < 24 else 1e-4), POLICY, best=1e-4)
    assert len(timed.seconds) == 5 and not timed.gave_up and timed.clean


def test_samples_that_disagree_are_not_clean(clock: Clock) -> None:
    """Another virtual machine on the core takes time that this system does not count as waiting."""
    timed = race(clock.call(lambda n: 0.008 if n % 2 else 0.004), RacePolicy(min_repeat_ms=4.0))
    assert not timed.clean and timed.waited == 0.0
    clock.calls = 0
    assert race(clock.call(lambda n: 0.008 if n % 2 else 0.004), RacePolicy(min_repeat_ms=0.0)).clean, "single calls differ"


def test_waiting_time_is_subtracted_before_the_comparison(clock: Clock) -> None:
    timed = race(clock.call(0.04, lambda n: 0.75 if n < 3 else 0.0), POLICY, best=0.01)
    assert len(timed.seconds) == 1 and timed.gave_up, "without waiting, the first calls may take 10 ms, but the fourth cannot"
    assert clock.calls == 4


def test_disturbed_samples_are_repeated(clock: Clock) -> None:
    timed = race(clock.call(lambda n: 0.008 if n in (2, 4) else 0.003, lambda n: 0.5 if n in (2, 4) else 0.0), POLICY)
    assert timed.seconds == pytest.approx([0.003] * 5)
    assert timed.clean and clock.calls == 8 and len(clock.sleeps) == 2


def test_least_disturbed_samples_count_without_a_quiet_period(clock: Clock) -> None:
    timed = race(clock.call(0.01, lambda n: 0.1 + (n % 10) / 100), POLICY)
    assert len(timed.seconds) == 5 and not timed.clean and timed.waited == pytest.approx(0.13, abs=0.02)
    assert sum(clock.sleeps) <= POLICY.patience_s * 2
    assert clock.calls <= 16


def test_samples_without_waiting_times_are_not_clean_and_not_repeated(clock: Clock) -> None:
    clock.waited = None
    timed = race(clock.call(0.01), POLICY)
    assert timed.seconds == pytest.approx([0.01] * 2)
    assert not timed.clean and math.isnan(timed.waited)
    assert clock.calls == 3 and clock.sleeps == []
    assert race(clock.call(0.04), POLICY, best=0.01).gave_up


def test_long_calls_are_limited_in_time(clock: Clock) -> None:
    timed = race(clock.call(1.5), POLICY)
    assert len(timed.seconds) == 2 and clock.calls == 2
    clock.calls = 0
    assert len(race(clock.call(2.5), POLICY).seconds) == 1, "no sample starts after the limit"


def test_caches_are_flushed_before_each_single_call(clock: Clock) -> None:
    flushed: list[int] = []
    timed = race(clock.call(1e-5), RacePolicy(repeats=3), flush=lambda: flushed.append(clock.calls))
    assert timed.number == 1 and len(timed.seconds) == 3
    assert flushed == [1, 2, 3]


def test_system_reports_waiting_times() -> None:
    before = race_module.waiting()
    after = race_module.waiting()
    if before is None:
        pytest.skip("this system keeps no schedstat")
    assert after is not None and 0 <= before <= after


def test_one_disturbed_sample_does_not_end_the_race(clock: Clock) -> None:
    """A first call or a sample delayed by other processes appears behind even without its waiting time, but is not."""
    timed = race(clock.call(lambda n: 0.0079 if n == 0 else 4e-5, lambda n: 0.99 if n == 0 else 0.0), POLICY, best=3.9e-5)
    assert not timed.gave_up and timed.clean and timed.seconds == pytest.approx([4e-5] * 5)
    assert timed.number == 79, "the waiting of the first call is subtracted"
    clock.calls = 0
    timed = race(clock.call(lambda n: 0.04 if n == 2 else 0.0031, lambda n: 0.5 if n == 2 else 0.0), POLICY, best=0.003)
    assert not timed.gave_up and timed.clean and timed.seconds == pytest.approx([0.0031] * 5)
    clock.calls = 0
    timed = race(clock.call(lambda n: 0.4 if n == 0 else 0.01, lambda n: 0.5 if n == 0 else 0.0), POLICY, best=0.01)
    assert not timed.gave_up, "the first call was disturbed, and the second is not behind"


def test_two_disturbed_samples_behind_end_the_race(clock: Clock) -> None:
    timed = race(clock.call(lambda n: 0.03 + 0.01 * (n == 1), 0.2), POLICY, best=0.01)
    assert timed.gave_up and not timed.clean and timed.seconds == pytest.approx([0.03]) and clock.calls == 3, "not the estimate"
    clock.calls = 0
    timed = race(clock.call(lambda n: 0.4 + n, 0.2), POLICY, best=0.01)
    assert timed.gave_up and timed.seconds == pytest.approx([0.4]) and clock.calls == 2
    clock.calls = 0
    assert race(clock.call(3.0, 0.2), POLICY, best=0.01).gave_up and clock.calls == 1, "no time is left for a second call"
