"""Test the rows of a sketch: tables contain exactly the admissible tuples, and all operations return admissible rows."""

from __future__ import annotations

import gc
import itertools
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tunesmith.ir.poly import Param, ceildiv, maximum, minimum, mod, poly
from tunesmith.schedule.state import Constraint
from tunesmith.search.space import param_space
from tunesmith.search.space.nearest_rows import NearestRows, codes
from tunesmith.search.space.param_space import ParamSpace
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


def test_size_is_the_number_of_admissible_rows() -> None:
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


def test_a_space_without_rows_is_rejected() -> None:
    a = Param("a", (2, 3))
    with pytest.raises(ScheduleError, match="no values of a satisfy the constraint tiny"):
        ParamSpace([a], [Constraint("le0", poly(a) - 1, "tiny")])


def test_equal_streams_give_equal_rows() -> None:
    space, _, _ = small_space()
    assert np.array_equal(space.sample(50, stream(7, "x")), space.sample(50, stream(7, "x")))
    assert not np.array_equal(space.sample(50, stream(7, "x")), space.sample(50, stream(8, "x")))


def test_nearest_returns_the_nearest_admissible_rows() -> None:
    """Without joint constraints the result is exact: compared with all rows of the space."""
    space, _, _ = small_space()
    assert len(space.groups) == 2  # a, b and c are coupled by constraints, d is free
    every = np.array([r for r in itertools.product(*[p.domain for p in space.params]) if meets(r)])
    wanted = stream(4, "test").integers(-3, 40, size=(200, 4))
    found = space.nearest(wanted, stream(5, "test"))
    assert space.admissible(found).all()
    for w, f in zip(wanted, found, strict=True):
        assert distance(w, f) == min(distance(w, e) for e in every)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(((codes(a) - codes(b)) ** 2).sum())


@pytest.mark.parametrize("table", [100, 400_000])
def test_nearest_keeps_admissible_rows_and_repairs_others(table: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(param_space, "MAX_TABLE", table)
    space, _, _ = small_space()
    assert bool(space.joint) == (table == 100)
    rows = space.sample(300, stream(1, "test"))
    assert np.array_equal(space.nearest(rows, stream(2, "test")), rows)
    wild = stream(3, "test").integers(0, 30, size=(600, 4))
    found = space.nearest(wild, stream(2, "test"))
    assert space.admissible(found).all() and all(meets(tuple(int(x) for x in r)) for r in found)
    assert np.array_equal(found, space.nearest(wild, stream(2, "test")))
    assert space.nearest(wild[:0], stream(2, "test")).shape == (0, 4)


def test_repaired_rows_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a joint constraint most rows found are the nearest ones, and on average much nearer than random rows."""
    exact, _, _ = small_space()
    monkeypatch.setattr(param_space, "MAX_TABLE", 100)
    space, _, _ = small_space()
    wild = stream(3, "test").integers(1, 9, size=(300, 4))
    best, found, random = exact.nearest(wild, stream(0, "t")), space.nearest(wild, stream(0, "t")), space.sample(300, stream(1, "t"))
    d = [np.array([distance(w, r) for w, r in zip(wild, rows, strict=True)]) for rows in (best, found, random)]
    assert (d[1] == d[0]).mean() > 0.9
    assert d[1].mean() < 0.2 * d[2].mean()


def test_nearest_falls_back_on_random_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows whose near tuples always violate the joint constraint get an admissible row."""
    monkeypatch.setattr(param_space, "MAX_TABLE", 1)
    a, b = Param("a", range(1, 200)), Param("b", range(1, 200))
    space = ParamSpace([a, b], [Constraint("le0", poly(a) + b - 100, "budget")])
    assert space.joint
    found = space.nearest(np.array([[199, 199], [150, 199]]), stream(0, "test"))
    assert (found.sum(axis=1) <= 100).all()


def test_ties_of_distance_are_broken_by_position() -> None:
    table = np.array([[8, 2], [2, 8], [8, 8], [2, 2]])
    near = NearestRows(table)
    assert near.find(np.array([[4, 4]]), 4).shape == (1, 4)
    assert near.find(np.array([[8, 2], [1000, 1]]), 2)[:, 0].tolist() == [0, 0]
    halves = NearestRows(np.array([[1], [7], [1 + 0]]))
    assert halves.find(np.array([[3]]), 3).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("table", [400_000, 100])
def test_admissible_checks_domains_before_constraints(table: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(param_space, "MAX_TABLE", table)
    space, params, _ = small_space()
    rows = np.vstack([stream(0, "test").integers(-2, 12, size=(2000, 4)), space.sample(200, stream(1, "test"))])
    inside = [all(x in p.domain for x, p in zip(row, params, strict=True)) for row in rows.tolist()]
    expected = [i and meets(tuple(row)) for i, row in zip(inside, rows.tolist(), strict=True)]
    assert space.admissible(rows).tolist() == expected and 200 < sum(expected) < sum(inside) < len(rows)
    assert space.admissible(rows[:0]).shape == (0,)


def many_values(least: int) -> tuple[list[Param], list[Constraint]]:
    """Two tables of pairs that are too large to be merged, and a constraint on one column of each."""
    a, b, c, d = (Param(n, range(1, 33)) for n in "abcd")
    pairs = [Constraint("le0", poly(a) * b - 512, "first"), Constraint("le0", poly(c) * d - 512, "second")]
    return [a, b, c, d], [*pairs, Constraint("le0", poly(least) - poly(a) * c, "tie")]


def test_unsatisfiable_joint_constraints_are_detected_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(param_space, "MAX_TABLE", 2000)
    with pytest.raises(ScheduleError, match=r"space refused \[tie\]: no combination of the tables satisfies the joint constraints tie"):
        ParamSpace(*many_values(32 * 32 + 1))


def test_rare_rows_are_found_by_enumerating_joint_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 1,024 pairs of values is admissible, and few tuples of each table have these values."""
    monkeypatch.setattr(param_space, "MAX_TABLE", 2000)
    space = ParamSpace(*many_values(32 * 32))
    assert [c.label for c in space.joint] == ["tie"]
    rows = space.sample(3, stream(1, "test"))
    assert len(rows) == 3 and space.admissible(rows).all() and (rows[:, [0, 2]] == 32).all()


# ---- shared tables ----------------------------------------------------------------------------------------------------


def all_rows(space: ParamSpace) -> set[tuple[int, ...]]:
    """The rows of the tables of a space without joint constraints."""
    assert not space.joint
    columns = [c for group in space.groups for c in group]
    found = itertools.product(*[map(tuple, table.tolist()) for table in space.tables])
    return {tuple(x for _, x in sorted(zip(columns, itertools.chain(*row), strict=True))) for row in found}


def brute_force(space: ParamSpace) -> set[tuple[int, ...]]:
    """The rows that satisfy the constraints, one by one."""
    rows = np.array(list(itertools.product(*[p.domain for p in space.params])))
    return set(map(tuple, rows[space.admissible(rows)].tolist()))


@dataclass(frozen=True)
class Made:
    """Numbers that determine the tables of a space of three Params."""

    last: int = 16
    coefficient: int = 2
    bound: int = 60
    divisor: int = 4
    kind: str = "le0"
    other: str = "min"

    def space(self, names: str = "abc", label: str = "small") -> ParamSpace:
        a, b, c = Param(names[0], range(1, self.last + 1)), Param(names[1], range(1, 9)), Param(names[2], range(1, 9))
        extreme = {"min": minimum, "max": maximum}[self.other](poly(a), poly(b) * 2)
        constraints = [
            Constraint("le0", poly(a) * b * self.coefficient - self.bound, label),
            Constraint(self.kind, extreme - poly(c) * ceildiv(poly(b), self.divisor), label),  # type: ignore[arg-type]
        ]
        return ParamSpace([a, b, c], constraints)


def test_spaces_with_equal_domains_and_constraints_share_tables() -> None:
    """Params and labels differ, and the Params of the second space are numbered after those of the first."""
    first, second = Made().space(), Made().space("xyz", "budget")
    assert first.tables and all(x is y for x, y in zip(first.tables, second.tables, strict=True))
    assert first.groups is second.groups and second.params != first.params
    assert np.array_equal(first.sample(50, stream(1, "t")), second.sample(50, stream(1, "t")))


@pytest.mark.parametrize(
    "change", [{"last": 17}, {"coefficient": 3}, {"bound": 64}, {"divisor": 3}, {"kind": "eq0"}, {"other": "max"}], ids=str
)
def test_spaces_that_differ_in_one_number_share_nothing(change: dict[str, Any]) -> None:
    first, other = Made().space(), Made(**change).space()
    assert all_rows(first) == brute_force(first) != brute_force(other) == all_rows(other)


def test_the_columns_of_a_constraint_distinguish_spaces() -> None:
    a, b = Param("a", range(1, 9)), Param("b", range(1, 9))
    upper = ParamSpace([a, b], [Constraint("le0", poly(a) - poly(b) * 2, "x")])
    lower = ParamSpace([a, b], [Constraint("le0", poly(b) - poly(a) * 2, "x")])
    assert all_rows(upper) == brute_force(upper) != brute_force(lower) == all_rows(lower)


def test_the_limit_of_tables_distinguishes_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = Made().space()
    monkeypatch.setattr(param_space, "MAX_TABLE", 100)
    joint = Made().space()
    assert not exact.joint and joint.joint and len(joint.tables) > len(exact.tables)


def test_joint_constraints_are_those_of_each_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(param_space, "MAX_TABLE", 100)
    first, second = Made().space(), Made().space("xyz", "budget")
    assert first.tables[0] is second.tables[0]
    assert {c.label for c in first.joint} == {"small"} and {c.label for c in second.joint} == {"budget"}
    assert all(set(c.expr.vars) <= set(second.params) for c in second.joint)


def test_empty_spaces_are_refused_in_the_words_of_each() -> None:
    for name in ("first", "second"):
        p = Param(name, (2, 3))
        with pytest.raises(ScheduleError, match=f"no values of {name} satisfy the constraint {name}'s: -1 \\+ {name}$"):
            ParamSpace([p], [Constraint("le0", poly(p) - 1, f"{name}'s")])


def test_tables_are_dropped_with_the_last_space() -> None:
    before = len(param_space._TABLES)
    first, second = Made(bound=37).space(), Made(bound=37).space()
    assert len(param_space._TABLES) == before + 1
    del first, second
    gc.collect()
    assert len(param_space._TABLES) <= before


@pytest.mark.parametrize("table", [400_000, 100])
def test_pickled_spaces_have_the_same_rows_without_enumeration(table: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(param_space, "MAX_TABLE", table)
    space, _, _ = small_space()
    rows = space.sample(100, stream(1, "t"))
    data = pickle.dumps(space)
    monkeypatch.setattr(param_space._Tables, "__init__", lambda *_: pytest.fail("the tables are enumerated again"))
    again = pickle.loads(data)
    assert np.array_equal(again.sample(100, stream(1, "t")), rows)
    for name in ("mutate", "nearest"):
        assert np.array_equal(getattr(again, name)(rows, stream(2, "t")), getattr(space, name)(rows, stream(2, "t")))
    assert again.admissible(rows).all() and again.size() == space.size() and len(again.joint) == len(space.joint)


def test_spaces_of_one_pickle_share_tables() -> None:
    first, second = pickle.loads(pickle.dumps([Made().space(), Made().space("xyz")]))
    assert first.tables[0] is second.tables[0] and first.params != second.params
