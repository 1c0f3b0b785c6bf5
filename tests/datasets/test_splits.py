"""Test splits: disjoint parts, independence of the row order, and invalid arguments."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.costmodel.training.training_set import TaskKey
from tunesmith.datasets.family import family
from tunesmith.datasets.record_table import RecordTable
from tunesmith.datasets.splits import TEST, TRAIN, VALID, WAYS, assign, split
from tunesmith.support.errors import UserError


def shuffled(table: RecordTable) -> tuple[RecordTable, np.ndarray]:
    order = np.random.Generator(np.random.Philox(key=3)).permutation(len(table))
    return table.take(order), order


@pytest.mark.parametrize(
    ("by", "train", "valid"), [("within-task", 0.6, 0.2), ("task", 0.4, 0.3), ("family", 0.5, 0.0), ("target", 0.5, 0.0)]
)
def test_no_group_is_in_two_parts(table: RecordTable, by: str, train: float, valid: float) -> None:
    parts = split(table, by, train=train, valid=valid, seed=1)
    assert sum(map(len, parts)) == len(table) and len(parts.train) and len(parts.test) and bool(len(parts.valid)) == (valid > 0)
    keys = {
        "within-task": lambda f: set(zip(f["workload"], f["target"], f["sketch"], f["row"], strict=True)),
        "task": lambda f: set(f["workload"]),
        "family": lambda f: set(f["name"].map(family)),
        "target": lambda f: set(f["target"]),
    }[by]
    seen = [keys(p.frame) for p in parts]
    assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])


@pytest.mark.parametrize("by", sorted(WAYS))
def test_split_does_not_depend_on_the_order_of_the_rows(table: RecordTable, by: str) -> None:
    part = assign(table, by, train=0.5, seed=5)
    assert (assign(table, by, train=0.5, seed=5) == part).all()
    other, order = shuffled(table)
    assert (assign(other, by, train=0.5, seed=5) == part[order]).all()


def test_different_seeds_split_differently(table: RecordTable) -> None:
    assert len({assign(table, "within-task", train=0.5, seed=s).tobytes() for s in range(4)}) == 4


def test_within_task_has_some_of_every_task_in_each_part(table: RecordTable) -> None:
    part = assign(table, "within-task", train=0.6, valid=0.2, seed=0)
    frame = table.frame.assign(part=part)
    for _, lines in frame.groupby(["workload", "target"]):
        assert set(lines["part"]) == {TRAIN, VALID, TEST}
        candidates = lines.drop_duplicates(subset=["row"])
        assert (candidates["part"] == TRAIN).sum() == round(0.6 * 11)


def test_one_program_under_two_names_is_one_task_and_one_family(table: RecordTable) -> None:
    frame = table.frame.copy()
    frame.loc[frame.index[::2], "name"] = "other(x=1)"
    renamed = RecordTable(frame, table.workloads, table.targets, table.sketches)
    for by in ("task", "family"):
        part = assign(renamed, by, train=0.5, seed=2)
        assert all(len(set(part[(frame["workload"] == w).to_numpy()])) == 1 for w in ("w0", "w1", "w2"))


@pytest.mark.parametrize(
    ("by", "name", "left"),
    [("task", "matmul(m=16)", "w1"), ("task", "w1", "w1"), ("family", "conv2d", "w2"), ("target", "znver4", "w0 w1 w2")],
)
def test_held_out_groups_form_the_test_part(table: RecordTable, by: str, name: str, left: str) -> None:
    parts = split(table, by, hold_out=[name])
    assert set(parts.test.frame["workload"]) == set(left.split()) and len(parts.valid) == 0
    assert len(parts.train) == len(table) - len(parts.test)
    if by == "target":
        assert {t["mcpu"] for t in parts.test.targets.values()} == {"znver4"}


def test_groups_not_held_out_are_split_further(table: RecordTable) -> None:
    parts = split(table, "task", valid=0.5, hold_out=["w2"])
    assert [p.frame["workload"].nunique() for p in parts] == [1, 1, 1]


def test_every_part_is_filled_with_few_groups(table: RecordTable) -> None:
    for train, valid in ((0.99, 0.005), (0.01, 0.01), (0.34, 0.33)):
        assert all(len(p) for p in split(table, "task", train=train, valid=valid))
    assert [len(p) for p in split(table, "task", train=1.0)] == [len(table), 0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": "size"}, "one of within-task, task, family, target, not 'size'"),
        ({"by": "task", "train": 0.0}, "shares of the groups"),
        ({"by": "task", "train": 0.9, "valid": 0.2}, "with a sum of at most 1"),
        ({"by": "within-task", "hold_out": ["w0"]}, "split by one of these, not within-task"),
        ({"by": "task", "hold_out": ["w9"]}, "no task is named 'w9'. The table has conv2d"),
        ({"by": "family", "hold_out": ["matmul", "conv2d"]}, "hold_out leaves 0 of 2"),
        ({"by": "target", "train": 0.5, "valid": 0.2}, "cannot split by target: the table has 2 group"),
    ],
)
def test_refusals(table: RecordTable, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        split(table, **arguments)  # type: ignore[arg-type]


def test_families() -> None:
    assert [family(n) for n in ("matmul(m=1)", "file.py:f", "conv2d(n=1,h=2)")] == ["matmul", "file.py:f", "conv2d"]


def test_an_empty_table(table: RecordTable) -> None:
    assert [len(p) for p in split(table.take([]), "within-task")] == [0, 0, 0]
    with pytest.raises(UserError, match="has 0 group"):
        split(table.take([]), "task")


def test_families_of_tasks_of_models() -> None:
    """Functions of one model differ in a number, those of several in the name of the model: all belong to one family."""
    names = ["net/fused_conv2d_add", "net/fused_conv2d_add_1", "other/fused_conv2d_add_12", "net/op_conv2d", "conv2d_1(n=1)", "_1"]
    wanted = ["fused_conv2d_add"] * 3 + ["op_conv2d", "conv2d_1", "_1"]
    assert [family(n) for n in names] == wanted
    assert [TaskKey("w", n, "t").family for n in names] == wanted
