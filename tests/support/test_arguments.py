"""Counts are integers, positive numbers are finite, and earlier names of keywords are refused."""

from __future__ import annotations

import dataclasses
import inspect
import math
from dataclasses import dataclass

import numpy as np
import pytest

from tunesmith.support.arguments import as_count, as_positive, refuse_fields, refuse_keywords
from tunesmith.support.errors import UserError


def test_counts() -> None:
    assert as_count("n", 1) == 1 and as_count("n", np.int64(3)) == 3 and type(as_count("n", np.uint8(3))) is int
    assert as_count("n", 0, 0) == 0 and as_count("n", 1 << 70) == 1 << 70
    for bad in (0, -1, 1.0, 1.5, math.nan, math.inf, True, np.bool_(True), None, "1", []):
        with pytest.raises(UserError, match="n=.*: expected an integer >= 1"):
            as_count("n", bad)
    with pytest.raises(UserError, match="n=2: it is at least 3, not 2"):
        as_count("n", 2, 3, "it is at least 3")


def test_positive_numbers() -> None:
    assert as_positive("s", 1) == 1.0 and as_positive("s", np.float32(0.5)) == 0.5
    for bad in (0, -1.0, 10**400, math.nan, math.inf, True, None, "x", 1j, []):
        with pytest.raises(UserError, match="s=.*: expected a positive, finite number"):
            as_positive("s", bad)


def test_earlier_keywords_are_refused_and_the_signature_is_kept() -> None:
    @refuse_keywords(size="shape=(N,)")
    def make(shape: int = 1) -> int:
        return shape

    assert make(shape=3) == 3 and list(inspect.signature(make).parameters) == ["shape"]
    with pytest.raises(UserError, match=r"make has no argument 'size': pass shape=\(N,\)"):
        make(size=3)  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"make has no argument 'shap'. Did you mean 'shape'\?"):
        make(shap=3)  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"make has no argument 'xyz'. It has shape"):
        make(xyz=3)  # type: ignore[call-arg]


def test_unknown_fields_are_refused() -> None:
    @refuse_fields
    @dataclass(frozen=True, slots=True)
    class Limits:
        seconds: int = 1

    assert Limits(3) == Limits(seconds=3) == dataclasses.replace(Limits(), seconds=3)
    assert list(inspect.signature(Limits).parameters) == ["seconds"]
    with pytest.raises(UserError, match=r"^Limits has no argument 'second'. Did you mean 'seconds'\?"):
        Limits(second=3)  # type: ignore[call-arg]
