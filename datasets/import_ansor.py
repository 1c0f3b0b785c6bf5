"""Import logs of TVM's auto_scheduler (Ansor), with one record per line, into a foreign table.

A line is `{"i": [task, state], "r": [costs, error_no, all_cost, timestamp], "v": "v0.6"}`: task begins with the workload key and the
target and holds the hardware parameters; state is `[[], steps]`, each step a list that begins with its kind (SP split, RE reorder, ...).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from tunesmith.datasets.foreign_table import (
    NO_TIME,
    ForeignRecord,
    ForeignTable,
    compact,
    files_of,
    good_lines,
    integers,
    items,
    text,
    times,
)
from tunesmith.datasets.parquet_file import PathLike
from tunesmith.measure.records.fields import show
from tunesmith.measure.records.log import LogReport
from tunesmith.support.errors import RecordError, UserError

ERRORS = {
    1: ("build_error", "INSTANTIATION_ERROR"),
    2: ("build_error", "COMPILE_HOST"),
    3: ("build_error", "COMPILE_DEVICE"),
    4: ("run_error", "RUNTIME_DEVICE"),
    5: ("wrong_result", "WRONG_ANSWER"),
    6: ("timeout", "BUILD_TIMEOUT"),
    7: ("timeout", "RUN_TIMEOUT"),
    8: ("run_error", "UNKNOWN_ERROR"),
}
"""Ansor's error numbers: tunesmith's error kind, Ansor's name."""

_SAMPLED = {"SP": 4, "CA": 2, "AN": 3, "PR": 3}
"""Steps with a sampled choice, and its index in the step: factors of a split, location of a computation, annotation, pragma."""


def load(paths: PathLike | Sequence[PathLike], limit: int | None = None) -> ForeignTable:
    """Load Ansor logs.

    Args:
        paths: logs, or folders that contain `*.json` and `*.jsonl` files.
        limit: maximum number of records per workload and target; the first ones are kept.
    Raises:
        RecordError: a file cannot be read.  Its content never raises: invalid lines are counted in `report`.
        UserError: the limit is below 1.
    """
    report = LogReport()
    files = files_of(paths, "*.json*")
    found = ((path.name, number, record) for path in files for number, record in read(str(path), report, "ansor"))
    return ForeignTable.of(limited(found, limit), report)


def read(path: PathLike, report: LogReport, source: str, hardware: str | None = None) -> Iterator[tuple[int, ForeignRecord]]:
    """The records of one log with their line numbers; invalid lines are counted in the report."""
    for number, line in good_lines(path, report):
        try:
            yield number, parse(line, source, hardware)
        except RecordError as error:
            report.add_bad(path, number, str(error))


def limited(found: Iterator[tuple[str, int, ForeignRecord]], limit: int | None) -> Iterator[tuple[str, int, ForeignRecord]]:
    """The first records of each workload and target."""
    if limit is not None and limit < 1:
        raise UserError(f"limit must be at least 1 record per task, got {limit}")
    return found if limit is None else _limited(found, limit)


def parse(line: object, source: str = "ansor", hardware: str | None = None) -> ForeignRecord:
    """Parse one line.

    Args:
        line: plain data.
        source: value of the `source` column.
        hardware: JSON text for the `hardware` column; by default the hardware parameters of the line.
    Raises:
        RecordError: the line is invalid; the message contains the reason.
    """
    if not isinstance(line, dict) or not {"i", "r", "v"} <= line.keys():
        raise RecordError(f"not an Ansor record: expected an object with i, r and v, got {show(line)}")
    if not re.fullmatch(r"v0\.[1-9]", text(line["v"], "the version")):
        raise RecordError(f"the version is {show(line['v'])}; supported are v0.1 to v0.9, in the format of v0.6")
    task, state = items(line["i"], "i", 2)[:2]
    costs, number, _, timestamp = items(line["r"], "r", 4)[:4]
    task, steps = items(task, "the task", 2), items(items(state, "the state", 2)[1], "the steps", 0)
    for step in steps:
        text(items(step, "a step", 1)[0], "the kind of a step")
    error = _error(number)
    samples = () if error[0] else times(costs, "the costs")
    if error[0] is None and (not samples or max(samples) >= NO_TIME):
        raise RecordError(f"neither an error nor a time: costs are {show(costs)}")
    if type(timestamp) not in (int, float) or not 0 <= timestamp < 1e12:
        raise RecordError(f"the timestamp is {show(timestamp)}, not seconds since 1970")
    params = next((part for part in task[2:] if isinstance(part, list) and part and integers(part) == part), [])
    return ForeignRecord(
        source,
        text(task[0], "the workload key"),
        text(task[1], "the target"),
        compact(params) if hardware is None else hardware,
        *error,
        samples,
        float(timestamp),
        compact(steps),
        tuple(x for step in steps for x in _choice(step)),
    )


def _limited(found: Iterator[tuple[str, int, ForeignRecord]], limit: int) -> Iterator[tuple[str, int, ForeignRecord]]:
    taken: Counter[tuple[str, str]] = Counter()
    for file, number, record in found:
        key = (record.workload, record.target)
        taken[key] += 1
        if taken[key] <= limit:
            yield file, number, record


def _error(number: object) -> tuple[str | None, str | None]:
    if number == 0 and type(number) is int:
        return None, None
    if type(number) is not int or number not in ERRORS:
        raise RecordError(f"the error number is {show(number)}, not one of 0 to {max(ERRORS)}")
    return ERRORS[number]


def _choice(step: list[object]) -> list[int]:
    """The sampled numbers of a step; for a pragma such as `auto_unroll_max_step$64` the number in its text."""
    at = _SAMPLED.get(str(step[0]))
    if at is None:
        return []
    if step[0] == "PR":
        return [int(x) for s in step[at:] if isinstance(s, str) for x in re.findall(r"\$([0-9]{1,9})$", s)]
    return integers(step[at:] if step[0] == "CA" else step[at : at + 1])
