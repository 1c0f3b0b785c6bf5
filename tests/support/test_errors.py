"""Test that errors raised in a worker process arrive with their type, text and fields."""

from __future__ import annotations

import copy
import pickle

import pytest

from tunesmith.support.errors import BuildError, InternalError, MissingExtraError, ScheduleError, TunesmithError

ERRORS = {
    "plain": BuildError("no compiler"),
    "internal": InternalError("no loop"),
    "other parameters": MissingExtraError("torch", "torch", "importing a model"),
    "location": ScheduleError("split", "divides", "5 does not divide 8", "at loop i"),
    "lazy location": ScheduleError("split", "divides", "5 does not divide 8", lambda: "at loop i"),
    "no location": ScheduleError("split", "divides", "5 does not divide 8"),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_copies_and_pickles_are_equal(error: TunesmithError) -> None:
    for made in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(made) is type(error) and str(made) == str(error) and made.args == error.args
        assert {**vars(made), "where": ""} == {**vars(error), "where": ""}


def test_a_subclass_with_its_own_constructor_and_notes() -> None:
    error = _OwnError(3)
    error.add_note("in a worker")
    made = pickle.loads(pickle.dumps(error))
    assert isinstance(made, _OwnError) and made.size == 3 and str(made) == "3 loops" and made.__notes__ == ["in a worker"]


def test_the_summary_has_no_location() -> None:
    error = ScheduleError("split", "divides", "5 does not divide 8", "at loop i")
    assert error.summary == "split refused [divides]: 5 does not divide 8"
    assert str(error) == f"{error.summary}\nat loop i"


class _OwnError(BuildError):
    def __init__(self, size: int) -> None:
        super().__init__(f"{size} loops")
        self.size = size
