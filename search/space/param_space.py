"""Represent the admissible rows of a sketch by tables of coupled Params and joint constraints between tables.

Plain rejection sampling is infeasible: a random choice of a convolution's dozen tile sizes is almost never admissible.  So each group is
enumerated once, and rejection applies only to constraints between large groups (for example, the register budget).  Sampling and
mutation choose rows of the tables, so a mutation never leaves the admissible tuples of its group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from weakref import WeakValueDictionary

import numpy as np

from tunesmith.ir.arith.array_eval import compile_polys
from tunesmith.ir.poly import Op, Param, Poly
from tunesmith.schedule.state import Constraint
from tunesmith.search.space.nearest_rows import NearestRows, codes
from tunesmith.support.array_types import BoolArray, Int64Array
from tunesmith.support.errors import ScheduleError

Rows = Int64Array

MAX_TABLE = 400_000
"""Maximum number of tuples of a group before filtering; constraints that exceed it become joint constraints."""
_NEAR, _PAIRED, _FAR = 32, 96, 16
"""Numbers of trials of `nearest` for a row that violates a joint constraint: near tuples of each table, their combinations, random rows."""

_PROBES = 64
"""Rows drawn to test the joint constraints; their values are enumerated only if none of these rows is accepted."""


class _Tables:
    """The tables of a space: the Params in groups, and the admissible tuples of each group.

    Attributes:
        groups: the columns of each group.
        tables: the tuples of each group, [T, columns].
        joint: positions of the constraints between groups that are too large to be enumerated together.
    """

    def __init__(self, params: Sequence[Param], constraints: Sequence[Constraint]) -> None:
        self._params = params
        column = {p: i for i, p in enumerate(params)}
        self._columns = {c: {column[v] for v in c.expr.vars if isinstance(v, Param)} for c in constraints}
        self.groups: list[tuple[int, ...]] = [(i,) for i in range(len(params))]
        self._group = list(range(len(params)))
        """The group of each column."""
        self.tables: list[Rows] = [np.array(p.domain, np.int64)[:, None] for p in params]
        self.joint: list[int] = []
        pending = list(constraints)
        # Small groups first: each filter reduces the next product.
        while pending:
            pending.sort(key=self._cost)
            c = pending.pop(0)
            if self._cost(c) > MAX_TABLE:
                self.joint.append(constraints.index(c))
            else:
                self._merge(c)

    @cached_property
    def near(self) -> list[NearestRows]:
        """Indices of the tables, for `ParamSpace.nearest`."""
        return [NearestRows(t) for t in self.tables]

    def __getstate__(self) -> dict[str, object]:
        return {"groups": self.groups, "tables": self.tables, "joint": self.joint}

    def _groups_of(self, c: Constraint) -> list[int]:
        return sorted({self._group[i] for i in self._columns[c]})

    def _cost(self, c: Constraint) -> int:
        size = 1
        for g in self._groups_of(c):
            size *= len(self.tables[g])
        return size

    def _merge(self, c: Constraint) -> None:
        merged = self._groups_of(c)
        columns: tuple[int, ...] = ()
        table = np.zeros((1, 0), np.int64)
        for g in merged:
            other = self.tables[g]
            table = np.hstack([np.repeat(table, len(other), axis=0), np.tile(other, (len(table), 1))])
            columns += self.groups[g]
        ok = _checker((c,), [self._params[i] for i in columns])(table)
        table = table[ok]
        if not len(table):
            names = ", ".join(self._params[i].name for i in columns)
            raise ScheduleError("space", c.label, f"no values of {names} satisfy the constraint {c.label}: {c.expr!r}")
        for g in reversed(merged):
            del self.groups[g], self.tables[g]
        self.groups.append(columns)
        self.tables.append(table)
        for g, cols in enumerate(self.groups):
            for i in cols:
                self._group[i] = g


_TABLES: WeakValueDictionary[tuple[object, ...], _Tables] = WeakValueDictionary()
"""Tables by domains and constraints: the sketches of a function often differ in structure alone, and their tables in nothing."""


def _shape(x: Poly | Op | Param, column: Mapping[Param, int]) -> object:
    """An expression with columns instead of Params, to compare those of two sketches."""
    if isinstance(x, Param):
        return column[x]
    if isinstance(x, Op):
        return (x.op, tuple([_shape(a, column) for a in x.args]))
    return tuple([(c, tuple([_shape(a, column) for a in m])) for m, c in x.terms])  # type: ignore[arg-type]


class ParamSpace:
    """All rows over `params` that satisfy `constraints`.

    Args:
        params: the columns of a row.
        constraints: constraints over these Params only.
    Raises:
        ScheduleError: no row is admissible.
    """

    def __init__(self, params: Sequence[Param], constraints: Sequence[Constraint]) -> None:
        self.params = tuple(params)
        self._constraints = tuple([c for c in constraints if c.expr.vars])
        self._column = {p: i for i, p in enumerate(self.params)}
        shapes = tuple([(c.kind, _shape(c.expr, self._column)) for c in self._constraints])
        key = (tuple([p.domain for p in self.params]), shapes, MAX_TABLE)
        found = _TABLES.get(key)
        if found is None:
            found = _TABLES[key] = _Tables(self.params, self._constraints)
        self._tables = found
        self.groups, self.tables = found.groups, found.tables
        self.joint = tuple([self._constraints[i] for i in found.joint])
        if self.joint and not self._check(self._draw(_PROBES, np.random.default_rng(0))).any() and not len(self._joint_values[1]):
            labels = ", ".join(dict.fromkeys(c.label for c in self.joint))
            raise ScheduleError("space", self.joint[0].label, f"no combination of the tables satisfies the joint constraints {labels}")

    @cached_property
    def _check(self) -> Callable[[Rows], BoolArray]:
        return _checker(self.joint, self.params)

    def __getstate__(self) -> dict[str, object]:
        """The tables without compiled constraints, so that another process does not enumerate them again."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_check", "_check_all")}

    def size(self) -> int:
        """Number of rows in the product of the tables: exact without joint constraints, else an upper bound; see `acceptance`."""
        out = 1
        for t in self.tables:
            out *= len(t)
        return out

    def acceptance(self, rng: np.random.Generator, n: int = 4096) -> float:
        """The share of the product of the tables that satisfies the joint constraints, estimated from n draws."""
        return float(self._check(self._draw(n, rng)).mean()) if self.joint else 1.0

    def admissible(self, rows: Rows) -> BoolArray:
        """Whether each of the rows [N, P] is within the Params' domains and satisfies all constraints, [N]."""
        ok = np.ones(len(rows), bool)
        for i, p in enumerate(self.params):
            ok &= np.isin(rows[:, i], np.array(p.domain, np.int64))
        if ok.any():  # outside the domains the expressions may divide by zero
            ok[ok] = self._check_all(rows[ok])
        return ok

    @cached_property
    def _check_all(self) -> Callable[[Rows], BoolArray]:
        return _checker(self._constraints, self.params)

    def _draw(self, n: int, rng: np.random.Generator) -> Rows:
        rows = np.empty((n, len(self.params)), np.int64)
        for cols, table in zip(self.groups, self.tables, strict=True):
            rows[:, cols] = table[rng.integers(len(table), size=n)]
        return rows

    def sample(self, n: int, rng: np.random.Generator) -> Rows:
        """n admissible rows, drawn independently, [n, P].

        Raises:
            ScheduleError: the joint constraints reject almost all rows.
        """
        parts: list[Rows] = []
        have = 0
        for _ in range(200):
            rows = self._draw(max(n - have, 64) * 2, rng)
            rows = rows[self._check(rows)]
            parts.append(rows)
            have += len(rows)
            if have >= n:
                return np.concatenate(parts)[:n]
        columns, lines = self._joint_values
        if columns and len(lines):
            return np.concatenate([*parts, self._draw_joint(n - have, rng)])
        raise ScheduleError(
            "space",
            "joint",
            f"joint constraints {[c.label for c in self.joint]} accepted {have} of the draws; the space is empty or nearly empty",
        )

    @cached_property
    def _joint_values(self) -> tuple[tuple[int, ...], Rows]:
        """The columns of the joint constraints, by group, and all their values that the tables and joint constraints admit.

        Many tuples of a table have equal values in these columns, so there are far fewer combinations than rows.  No columns and one
        empty tuple if there are more than `MAX_TABLE` combinations.
        """
        used = {self._column[v] for c in self.joint for v in c.expr.vars if isinstance(v, Param)}
        columns: tuple[int, ...] = ()
        lines = np.zeros((1, 0), np.int64)
        for cols, table in zip(self.groups, self.tables, strict=True):
            mine = [k for k, col in enumerate(cols) if col in used]
            if not mine:
                continue
            values = np.unique(table[:, mine], axis=0)
            if len(lines) * len(values) > MAX_TABLE:
                return (), np.zeros((1, 0), np.int64)
            lines = np.hstack([np.repeat(lines, len(values), axis=0), np.tile(values, (len(lines), 1))])
            columns += tuple([cols[k] for k in mine])
        return columns, lines[_checker(self.joint, [self.params[i] for i in columns])(lines)]

    def _draw_joint(self, n: int, rng: np.random.Generator) -> Rows:
        """n rows whose values in the columns of the joint constraints are drawn from the admitted ones.

        For spaces in which almost all rows violate a joint constraint.
        """
        columns, lines = self._joint_values
        rows = np.empty((n, len(self.params)), np.int64)
        rows[:, columns] = lines[rng.integers(len(lines), size=n)]
        for cols, table in zip(self.groups, self.tables, strict=True):
            mine = [k for k, col in enumerate(cols) if col in columns]
            for row in rows:
                same = table[(table[:, mine] == row[[cols[k] for k in mine]]).all(axis=1)]
                row[np.array(cols)] = same[rng.integers(len(same))]
        return rows

    def mutate(self, rows: Rows, rng: np.random.Generator, tries: int = 4) -> Rows:
        """Each row with the tuple of one group replaced, by a near one with probability 1/2; unchanged after `tries` rejections."""
        out = rows.copy()
        todo = np.arange(len(rows) if self.groups else 0)
        for _ in range(tries):
            if not len(todo):
                break
            new = rows[todo].copy()
            group = rng.integers(len(self.groups), size=len(todo))
            for g, (cols, table) in enumerate(zip(self.groups, self.tables, strict=True)):
                mine = np.flatnonzero(group == g)
                if not len(mine):
                    continue
                pick = table[rng.integers(len(table), size=len(mine))]
                if len(cols) > 1:
                    # Keep some of the old values if the table allows it, so that few columns change.
                    near = self._neighbours(table, new[mine][:, cols], rng)
                    use = rng.random(len(mine)) < 0.5
                    pick[use] = near[use]
                new[np.ix_(mine, np.array(cols))] = pick
            ok = self._check(new)
            out[todo[ok]] = new[ok]
            todo = todo[~ok]
        return out

    @staticmethod
    def _neighbours(table: Rows, old: Rows, rng: np.random.Generator) -> Rows:
        """For each old tuple, the one of 16 random tuples that differs in the fewest columns."""
        pick = rng.integers(len(table), size=(len(old), 16))
        differs = (table[pick] != old[:, None, :]).sum(axis=2)
        differs[differs == 0] = 99
        best = differs.argmin(axis=1)
        return np.asarray(table[pick[np.arange(len(old)), best]])

    def crossover(self, a: Rows, b: Rows, rng: np.random.Generator) -> Rows:
        """For each pair of rows, every group from one of the two; `a` if the child violates a joint constraint."""
        child = a.copy()
        for cols in self.groups:
            take = np.flatnonzero(rng.random(len(a)) < 0.5)
            at = np.ix_(take, np.array(cols))
            child[at] = b[at]
        bad = ~self._check(child)
        child[bad] = a[bad]
        return child

    def nearest(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """For each row of any integers a near admissible row, [N, P]; an admissible row is returned unchanged.

        Distances are logarithmic, see `NearestRows`.  Each table contributes its nearest tuple.  If these violate a joint constraint,
        the result is the nearest admissible row among: rows with a farther tuple from one table, random combinations of farther tuples
        from all tables, and, if none is admissible, random rows.

        Raises:
            ScheduleError: the joint constraints reject almost all rows.
        """
        out = np.empty((len(rows), len(self.params)), np.int64)
        for cols, table, near in zip(self.groups, self.tables, self._near, strict=True):
            out[:, cols] = table[near.find(rows[:, cols])[:, 0]]
        violating = np.flatnonzero(~self._check(out))
        for low in range(0, len(violating), 256):
            part = violating[low : low + 256]
            out[part] = self._repaired(rows[part], rng)
        return out

    @property
    def _near(self) -> list[NearestRows]:
        return self._tables.near

    def _repaired(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """See `nearest`: near rows for those whose nearest tuples violate a joint constraint."""
        n = len(rows)
        lines = [index.find(rows[:, cols], _NEAR) for cols, index in zip(self.groups, self._near, strict=True)]
        # Rank of the tuple that each table contributes to each trial: first one table varies at a time, then all vary at random, with
        # a preference for near tuples.
        ranks = [np.zeros((n, 0), np.int64) for _ in lines]
        for moved in range(len(lines)):
            steps = lines[moved].shape[1]
            for g in range(len(lines)):
                more = np.broadcast_to(np.arange(steps) if g == moved else np.zeros(steps, np.int64), (n, steps))
                ranks[g] = np.hstack([ranks[g], more])
        for g, near in enumerate(lines):
            ranks[g] = np.hstack([ranks[g], (rng.random((n, _PAIRED)) ** 2 * near.shape[1]).astype(np.int64)])
        trials = np.empty((n, ranks[0].shape[1], len(self.params)), np.int64)
        for cols, table, near, rank in zip(self.groups, self.tables, lines, ranks, strict=True):
            trials[:, :, cols] = table[np.take_along_axis(near, rank, axis=1)]
        out, found = self._closest(rows, trials)
        lost = np.flatnonzero(~found)
        if len(lost):
            drawn = self.sample(len(lost) * _FAR, rng).reshape(len(lost), _FAR, -1)
            out[lost] = self._closest(rows[lost], drawn)[0]
        return out

    def _closest(self, rows: Rows, trials: Rows) -> tuple[Rows, BoolArray]:
        """The nearest of each row's trials [N, K, P] that satisfies the joint constraints, and whether there is one."""
        ok = self._check(trials.reshape(-1, trials.shape[2])).reshape(trials.shape[:2])
        distance = ((codes(trials) - codes(rows)[:, None, :]) ** 2).sum(axis=2)
        distance[~ok] = np.inf
        return trials[np.arange(len(rows)), distance.argmin(axis=1)], np.asarray(ok.any(axis=1), bool)


def _checker(constraints: Sequence[Constraint], params: Sequence[Param]) -> Callable[[Rows], BoolArray]:
    if not constraints:
        return lambda rows: np.ones(len(rows), bool)
    values = compile_polys([c.expr for c in constraints], tuple(params))
    equal = np.array([c.kind == "eq0" for c in constraints])

    def check(rows: Rows) -> BoolArray:
        v = values(rows)
        return np.asarray(np.where(equal, v == 0, v <= 0).all(axis=1))

    return check
