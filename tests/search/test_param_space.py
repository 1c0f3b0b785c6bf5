"""Rows of a sketch: tables hold exactly the admissible tuples, and nothing the space does leaves them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tunesmith.ir.poly import Param, ceildiv, mod, poly
from tunesmith.schedule.state import Constraint
from tunesmith.search import param_space
from tunesmith.search.param_space import ParamSpace
from tunesmith.support.errors import ScheduleError
from tunesmith.support.seeds import stream


def small_space() -> tuple[ParamSpace, list[Param], list[Constraint]]:
    a, b, c, d = (Param(n, range(1, 9)) for n in "abcd")
    constraints = [
        Constraint("le0", ceildiv(30, poly(a) * b) * a * b * 4 - 150, "waste"),
        Constraint("eq0", mod(24, poly(c)), "divides"),
        Constraint("le0", poly(b) * c + c - 20, "registers"),
    ]
    return ParamSpace([a, b, c, d], constraints), [a, b, c, d], constraints


def meets(row: tuple[int, ...]) -> bool:
    a, b, c, _ = row
    return -(-30 // (a * b)) * a * b * 4 <= 150 and 24 % c == 0 and b * c + c <= 20


def test_size_counts_the_admissible_rows() -> None:
    space, params, _ = small_space()
    expected = sum(meets(r) for r in itertools.product(*[p.domain for p in params]))
    assert space.size() == expected
    assert space.joint == ()


def test_samples_mutants_and_children_are_admissible() -> None:
    space, _, _ = small_space()
    rng = stream(3, "test")
    rows = space.sample(300, rng)
    mutants = space.mutate(rows, rng)
    children = space.crossover(rows, mutants, rng)
    for some in (rows, mutants, children):
        assert all(meets(tuple(int(x) for x in r)) for r in some)
        assert space.admissible(some).all()
    assert (mutants != rows).any(axis=1).mean() > 0.5


def test_large_groups_become_joint_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(param_space, "MAX_TABLE", 100)
    space, _, _ = small_space()
    assert {c.label for c in space.joint} == {"waste"}
    rows = space.sample(200, stream(1, "test"))
    assert all(meets(tuple(int(x) for x in r)) for r in rows)
    assert 0 < space.acceptance(stream(2, "test")) < 1


def test_a_space_without_rows_is_refused() -> None:
    a = Param("a", (2, 3))
    with pytest.raises(ScheduleError, match="no values of a meet the constraint tiny"):
        ParamSpace([a], [Constraint("le0", poly(a) - 1, "tiny")])


def test_same_stream_same_rows() -> None:
    space, _, _ = small_space()
    assert np.array_equal(space.sample(50, stream(7, "x")), space.sample(50, stream(7, "x")))
    assert not np.array_equal(space.sample(50, stream(7, "x")), space.sample(50, stream(8, "x")))
