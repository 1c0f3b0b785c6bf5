"""Tabular benchmarks: loading from logs, the restricted task, and refusal of unknown candidates."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tunesmith.datasets.record_table import RecordTable
from tunesmith.experiments.arena.pool import Measurement, Pool, make_pool
from tunesmith.experiments.arena.pool_file import load_pools
from tunesmith.experiments.arena.pool_space import PoolSpace
from tunesmith.ir import structural
from tunesmith.ir.poly import Param, poly
from tunesmith.ir.script.printer import script
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.record import ErrorInfo, WorkloadLine
from tunesmith.ops.workload import workload
from tunesmith.schedule.schedule import Schedule
from tunesmith.schedule.state import Constraint
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.space.param_space import ParamSpace
from tunesmith.search.task import Task
from tunesmith.support.errors import RecordError, UserError
from tunesmith.support.seeds import stream
from tunesmith.testing.synthetic_pool import synthetic_pool, synthetic_seconds

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")


def task() -> Task:
    w = workload("matmul(m=96,n=80,k=64)")
    return Task(w.text, w.func, TARGET)


@pytest.fixture(scope="module")
def pool() -> Pool:
    return synthetic_pool(task(), 40)


def space_of(pool: Pool, k: int = 0) -> PoolSpace:
    space = pool.task.space.sketches[k].space
    assert isinstance(space, PoolSpace)
    return space


def test_the_task_is_restricted_to_the_rows_of_the_pool(pool: Pool) -> None:
    real = {s.name: s for s in task().space.sketches}
    assert pool.task.digest == task().digest and len(pool) == 40 * len(real)
    for measured, s in zip(pool.sketches, pool.task.space.sketches, strict=True):
        assert structural.difference(s.func, real[s.name].func) is None
        assert s.space.size() == len(measured.rows) and real[s.name].space.admissible(measured.rows).all()
        assert isinstance(s.space, PoolSpace) and s.space.real.size() == real[s.name].space.size()  # mutation acts in the real space
        assert [p.domain for p in s.space.params] == [p.domain for p in real[s.name].params]


def test_the_space_of_a_pool_leaves_the_shared_tables_of_its_domains_alone() -> None:
    a, b = Param("a", range(1, 9)), Param("b", range(1, 9))
    free, real = ParamSpace([a, b], ()), ParamSpace([a, b], [Constraint("le0", poly(a) * b - 12, "small")])
    rows = np.array([[1, 2], [3, 4], [6, 2]])
    space = PoolSpace(real, rows)
    wanted = np.array([[8, 8], [1, 1]])
    assert np.array_equal(space.nearest(wanted, stream(0, "t")), rows[[1, 0]]) and space.size() == 3
    for unchanged in (free, ParamSpace([a, b], ())):
        assert unchanged.groups == [(0,), (1,)] and [t[:, 0].tolist() for t in unchanged.tables] == [list(range(1, 9))] * 2
        assert np.array_equal(unchanged.nearest(wanted, stream(0, "t")), wanted)


def test_the_space_gives_measured_rows_only(pool: Pool) -> None:
    space, rng = space_of(pool), stream(1, "test")
    rows = space.sample(200, rng)
    mutants = space.mutate(rows, rng)
    anything = rng.integers(0, 99, size=rows.shape)
    for given in (rows, mutants, space.crossover(rows, mutants, rng), space.nearest(anything, rng)):
        assert space.admissible(given).all() and (space.indices(given) >= 0).all()
    assert len(np.unique(rows, axis=0)) == 40
    assert not space.admissible(rows + 1000).any()
    moved = (mutants != rows).any(axis=1)
    real_moved = (space.real.mutate(rows, stream(2, "test")) != rows).any(axis=1)
    assert moved.mean() >= 0.9 * real_moved.mean()  # no mutant maps back to its parent


def test_the_nearest_row_matches_a_linear_search(pool: Pool) -> None:
    space = space_of(pool)
    rows = stream(3, "test").integers(1, 64, size=(50, len(space.params)))

    def codes(x: np.ndarray) -> np.ndarray:
        return np.rint(1024 * np.log2(1.0 + x))

    for row, found, other in zip(rows, space.snap(rows), space.snap(rows, space.snap(rows)), strict=True):
        distance = ((codes(space.rows) - codes(row)) ** 2).sum(axis=1)
        assert found == int(distance.argmin())
        distance[found] = np.inf
        assert other == int(distance.argmin())
    assert (space.snap(space.rows) == np.arange(40)).all()


def test_fractions_have_a_nearest_row_and_are_not_in_the_pool(pool: Pool) -> None:
    """7.9 is nearer to 8 than to 7, and a row of the pool plus a fraction is not in the pool."""
    space = space_of(pool)
    assert (space.indices(space.rows + 0.4) == -1).all() and not space.admissible(space.rows + 0.4).any()  # type: ignore[arg-type]
    assert (space.nearest(space.rows * 1.0, stream(0, "test")) == space.rows).all()  # type: ignore[arg-type]
    assert (space.nearest(space.rows * 1.001, stream(0, "test")) == space.rows).all()  # type: ignore[arg-type]
    real = space.real.nearest(space.rows * 1.001, stream(0, "test"))  # type: ignore[arg-type]
    assert real.dtype == np.int64 and (real == space.rows).all()


def test_a_pool_of_one_row_has_no_other(pool: Pool) -> None:
    space = space_of(pool)
    single = PoolSpace(space.real, space.rows[:1])
    rows = np.repeat(space.rows[:1], 20, axis=0)
    assert (single.mutate(rows, stream(0, "test")) == rows).all()


def test_candidates_that_are_not_in_the_pool_are_refused(pool: Pool) -> None:
    row = tuple(pool.sketches[0].rows[0].tolist())
    (found,) = pool.look_up([Candidate(0, row)])
    expected = float(pool.sketches[0].seconds[0])
    assert found.seconds == (expected if math.isfinite(expected) else None)
    for wrong, what in [
        (Candidate(0, (7,) * len(row)), "the row .7, 7.* of the sketch 'tile rows-vec'"),
        (Candidate(9, row), "sketch 9; the pool has 4 sketches"),
        (Candidate(0, [*row]), "the row"),  # type: ignore[arg-type]  # a list is not a row
        ((0, row), "which is not a Candidate"),
    ]:
        with pytest.raises(UserError, match=f"not in the pool of matmul.*{what}.*sample, mutate, crossover, nearest"):
            pool.index(wrong)  # type: ignore[arg-type]


def test_repeated_measurements_get_the_median_and_failures_are_infinitely_slow() -> None:
    s = task().space.sketches[0]
    a, b, c = (tuple(r) for r in s.space.sample(3, stream(5, "test")).tolist())
    trace = s.trace.with_configuration(a).to_json()
    seconds = [(a, 3.0), (a, 1.0), (a, 2.0), (b, 1.5), (b, math.inf), (c, math.inf), (c, 4.0), (c, 5.0)]
    lines = [Measurement(s.name, trace, r, x) for r, x in seconds]
    spoiled = [Measurement("", trace, a, 1e-9), Measurement(s.name, trace, a[:-1], 1e-9)]
    made = make_pool("m", script(task().func), TARGET.to_json(), [*lines, *spoiled])
    assert made.skipped == 2 and len(made) == 3 and made.best == 2.0
    assert {made.seconds[made.index(Candidate(0, r))] for r in (a, b, c)} == {2.0, math.inf, 5.0}
    again = make_pool("other name", made.script, dict(made.target), reversed(lines))
    assert again.digest == made.digest != make_pool("m", made.script, dict(made.target), lines[:3]).digest


def test_clean_measurements_are_counted_and_a_synthetic_pool_has_none(pool: Pool) -> None:
    assert (pool.measured, pool.clean) == (0, 0)
    s = task().space.sketches[0]
    rows = [tuple(r) for r in np.unique(s.space.sample(30, stream(0, "clean")), axis=0)[:3].tolist()]
    given = [(rows[0], 1e-6, True), (rows[0], 2e-6, False), (rows[1], math.inf, True), (rows[2], 1e-6, True)]
    found = make_pool("x", pool.script, pool.target, [Measurement(s.name, s.trace_of(r).to_json(), r, t, clean) for r, t, clean in given])
    assert (found.measured, found.clean) == (3, 2), "a failure has no time"
    assert pickle.loads(pickle.dumps(found)).clean == 2


def test_sketches_unknown_to_the_rules_are_rebuilt_from_their_traces(hand: ModuleType) -> None:
    schedule = Schedule(hand.matmul(), parametric=True)
    hand.tiled(schedule)
    trace = schedule.trace.to_json()
    lines = [Measurement("mine", trace, (x,), 1.0 / x) for x in (4, 8, 16)]
    other = Schedule(hand.matmul(), parametric=True)
    hand.tiled(other)
    other.get_block("C")
    lines.append(Measurement("mine", other.trace.to_json(), (8,), 2.0))  # the same name for other steps
    pool = make_pool("m", script(hand.matmul()), hand.TARGET.to_json(), lines)
    longer, sketch = sorted(pool.task.space.sketches, key=lambda s: s.space.size())
    assert longer.name != sketch.name and {s.name[:6] for s in (longer, sketch)} == {"mine #"}
    assert sketch.params[0].domain == (4, 8, 16) and sketch.params == sketch.space.params
    rebuilt = sketch.concretize((8,))
    assert structural.difference(rebuilt, schedule_with(hand, 8)) is None
    assert sketch.space.admissible(sketch.space.mutate(sketch.space.sample(9, stream(0, "t")), stream(1, "t"))).all()


def schedule_with(hand: ModuleType, columns: int) -> object:
    s = Schedule(hand.matmul())
    hand.tiled(s, columns)
    return s.func


def test_a_trace_that_does_not_apply_is_refused() -> None:
    pool = make_pool("m", script(task().func), TARGET.to_json(), [Measurement("mine", [["get_block", {"name": "Z"}, ["b0"]]], (), 1.0)])
    with pytest.raises(RecordError, match="sketch 'mine' cannot be applied to its workload: .*"):
        pool.task  # noqa: B018


def test_pools_are_pickled_without_their_task(pool: Pool) -> None:
    pool.task  # noqa: B018
    copy = pickle.loads(pickle.dumps(pool))
    assert "task" not in vars(copy) and copy.digest == pool.digest and copy.best == pool.best
    assert [s.name for s in copy.task.space.sketches] == [s.name for s in pool.task.space.sketches]


@pytest.fixture
def log(tmp_path: Path, hand: ModuleType) -> Path:
    """Two workloads; the first with a failure, a hand-written schedule, and one candidate twice."""
    path = tmp_path / "log.jsonl"
    for n, text in enumerate(("matmul(m=96,n=80,k=64)", "relu(shape=4096)")):
        w = workload(text)
        s = Task(w.text, w.func, TARGET).space.sketches[0]
        rows = [tuple(r) for r in np.unique(s.space.sample(30, stream(n, "log")), axis=0)[:5].tolist()]
        RecordLog(path).append(WorkloadLine(structural.digest(w.func), w.text, script(w.func)))
        for i, row in enumerate(rows):
            fields = {"sketch": s.name, "row": row, "trace": s.trace_of(row).to_json(), "workload": structural.digest(w.func)}
            bad = {"samples": (), "verified": False, "error": ErrorInfo("crash", "signal")} if i == 2 else {}
            RecordLog(path).append(
                hand.record_of(hand.matmul(), target=TARGET, seconds=1e-5 * (i + 1), timestamp=float(i), **fields, **bad)
            )
        RecordLog(path).append(hand.record_of(hand.matmul(), target=TARGET, seconds=3e-5, timestamp=9.0, **{**fields, "row": rows[0]}))
    return path


def test_logs_and_tables_give_the_same_pools(log: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.parquet"
    RecordTable.from_log(log).save(table)
    first, second = load_pools([log])
    assert [p.name for p in (first, second)] == ["matmul(m=96,n=80,k=64)", "relu(shape=4096)"]
    assert [len(first), int(np.isinf(first.seconds).sum()), first.best] == [5, 1, 2e-5]
    assert [p.digest for p in load_pools([table])] == [first.digest, second.digest]
    assert [p.name for p in load_pools([table], ["relu(shape=4096)"])] == ["relu(shape=4096)"]
    assert len(load_pools([log, table])) == 2  # equal measurements give one pool


def test_refusals(log: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no pool of 'conv' in .*log.jsonl; available: .*matmul.m=96,n=80,k=64."):
        load_pools([log], ["conv"])
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(UserError, match="there are no measurements in .*empty.jsonl"):
        load_pools([empty])
    with pytest.raises(RecordError, match="missing"):
        load_pools([tmp_path / "missing.jsonl"])
    text = log.read_text().splitlines()
    nameless = tmp_path / "nameless.jsonl"
    nameless.write_text("\n".join(line for line in text if '"kind":"workload"' not in line) + "\n")
    with pytest.raises(UserError, match="but not its program, .*Merge it with the log"):
        load_pools([nameless])
    with pytest.raises(UserError, match="0 candidates, and none of them ran .0 records have no sketch"):
        make_pool("m", script(task().func), TARGET.to_json(), [])


def test_synthetic_times_are_a_formula(pool: Pool) -> None:
    for s in pool.sketches:
        assert np.array_equal(synthetic_seconds(s.name, s.rows), s.seconds)
        assert np.array_equal(synthetic_seconds(s.name, s.rows[::-1]), s.seconds[::-1])  # independent of the other rows
    assert 0 < np.isinf(pool.seconds).mean() < 0.15
    assert synthetic_pool(task(), 40).digest == pool.digest != synthetic_pool(task(), 40, seed=1).digest
    assert np.isfinite(synthetic_pool(task(), 9, failures=0.0).seconds).all()
    with pytest.raises(UserError, match="at least 1 row"):
        synthetic_pool(task(), 0)
