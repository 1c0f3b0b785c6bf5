"""`dataset export`: named feature columns equal to those of a search, computed from the table only."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tunesmith.costmodel.features.store_features import SCHEMA_VERSION
from tunesmith.datasets.record_table import RecordTable
from tunesmith.driver.workloads import find_subject
from tunesmith.experiments.pools.export import PREFIX, with_features
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.record import ErrorInfo, Record, WorkloadLine
from tunesmith.search.task import Task
from tunesmith.support.errors import UserError

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")


def records_of(task: Task, seed: int = 0) -> list[Record]:
    """Three candidates of each sketch."""
    rng = np.random.default_rng(seed)
    return [
        Record(
            workload=task.digest,
            target=task.target.to_json(),
            trace=s.trace_of(tuple(row)).to_json(),
            sketch=s.name,
            row=tuple(row),
            samples=(1e-6,),
            clean=True,
            error=ErrorInfo("crash", "") if i == 2 else None,
            verified=i != 2,
            host={},
            versions={},
            seed=0,
            timestamp=1000.0 + i,
            policy={},
        )
        for s in task.space.sketches
        for i, row in enumerate(s.space.sample(3, rng).tolist())
    ]


def table_of(*tasks: Task) -> RecordTable:
    lines = [WorkloadLine(t.digest, t.name, t.measured.script) for t in tasks]
    return RecordTable.from_records([r for t in tasks for r in records_of(t)], lines, [TARGET])


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return [find_subject(text).task(TARGET) for text in ("matmul(m=64,n=64,k=64)", "softmax(m=16,n=40)")]


def test_features_equal_those_of_a_search(tasks: list[Task], tmp_path: Path) -> None:
    table = table_of(*tasks)
    exported = with_features(table)
    assert not exported.without
    exported.table.save(tmp_path / "e.parquet")
    loaded = RecordTable.load(tmp_path / "e.parquet")
    assert loaded.records() == table.records()
    columns = [c for c in loaded.frame if c.startswith(PREFIX)]
    names = tasks[0].space.sketches[0].features(TARGET).program_names
    assert columns == [PREFIX + n for n in names]
    assert loaded.notes["features"]["columns"] == columns and loaded.notes["features"]["schema"] == SCHEMA_VERSION  # type: ignore[index]
    for task in tasks:
        for sketch in task.space.sketches:
            lines = loaded.frame[(loaded.frame["workload"] == task.digest) & (loaded.frame["sketch"] == sketch.name)]
            expected = sketch.features(TARGET).program(np.array(lines["row"].tolist(), np.int64))
            np.testing.assert_array_equal(lines[columns].to_numpy(), expected)


def test_exporting_again_replaces_the_columns(tasks: list[Task]) -> None:
    once = with_features(table_of(tasks[1])).table
    twice = with_features(once).table
    assert list(once.frame.columns) == list(twice.frame.columns)


def test_a_hand_written_schedule_has_features(hand: ModuleType) -> None:
    record = hand.record_of(hand.matmul())
    log = [record, hand.record_of(hand.matmul(), lambda s: hand.tiled(s, 4), timestamp=1.0)]
    func = hand.matmul()
    table = RecordTable.from_records(log, [WorkloadLine(record.workload, hand.MATMUL, str(func))])
    frame = with_features(table).table.frame
    assert frame[[c for c in frame if c.startswith(PREFIX)]].notna().all().all()


def test_lines_without_features_are_counted_with_the_reason(tasks: list[Task]) -> None:
    table = table_of(*tasks)
    nameless = RecordTable(table.frame, {tasks[0].digest: table.workloads[tasks[0].digest]}, table.targets, table.sketches)
    exported = with_features(nameless)
    count = 3 * len(tasks[1].space.sketches)
    (reason,) = exported.without
    assert sum(exported.without.values()) == 3 * len(tasks[1].space.sketches) == count and "has no program of the workload" in reason
    missing = exported.table.frame["feature.analytic.seconds"].isna()
    assert missing.sum() == count and set(exported.table.frame["workload"][missing]) == {tasks[1].digest}


def test_steps_that_do_not_match_are_reported(tasks: list[Task]) -> None:
    table = table_of(tasks[1])
    frame = table.frame.copy()
    frame.loc[0, "trace"] = json.dumps([["get_block", {"name": "nothing"}, ["b0"]]])
    frame.loc[1, "trace"] = json.dumps([["os_system", {"command": "x"}, []]])
    frame.at[2, "row"] = (1,)
    reasons = " ".join(with_features(RecordTable(frame, table.workloads, table.targets, table.sketches)).without)
    assert "no block named 'nothing'" in reasons or "nothing" in reasons
    assert "os_system" in reasons and "some rows do not have" in reasons


def test_nothing_to_export(tasks: list[Task]) -> None:
    table = table_of(tasks[1])
    with pytest.raises(UserError, match="no line of the table has features: .*has no program"):
        with_features(RecordTable(table.frame, {}, table.targets, table.sketches))
    with pytest.raises(UserError, match="it is empty"):
        with_features(table.take([]))
