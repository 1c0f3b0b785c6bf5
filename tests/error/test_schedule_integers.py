"""Test refusals of non-integers: the message names the primitive, the argument and the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.schedule.schedule import Schedule, concretize
from tunesmith.support.errors import RecordError, ScheduleError

On = Callable[[str], Schedule]

WRONG: list[tuple[str, Any, str]] = [
    ("split", lambda s, i: s.split(i, [None, True]), "factors[1] is True; an integer is needed"),
    ("split", lambda s, i: s.split(i, [None, 4.0]), "factors[1] is 4.0; an integer"),
    ("split", lambda s, i: s.split(i, [np.float32(4.0), 4]), "factors[0] is np.float32(4.0); an integer"),
    ("split", lambda s, i: s.split(i, np.array([4.0, 4.0])), "factors[0] is 4.0; an integer"),
    ("split", lambda s, i: s.split(i, np.array([True, True])), "factors[0] is True; an integer"),
    ("split", lambda s, i: s.split(i, [None, "4"]), "factors[1] is '4'; an integer"),
    ("split", lambda s, i: s.split(i, 16), "factors is 16; a list is needed, such as [None, 16]"),
    ("split", lambda s, i: s.split(i, "16"), "factors is '16'; a list is needed"),
    ("split", lambda s, i: s.split(i, None), "factors is None; a list is needed"),
    ("fuse", lambda s, i: s.fuse(i), "a list is needed, such as [l0]"),
    ("sample_categorical", lambda s, i: s.sample_categorical(4), "candidates is 4; a list is needed, such as [4]"),
    ("vectorize", lambda s, i: s.vectorize(i, False), "max_lanes is False; an integer"),
    ("vectorize", lambda s, i: s.vectorize(i, max_lanes=8.5), "max_lanes is 8.5; an integer"),
    ("unroll", lambda s, i: s.unroll(i, np.True_), "max_copies is np.True_; an integer"),
    ("annotate", lambda s, i: s.annotate(i, "prefetch", 1.5), "value is 1.5; an integer"),
    ("annotate", lambda s, i: s.annotate(i, "prefetch", True), "value is True; an integer"),
    ("sample_tile", lambda s, i: s.sample_tile(i, 2.0), "n is 2.0; an integer"),
    ("sample_tile", lambda s, i: s.sample_tile(i, 2, domains=[[1, 2.5]]), "domains[0][1] is 2.5; an integer"),
    ("sample_tile", lambda s, i: s.sample_tile(i, 2, waste=float("nan")), "waste is nan; arguments are"),
    ("sample_tile", lambda s, i: s.sample_tile(i, 2, waste=True), "waste is True; arguments are"),
    ("sample_categorical", lambda s, i: s.sample_categorical([2, True]), "candidates[1] is True; an integer"),
    ("sample_perfect_tile", lambda s, i: s.sample_perfect_tile(i, True), "n is True; an integer"),
    ("cache_write", lambda s, i: s.cache_write(s.get_block("C"), "workspace", ["0"]), "layout[0] is '0'; an integer"),
    (
        "cache_read",
        lambda s, i: s.cache_read(s.get_block("C"), "A", "global", [[0, "/", 4.0], [0, "%", 4]]),
        "layout[0][2] is 4.0; arguments",
    ),
    ("limit", lambda s, i: s.limit([i], 2.5, "small"), "at_most is 2.5; an integer"),
]


@pytest.mark.parametrize(("primitive", "step", "message"), WRONG)
@pytest.mark.parametrize("parametric", [False, True])
def test_values_that_are_not_integers(on: On, parametric: bool, primitive: str, step: Any, message: str) -> None:
    s = Schedule(on("row").func, parametric=parametric)
    (i,) = s.get_loops(s.get_block("C"))
    func = s.func
    with pytest.raises(ScheduleError) as caught:
        step(s, i)
    assert (caught.value.primitive, caught.value.requirement) == (primitive, "arguments")
    assert message in caught.value.message
    assert s.func is func and s.depth == 0 and {x.kind for x in s.trace.instructions} == {"get_block", "get_loops"}


@pytest.mark.parametrize("decision", [[True], [4.0], [np.float64(4)], ["4"], [None], 4, "4", np.array([True])])
def test_decisions_that_are_not_integers(on: On, decision: Any) -> None:
    """A decision of the step and a decision of the schedule are refused in the same way."""
    func = on("row").func
    messages = []
    for s in (Schedule(func), Schedule(func, decisions=[decision] if not isinstance(decision, int) else None)):
        (i,) = s.get_loops(s.get_block("C"))
        with pytest.raises(ScheduleError, match="1 integers >= 0 are needed, got") as caught:
            s.sample_tile(i, 2, decision=decision if s._given is None else None)
        messages.append((caught.value.primitive, caught.value.requirement))
    assert set(messages) == {("sample_tile", "decision")}


@pytest.mark.parametrize("value", [True, 4.0, np.float32(4), "4", None])
def test_configurations_that_are_not_integers(on: On, value: Any) -> None:
    s = Schedule(on("row").func, parametric=True)
    (i,) = s.get_loops(s.get_block("C"))
    a, b = s.sample_tile(i, 3, domains=[range(1, 9)] * 2)
    s.split(i, [None, a, b])
    with pytest.raises(RecordError) as refused:
        s.trace.with_configuration([2, value])
    assert f"row[1], the value of v1 = sample_tile(...), is {value!r}; a configuration consists of integers" in str(refused.value)
    with pytest.raises(ScheduleError) as caught:
        concretize(s.func, dict(zip(s.params, (2, value), strict=True)))
    assert (caught.value.primitive, caught.value.requirement) == ("concretize", "arguments")
    assert f"the value of tile2 is {value!r}; an integer is needed" in caught.value.message
