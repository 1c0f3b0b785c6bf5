"""Splits of a table into train, valid and test: nothing that a model is judged by may have been seen in another guise.

What must stay together is a *group*: a candidate (all its measurements), a program (on all targets, under all names), an operator, a
target.  Groups are dealt out by a named random stream over their sorted keys, so that the order of the lines does not matter.
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
    """The parts of a table; `valid` is empty unless a share was asked for."""

    train: RecordTable
    valid: RecordTable
    test: RecordTable


def split(table: RecordTable, by: str, *, train: float = 0.9, valid: float = 0.0, seed: int = 0, hold_out: Sequence[str] = ()) -> Split:
    """Split a table.

    Args:
        table: what to split.
        by: what is not shared between the parts:
            `within-task`: candidates; each part has some of every task.
            `task`: programs; one that has records on two targets is in one part.
            `family`: operators, `matmul` or `conv2d`, whatever their shapes.
            `target`: machines.
        train: share of the groups to learn from.
        valid: share to choose by; the rest is the test.
        seed: of the choice; equal seeds split equal tables alike, in whatever order their lines are.
        hold_out: the groups of the test, by name, instead of random ones: names or digests of workloads, operators, keys of targets (or
            their processor, `mcpu`).  `valid` is then a share of the others, and
            `train` what is left.
    Raises:
        UserError: an unknown way, shares that are none, a name that is not there, or too few groups for the parts.
    """
    part = assign(table, by, train=train, valid=valid, seed=seed, hold_out=hold_out)
    return Split(*(table.take(part == k) for k in (TRAIN, VALID, TEST)))


def assign(table: RecordTable, by: str, *, train: float = 0.9, valid: float = 0.0, seed: int = 0, hold_out: Sequence[str] = ()) -> Parts:
    """The part of each line: 0 train, 1 valid, 2 test.  Arguments and errors as for `split`."""
    if by not in WAYS:
        raise UserError(f"a table is split by one of {', '.join(WAYS)}, not {by!r}")
    if not (0 < train <= 1 and 0 <= valid < 1 and (hold_out or train + valid <= 1)):
        raise UserError(f"train and valid are shares of the groups, and together at most 1; got train={train!r} and valid={valid!r}")
    if by == "within-task":
        if hold_out:
            raise UserError("hold_out names whole tasks, families or targets: split by one of these, not within-task")
        return _within_task(table, train, valid, seed)
    return _by_group(table, by, train, valid, seed, hold_out)


def _within_task(table: RecordTable, train: float, valid: float, seed: int) -> Parts:
    part = np.zeros(len(table), np.int8)
    frame = table.frame
    traces = frame["trace"].where(frame["sketch"] == "", "")  # a schedule written by hand is its own candidate
    keys = [f"{sketch}\n{row}\n{trace}" for sketch, row, trace in zip(frame["sketch"], frame["row"], traces, strict=True)]
    for task, lines in groups(frame, ["workload", "target"]).items():
        dealt = _dealt(sorted({keys[i] for i in lines}), train, valid, seed, "within-task", *task)
        part[lines] = [dealt[keys[i]] for i in lines]
    return part


def _by_group(table: RecordTable, by: str, train: float, valid: float, seed: int, hold_out: Sequence[str]) -> Parts:
    of_line = WAYS[by](table)
    every = sorted(set(of_line))
    if not hold_out and train + valid == 1 and len(every) == 1:
        return np.zeros(len(table), np.int8)
    if len(every) < 2 + (valid > 0):
        raise UserError(
            f"cannot split by {by}: the table has {len(every)} of them, and each part needs one. Split within-task, or merge more"
        )
    if not hold_out:
        dealt = _dealt(every, train, valid, seed, by, whole=True)
    else:
        test = _held_out(table, by, of_line, hold_out)
        rest = [g for g in every if g not in test]
        if len(rest) < 1 + (valid > 0):
            raise UserError(f"hold_out leaves {len(rest)} of {len(every)} to learn from: hold out fewer")
        dealt = {**_dealt(rest, 1 - valid, valid, seed, by, whole=True), **dict.fromkeys(test, TEST)}
    return np.array([dealt[g] for g in of_line], np.int8)


def _dealt(keys: Sequence[str], train: float, valid: float, seed: int, *names: str, whole: bool = False) -> dict[str, int]:
    """A part for each group.  With `whole`, each part that was asked for gets one at least."""
    n = len(keys)
    first, second = round(train * n), round((train + valid) * n)
    if whole:
        last = n - (train + valid < 1)  # so many are left for train and valid
        first = min(max(first, 1), last - (valid > 0))
        second = min(max(second, first + (valid > 0)), last) if train + valid < 1 else n
    order = stream(seed, "datasets.split", *names).permutation(n)
    return {keys[g]: TRAIN if at < first else VALID if at < second else TEST for at, g in enumerate(order.tolist())}


def _held_out(table: RecordTable, by: str, of_line: Sequence[str], wanted: Sequence[str]) -> set[str]:
    """The groups that `wanted` names."""
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
    """Of a program with several names, the first decides: it must not be on both sides."""
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
"""How a table can be split, and the group of each line."""
