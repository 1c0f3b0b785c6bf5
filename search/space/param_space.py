"""The admissible rows of a sketch: one table of tuples for each group of Params that constraints tie together, and joint constraints.

Naive rejection starves: a convolution's dozen tile sizes almost never fit together by chance.  So each group is enumerated
once, and only what ties large groups to each other (the register budget, say) is left to rejection.  Sampling and mutation
pick lines of tables, so a mutation never leaves its group's admissible tuples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tunesmith.ir.arith.array_eval import compile_polys
from tunesmith.ir.poly import Param
from tunesmith.schedule.state import Constraint
from tunesmith.search.space.nearest_rows import NearestLines, codes
from tunesmith.support.errors import ScheduleError

Rows = npt.NDArray[np.int64]

MAX_TABLE = 400_000
"""Tuples that a group may have before filtering: past it, its constraints become joint ones."""
_NEAR, _PAIRED, _FAR = 32, 96, 16
"""What `nearest` tries for a row that breaks a joint constraint: near lines of each table, combinations of them, random rows."""

_PROBES = 64
"""Rows drawn to see that joint constraints accept some; only if they accept none of these, their values are enumerated."""


class ParamSpace:
    """All rows over `params` that meet `constraints`.

    Args:
        params: the columns of a row.
        constraints: over these Params alone.
    Raises:
        ScheduleError: no row is admissible.
    """

    def __init__(self, params: Sequence[Param], constraints: Sequence[Constraint]) -> None:
        self.params = tuple(params)
        self._constraints = tuple([c for c in constraints if c.expr.vars])
        self._column = {p: i for i, p in enumerate(self.params)}
        self.groups: list[tuple[int, ...]] = [(i,) for i in range(len(self.params))]
        self.tables: list[Rows] = [np.array(p.domain, np.int64)[:, None] for p in self.params]
        pending = list(self._constraints)
        joint: list[Constraint] = []
        # Small groups first: each filter makes the next product smaller.
        while pending:
            pending.sort(key=self._cost)
            c = pending.pop(0)
            if self._cost(c) > MAX_TABLE:
                joint.append(c)
            else:
                self._merge(c)
        self.joint = tuple(joint)
        self._check = _checker(self.joint, self.params)
        if self.joint and not self._check(self._draw(_PROBES, np.random.default_rng(0))).any() and not len(self._joint_values[1]):
            labels = ", ".join(dict.fromkeys(c.label for c in self.joint))
            raise ScheduleError("space", self.joint[0].label, f"no values of the tables meet the joint constraints {labels} together")

    def _touched(self, c: Constraint) -> list[int]:
        columns = {self._column[v] for v in c.expr.vars if isinstance(v, Param)}
        return [g for g, cols in enumerate(self.groups) if columns & set(cols)]

    def _cost(self, c: Constraint) -> int:
        size = 1
        for g in self._touched(c):
            size *= len(self.tables[g])
        return size

    def _merge(self, c: Constraint) -> None:
        touched = self._touched(c)
        columns: tuple[int, ...] = ()
        table = np.zeros((1, 0), np.int64)
        for g in touched:
            other = self.tables[g]
            table = np.hstack([np.repeat(table, len(other), axis=0), np.tile(other, (len(table), 1))])
            columns += self.groups[g]
        ok = _checker((c,), [self.params[i] for i in columns])(table)
        table = table[ok]
        if not len(table):
            names = ", ".join(self.params[i].name for i in columns)
            raise ScheduleError("space", c.label, f"no values of {names} meet the constraint {c.label}: {c.expr!r}")
        for g in reversed(touched):
            del self.groups[g], self.tables[g]
        self.groups.append(columns)
        self.tables.append(table)

    def size(self) -> int:
        """Rows in the product of the tables: exact without joint constraints, else an upper bound; see `acceptance`."""
        out = 1
        for t in self.tables:
            out *= len(t)
        return out

    def acceptance(self, rng: np.random.Generator, n: int = 4096) -> float:
        """The share of the product of the tables that meets the joint constraints, estimated from n draws."""
        return float(self._check(self._draw(n, rng)).mean()) if self.joint else 1.0

    def admissible(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows, [N, P], are of the Params' domains and meet all constraints, [N]: those that the tables and the joint ones allow."""
        ok = np.ones(len(rows), bool)
        for i, p in enumerate(self.params):
            ok &= np.isin(rows[:, i], np.array(p.domain, np.int64))
        if ok.any():  # expressions are made for values of the domains: they may divide by others
            ok[ok] = self._check_all(rows[ok])
        return ok

    @cached_property
    def _check_all(self) -> Callable[[Rows], npt.NDArray[np.bool_]]:
        return _checker(self._constraints, self.params)

    def _draw(self, n: int, rng: np.random.Generator) -> Rows:
        rows = np.empty((n, len(self.params)), np.int64)
        for cols, table in zip(self.groups, self.tables, strict=True):
            rows[:, cols] = table[rng.integers(len(table), size=n)]
        return rows

    def sample(self, n: int, rng: np.random.Generator) -> Rows:
        """n admissible rows, independent draws, [n, P].

        Raises:
            ScheduleError: the joint constraints accept next to nothing.
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
            return np.concatenate([*parts, self._draw_met(n - have, rng)])
        raise ScheduleError(
            "space",
            "joint",
            f"joint constraints {[c.label for c in self.joint]} accepted {have} of the draws; the space is empty or nearly so",
        )

    @cached_property
    def _joint_values(self) -> tuple[tuple[int, ...], Rows]:
        """The columns of the joint constraints, by group, and all values of them that tables and joint constraints admit.

        A table has many lines with the same values in these columns, so that there are far fewer of them than rows.  No columns and one
        line if there are more than `MAX_TABLE` combinations all the same.
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

    def _draw_met(self, n: int, rng: np.random.Generator) -> Rows:
        """n rows whose values in the columns of the joint constraints are drawn from those admitted: for spaces nearly all of whose
        rows break a joint constraint."""
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
        """For each row, another line of one group's table, near the old one half of the time; rows with no luck stay."""
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
                    # Keep some of the old values where the table allows: a step along few axes, not a jump.
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
        """Of 16 random lines for each old tuple, the one that differs in the fewest places."""
        pick = rng.integers(len(table), size=(len(old), 16))
        differs = (table[pick] != old[:, None, :]).sum(axis=2)
        differs[differs == 0] = 99
        best = differs.argmin(axis=1)
        return np.asarray(table[pick[np.arange(len(old)), best]])

    def crossover(self, a: Rows, b: Rows, rng: np.random.Generator) -> Rows:
        """For each pair, every group from one of the two; pairs whose child breaks a joint constraint give `a`."""
        child = a.copy()
        for cols in self.groups:
            take = np.flatnonzero(rng.random(len(a)) < 0.5)
            at = np.ix_(take, np.array(cols))
            child[at] = b[at]
        bad = ~self._check(child)
        child[bad] = a[bad]
        return child

    def nearest(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """For each row of any numbers an admissible row near it, [N, P]; an admissible row is its own.

        Near is near on a logarithmic scale, see `NearestLines`.  Each table gives its nearest line.  Where these together break a joint
        constraint, the nearest admissible one is taken of: rows that have a somewhat farther line of one table, of combinations of
        somewhat farther lines of all of them, and, if there is none, of random rows; only the last two are drawn.

        Raises:
            ScheduleError: the joint constraints accept next to nothing.
        """
        out = np.empty((len(rows), len(self.params)), np.int64)
        for cols, table, near in zip(self.groups, self.tables, self._near, strict=True):
            out[:, cols] = table[near.find(rows[:, cols])[:, 0]]
        broken = np.flatnonzero(~self._check(out))
        for low in range(0, len(broken), 256):
            part = broken[low : low + 256]
            out[part] = self._repaired(rows[part], rng)
        return out

    @cached_property
    def _near(self) -> list[NearestLines]:
        return [NearestLines(t) for t in self.tables]

    def _repaired(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """See `nearest`: rows whose nearest lines break a joint constraint."""
        n = len(rows)
        lines = [near.find(rows[:, cols], _NEAR) for cols, near in zip(self.groups, self._near, strict=True)]
        # Which of its near lines each table gives, for each trial: one table after the other alone, then all of them by chance,
        # nearer ones more often.
        ranks = [np.zeros((n, 0), np.int64) for _ in lines]
        for moved in range(len(lines)):
            steps = lines[moved].shape[1]
            for g in range(len(lines)):
                more = np.broadcast_to(np.arange(steps) if g == moved else np.zeros(steps, np.int64), (n, steps))
                ranks[g] = np.hstack([ranks[g], more])
        for g, mine in enumerate(lines):
            ranks[g] = np.hstack([ranks[g], (rng.random((n, _PAIRED)) ** 2 * mine.shape[1]).astype(np.int64)])
        trials = np.empty((n, ranks[0].shape[1], len(self.params)), np.int64)
        for cols, table, mine, rank in zip(self.groups, self.tables, lines, ranks, strict=True):
            trials[:, :, cols] = table[np.take_along_axis(mine, rank, axis=1)]
        out, found = self._closest(rows, trials)
        lost = np.flatnonzero(~found)
        if len(lost):
            drawn = self.sample(len(lost) * _FAR, rng).reshape(len(lost), _FAR, -1)
            out[lost] = self._closest(rows[lost], drawn)[0]
        return out

    def _closest(self, rows: Rows, trials: Rows) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """Of each row's trials, [N, K, P], the nearest that meets the joint constraints; and whether there is one."""
        ok = self._check(trials.reshape(-1, trials.shape[2])).reshape(trials.shape[:2])
        distance = ((codes(trials) - codes(rows)[:, None, :]) ** 2).sum(axis=2)
        distance[~ok] = np.inf
        return trials[np.arange(len(rows)), distance.argmin(axis=1)], np.asarray(ok.any(axis=1), bool)


def _checker(constraints: Sequence[Constraint], params: Sequence[Param]) -> Callable[[Rows], npt.NDArray[np.bool_]]:
    if not constraints:
        return lambda rows: np.ones(len(rows), bool)
    values = compile_polys([c.expr for c in constraints], tuple(params))
    equal = np.array([c.kind == "eq0" for c in constraints])

    def check(rows: Rows) -> npt.NDArray[np.bool_]:
        v = values(rows)
        return np.asarray(np.where(equal, v == 0, v <= 0).all(axis=1))

    return check
