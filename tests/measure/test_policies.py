"""Test the limits of measuring policies and their form in records."""

from __future__ import annotations

import pytest

from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.support.errors import UserError


@pytest.mark.parametrize(
    "bad",
    [
        {"min_repeat_ms": -1},
        {"repeats": 0},
        {"give_up": 1.0},
        {"quiet_fraction": -0.1},
        {"patience_s": -1},
        {"limit_s": 0},
        {"flush_bytes": -1},
    ],
)
def test_policies_out_of_range_are_rejected(bad: dict[str, float]) -> None:
    ((name, value),) = bad.items()
    with pytest.raises(UserError, match=f"race policy out of range: {name}={value!r}"):
        RacePolicy(**bad)  # type: ignore[arg-type]


def test_policy_as_json() -> None:
    assert RacePolicy(**RacePolicy().to_json()) == RacePolicy()  # type: ignore[arg-type]


def test_invalid_policies_are_rejected() -> None:
    with pytest.raises(UserError, match="verify is one of winner, always, never, not 'sometimes'"):
        MeasurePolicy(verify="sometimes")
    with pytest.raises(UserError, match="law_every must be at least 1, got 0"):
        MeasurePolicy(law_every=0)
