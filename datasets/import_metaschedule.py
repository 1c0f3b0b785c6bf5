"""Import JSON databases of TVM's MetaSchedule into a foreign table.

`database_workload.json` has one line `[hash, module in base64]` per workload, `database_tuning_record.json` one line
`[workload index, [[instructions, decisions], run_secs, target, args_info]]` per record.  An instruction is
`[kind, inputs, attributes, outputs]`, a decision `[index of the instruction, value]`.  Modules are not decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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
from tunesmith.datasets.import_ansor import limited
from tunesmith.datasets.parquet_file import PathLike
from tunesmith.measure.records.fields import show
from tunesmith.measure.records.log import LogReport
from tunesmith.support import json_lines
from tunesmith.support.errors import RecordError

RECORDS, WORKLOADS = "database_tuning_record.json", "database_workload.json"


def load(paths: PathLike | Sequence[PathLike], limit: int | None = None) -> ForeignTable:
    """Load MetaSchedule databases.

    Args:
        paths: working folders, which may contain several databases, or tuning record files.
        limit: maximum number of records per workload and target; the first ones are kept.
    Raises:
        RecordError: a file cannot be read, or the workload file of a record file is missing.  Content never raises: invalid lines are
            counted in `report`.
        UserError: the limit is below 1.
    """
    report = LogReport()
    files = files_of(paths, f"*{RECORDS}")
    for path in files:
        if not path.name.endswith(RECORDS) or not workloads_of(path).is_file():
            absent = f"; {workloads_of(path)} does not exist" if path.name.endswith(RECORDS) else ""
            raise RecordError(
                f"cannot read {path}{absent}: a database consists of records in *{RECORDS} and workloads in *{WORKLOADS} of one folder"
            )
    found = ((f"{path.parent.name}/{path.name}", number, record) for path in files for number, record in _read(path, report))
    return ForeignTable.of(limited(found, limit), report)


def parse(line: object, workloads: Sequence[str | None]) -> ForeignRecord:
    """Parse one line.

    Args:
        line: plain data.
        workloads: hashes by index, None for an invalid line.
    Raises:
        RecordError: the line is invalid; the message contains the reason.
    """
    index, record = items(line, "a record", 2)[:2]
    if type(index) is not int or not 0 <= index < len(workloads) or workloads[index] is None:
        raise RecordError(f"the workload index is {show(index)}, but the database has {len(workloads)} workloads, including damaged ones")
    trace, seconds, target = items(record, "the record", 3)[:3]
    instructions, decisions = items(trace, "the trace", 2)[:2]
    steps = _steps(items(instructions, "the instructions", 0), items(decisions, "the decisions", 0))
    samples = () if seconds is None else times(seconds, "run_secs")
    failed = not samples or max(samples) >= NO_TIME
    return ForeignRecord(
        "metaschedule",
        str(workloads[index]),
        "" if target is None else text(target if isinstance(target, str) else compact(target), "the target"),
        "",
        "run_error" if failed else None,
        "no time was recorded" if failed else None,
        () if failed else samples,
        None,
        compact(steps),
        tuple(x for step in steps if len(step) > 4 for x in integers(step[4])),
    )


def _steps(instructions: list[Any], decisions: list[Any]) -> list[list[Any]]:
    """Instructions, with their decision, if any, as a fifth item."""
    steps: list[list[Any]] = []
    for instruction in instructions:
        step = items(instruction, "an instruction", 4)[:4]
        text(step[0], "the kind of an instruction")
        steps.append(list(step))
    for decision in decisions:
        at, value = items(decision, "a decision", 2)[:2]
        if type(at) is not int or not 0 <= at < len(steps) or len(steps[at]) > 4:
            raise RecordError(f"a decision refers to instruction {show(at)} of {len(steps)}; each instruction has at most one decision")
        steps[at].append(value)
    return steps


def _read(path: Path, report: LogReport) -> Iterator[tuple[int, ForeignRecord]]:
    hashes = _hashes(workloads_of(path), report)
    for number, line in good_lines(path, report):
        try:
            yield number, parse(line, hashes)
        except RecordError as error:
            report.add_bad(path, number, str(error))


def _hashes(path: Path, report: LogReport) -> list[str | None]:
    """The hashes of the workloads by line; None for a damaged line, so that the indices of other lines remain valid."""
    out: list[str | None] = []
    for number, line in json_lines.read(path):
        found: str | None = None
        try:
            if isinstance(line, json_lines.BadLine):
                raise RecordError(line.reason)
            found = text(items(line, "a workload", 2)[0], "the hash of a workload")
        except RecordError as error:
            report.add_bad(path, number, str(error))
        out.append(found)
    return out


def workloads_of(records: Path) -> Path:
    """The workload file of a record file."""
    return records.with_name(records.name.removesuffix(RECORDS) + WORKLOADS)
