"""Provide `apply`, which runs steps on a function and checks the guarantees common to all primitives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.schedule.schedule import Schedule
from tunesmith.testing.primitive_conformance import check_schedule


@pytest.fixture(scope="session")
def apply() -> Callable[..., Schedule]:
    """`apply(func, steps, decisions=())`: see `check_schedule`."""
    return check_schedule
