"""Split a table into train, valid and test parts without leakage between them.

Rows that must stay together form a *group*: a candidate (all its measurements), a program (on all targets, under all names), an operator or
a target.  Groups are assigned by a named random stream over their sorted keys, so that the order of the rows does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tunesmith.datasets.family import family
from tunesmith.datasets.record_columns import groups
from tunesmith.datasets.record_table import RecordTable
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

Parts = npt.NDArray[np.int8]
TRAIN, VALID, TEST = 0, 1, 2
NAMES = ("train", "valid", "test")


class Split(NamedTuple):
    """The parts of a table; `valid` is empty unless a share is requested."""

    train: RecordTable
    valid: RecordTable
    test: RecordTable


def split(table: RecordTable, by: str, *, train: float = 0.9, valid: float = 0.0, seed: int = 0, hold_out: Sequence[str] = ()) -> Split:
    """Split a table.

    Args:
        table: the table to split.
        by: the unit that is not shared between parts:
            `within-task`: candidates; each part has some of every task.
            `task`: programs; all records of a program are in one part, also those on several targets.
            `family`: operators, such as `matmul` or `conv2d`, with all their shapes.
            `target`: machines.
        train: share of the groups for training.
        valid: share for model selection; the remainder is the test part.
        seed: seed of the split; equal seeds split equal tables equally, for any order of the rows.
        hold_out: names of the groups of the test part, instead of random ones: names or digests of workloads, operators, keys of targets
            (or their processor, `mcpu`).  `valid` is then a share of the other groups, and `train` the remainder.
    Raises:
        UserError: `by` or a name is unknown, the shares are invalid, or there are too few groups for the parts.
    """
    part = assign(table, by, train=train, valid=valid, seed=seed, hold_out=hold_out)
    return Split(*(table.take(part == k) for k in (TRAIN, VALID, TEST)))


def assign(table: RecordTable, by: str, *, train: float = 0.9, valid: float = 0.0, seed: int = 0, hold_out: Sequence[str] = ()) -> Parts:
    """The part of each row: 0 train, 1 valid, 2 test.  Arguments and errors are as for `split`."""
    if by not in WAYS:
        raise UserError(f"a table is split by one of {', '.join(WAYS)}, not {by!r}")
    if not (0 < train <= 1 and 0 <= valid < 1 and (hold_out or train + valid <= 1)):
        raise UserError(f"train and valid must be shares of the groups, with a sum of at most 1; got train={train!r} and valid={valid!r}")
    if by == "within-task":
        if hold_out:
            raise UserError("hold_out names whole tasks, families or targets: split by one of these, not within-task")
        return _within_task(table, train, valid, seed)
    return _by_group(table, by, train, valid, seed, hold_out)


def _within_task(table: RecordTable, train: float, valid: float, seed: int) -> Parts:
    part = np.zeros(len(table), np.int8)
    frame = table.frame
    traces = frame["trace"].where(frame["sketch"] == "", "")  # a handwritten schedule is identified by its trace
    keys = [f"{sketch}\n{row}\n{trace}" for sketch, row, trace in zip(frame["sketch"], frame["row"], traces, strict=True)]
    for task, lines in groups(frame, ["workload", "target"]).items():
        assigned = _assign_groups(sorted({keys[i] for i in lines}), train, valid, seed, "within-task", *task)
        part[lines] = [assigned[keys[i]] for i in lines]
    return part


def _by_group(table: RecordTable, by: str, train: float, valid: float, seed: int, hold_out: Sequence[str]) -> Parts:
    of_line = WAYS[by](table)
    every = sorted(set(of_line))
    if not hold_out and train + valid == 1 and len(every) == 1:
        return np.zeros(len(table), np.int8)
    if len(every) < 2 + (valid > 0):
        raise UserError(
            f"cannot split by {by}: the table has {len(every)} group(s), but each part needs one. Split within-task, or merge more tables"
        )
    if not hold_out:
        assigned = _assign_groups(every, train, valid, seed, by, whole=True)
    else:
        test = _held_out(table, by, of_line, hold_out)
        rest = [g for g in every if g not in test]
        if len(rest) < 1 + (valid > 0):
            raise UserError(f"hold_out leaves {len(rest)} of {len(every)} groups for training: hold out fewer")
        assigned = {**_assign_groups(rest, 1 - valid, valid, seed, by, whole=True), **dict.fromkeys(test, TEST)}
    return np.array([assigned[g] for g in of_line], np.int8)


def _assign_groups(keys: Sequence[str], train: float, valid: float, seed: int, *names: str, whole: bool = False) -> dict[str, int]:
    """The part of each group.  With `whole`, each requested part gets at least one group."""
    n = len(keys)
    first, second = round(train * n), round((train + valid) * n)
    if whole:
        last = n - (train + valid < 1)  # groups available for train and valid
        first = min(max(first, 1), last - (valid > 0))
        second = min(max(second, first + (valid > 0)), last) if train + valid < 1 else n
    order = stream(seed, "datasets.split", *names).permutation(n)
    return {keys[g]: TRAIN if at < first else VALID if at < second else TEST for at, g in enumerate(order.tolist())}


def _held_out(table: RecordTable, by: str, of_line: Sequence[str], wanted: Sequence[str]) -> set[str]:
    """The groups named by `wanted`."""
    known: dict[str, set[str]] = {}
    for group, name, workload, target in zip(of_line, table.frame["name"], table.frame["workload"], table.frame["target"], strict=True):
        processor = str(table.targets.get(target, {}).get("mcpu", ""))
        names = {"task": (name, workload), "family": (family(name),), "target": (target, processor)}[by]
        for n in names:
            known.setdefault(n, set()).add(group)
    missing = [w for w in wanted if w not in known]
    if missing:
        raise UserError(f"hold_out: no {by} is named {missing[0]!r}. The table has {', '.join(sorted(filter(None, known)))}")
    return {group for w in wanted for group in known[w]}


def _families(table: RecordTable) -> list[str]:
    """The family of each row.  A program with several names gets the family of the first, so that it is in one part only."""
    first: dict[str, str] = {}
    for digest, name in sorted(set(zip(table.frame["workload"], table.frame["name"], strict=True))):
        first.setdefault(digest, family(name))
    return [first[d] for d in table.frame["workload"]]


WAYS: dict[str, Callable[[RecordTable], list[str]]] = {
    "within-task": lambda table: [],
    "task": lambda table: table.frame["workload"].tolist(),
    "family": _families,
    "target": lambda table: table.frame["target"].tolist(),
}
"""The ways to split a table, with the function that returns the group of each row."""
