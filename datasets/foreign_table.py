"""Store the candidates in logs of other tuners as a foreign table: time, workload, target, steps and decisions.

The schedules cannot be replayed by tunesmith.  They are stored as data, for models that learn from steps and their numbers.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from tunesmith.datasets import parquet_file
from tunesmith.datasets.parquet_file import PathLike
from tunesmith.measure.records.fields import show
from tunesmith.measure.records.log import LogReport
from tunesmith.measure.records.record import ERROR_KINDS
from tunesmith.support import json_lines
from tunesmith.support.errors import RecordError

KIND = "foreign records"
VERSION = 1

SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("workload", pa.string(), nullable=False),
        pa.field("target", pa.string(), nullable=False),
        pa.field("hardware", pa.string(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("error", pa.string()),
        pa.field("error_message", pa.string()),
        pa.field("samples", pa.list_(pa.float64()), nullable=False),
        pa.field("timestamp", pa.float64()),
        pa.field("steps", pa.string(), nullable=False),
        pa.field("decisions", pa.list_(pa.int64()), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
    ]
)
"""The columns, see `ForeignTable.frame`."""

NO_TIME = 1e9
"""Seconds from which a time means failure: other tuners write 1e10 for failed candidates."""
_MAX_TEXT = 1 << 16
_INT64 = range(-(1 << 63), 1 << 63)


class Token(NamedTuple):
    """One schedule step as input of step-based models: its kind, and its texts and numbers in order (source: TLP, Zhai et al., 2023)."""

    kind: str
    names: tuple[str, ...]
    numbers: tuple[float, ...]


class ForeignRecord(NamedTuple):
    """One validated line of a foreign log; the fields are the columns of the table."""

    source: str
    workload: str
    target: str
    hardware: str
    error: str | None
    error_message: str | None
    samples: tuple[float, ...]
    timestamp: float | None
    steps: str
    decisions: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Median of the samples; infinity for failed candidates."""
        return math.inf if self.error is not None else float(median(self.samples))


class ForeignTable:
    """Candidates of another tuner.

    Args:
        frame: see `frame`.
        report: report on the imported files.
    """

    def __init__(self, frame: pd.DataFrame, report: LogReport | None = None) -> None:
        self.frame = frame.reset_index(drop=True)
        """One row per measurement: `source` (ansor, tenset, metaschedule); `workload` key; `target` text; `hardware` (JSON text: the
        hardware parameters of the tuner, or the platform); `seconds`, the median, inf if failed; `error`, one of `record.ERROR_KINDS`, or
        missing; `error_message`; `samples`; `timestamp`, NaN if unknown; `steps`, the schedule as JSON text; `decisions`, its sampled
        numbers; `file` and `line` of origin."""
        self.report = report or LogReport()

    @classmethod
    def of(cls, found: Iterable[tuple[str, int, ForeignRecord]], report: LogReport) -> ForeignTable:
        """Build a table from records with their files and line numbers; duplicates of a measurement are dropped."""
        seen: set[tuple[object, ...]] = set()
        lines: list[dict[str, object]] = []
        for file, number, r in found:
            key = (r.source, r.workload, r.target, r.hardware, r.steps, r.samples, r.timestamp)
            if key in seen:
                report.duplicates += 1
                continue
            seen.add(key)
            lines.append({**r._asdict(), "seconds": r.seconds, "file": file, "line": number})
        report.records = len(lines)
        report.workloads = len({line["workload"] for line in lines})
        return cls(_typed(pd.DataFrame(lines, columns=SCHEMA.names)), report)

    @classmethod
    def load(cls, path: PathLike) -> ForeignTable:
        """Load a table written by `save`.

        Raises:
            RecordError: the file does not exist, is damaged, of a newer version, or not a table of this kind.
        """
        table, _ = parquet_file.read(path, KIND, VERSION, SCHEMA)
        frame = _typed(table.select(SCHEMA.names).replace_schema_metadata(None).to_pandas())
        seconds, failed = frame["seconds"].to_numpy(), frame["error"].notna().to_numpy()
        if np.where(failed, seconds != np.inf, ~((seconds > 0) & np.isfinite(seconds))).any():
            raise RecordError(f"{path}: seconds must be positive, or inf for errors; the file is damaged")
        return cls(frame)

    def save(self, path: PathLike) -> None:
        """Write the table atomically as one parquet file.  Raises RecordError if it cannot be written."""
        columns = [pa.array(_cells(self.frame[f.name], f), f.type) for f in SCHEMA]
        parquet_file.write(path, pa.table(columns, schema=SCHEMA), KIND, VERSION, {})

    def __len__(self) -> int:
        return len(self.frame)

    def tokens(self, line: int) -> list[Token]:
        """The steps of one row as tokens."""
        steps = json_lines.parse(str(self.frame["steps"].iloc[line]).encode())
        if not isinstance(steps, list):
            raise RecordError(f"line {line} of the table: its steps are not a list")
        return [_token(step) for step in steps]

    def counts(self) -> pd.DataFrame:
        """Per workload and target: `records`, `failed`, `best_us`, `median_us`, and a column per error kind that occurs."""
        out = []
        for (source, workload, target), lines in self.frame.groupby(["source", "workload", "target"], sort=True):
            ran = lines["seconds"][np.isfinite(lines["seconds"])]
            kinds = lines["error"].value_counts()
            out.append(
                {
                    "source": source,
                    "workload": workload,
                    "target": target,
                    "records": len(lines),
                    "failed": int(lines["error"].notna().sum()),
                    "best_us": ran.min() * 1e6 if len(ran) else np.nan,
                    "median_us": ran.median() * 1e6 if len(ran) else np.nan,
                    **{kind: int(kinds.get(kind, 0)) for kind in ERROR_KINDS if (self.frame["error"] == kind).any()},
                }
            )
        return pd.DataFrame(out)


def good_lines(path: PathLike, report: LogReport) -> Iterator[tuple[int, object]]:
    """The valid JSON lines of a foreign log with their numbers; other lines are counted as bad, except comments (`#`).

    Raises:
        RecordError: the file cannot be read.
    """
    for number, line in json_lines.read(path):
        if not isinstance(line, json_lines.BadLine):
            yield number, line
        elif not line.excerpt.startswith("#"):
            report.add_bad(path, number, line.reason)


def files_of(paths: PathLike | Sequence[PathLike], pattern: str) -> list[Path]:
    """The given files, and the matching files in the given folders (recursively), in a fixed order.

    Raises:
        RecordError: a path does not exist, or a folder contains no matching file.
    """
    out: list[Path] = []
    for given in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        path = Path(given)
        found = sorted(p for p in path.rglob(pattern) if p.is_file()) if path.is_dir() else [path]
        if not found or not all(p.is_file() for p in found):
            raise RecordError(f"cannot read {path}: it does not exist, or contains no file {pattern}. Check the path")
        out += found
    return list(dict.fromkeys(out))


def text(value: object, what: str) -> str:
    """Check for a string of bounded length.  This and the other checks raise RecordError with the reason."""
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise RecordError(f"{what} is not a text of at most {_MAX_TEXT} characters: {show(value)}")
    return value.encode("utf-8", "backslashreplace").decode()


def items(value: object, what: str, least: int) -> list[Any]:
    """Check for a list of at least `least` items."""
    if not isinstance(value, list) or len(value) < least:
        raise RecordError(f"{what} is not a list of at least {least} items: {show(value)}")
    return value


def times(value: object, what: str) -> tuple[float, ...]:
    """Check for positive finite numbers."""
    out = items(value, what, 0)
    if not all(type(x) in (int, float) and 0 < x < math.inf for x in out):
        raise RecordError(f"{what} are not positive seconds: {show(value)}")
    try:
        return tuple(map(float, out))
    except OverflowError:
        raise RecordError(f"{what} are not positive seconds: {show(value)}") from None


def integers(value: object) -> list[int]:
    """All 64-bit integers in nested lists, in order."""
    if type(value) is int:
        return [value] if value in _INT64 else []
    return [x for item in value for x in integers(item)] if isinstance(value, list) else []


def compact(value: object) -> str:
    """JSON text of plain data."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _token(step: object) -> Token:
    if not isinstance(step, list) or not step or not isinstance(step[0], str):
        raise RecordError(f"a step must be a list that begins with its kind, got {show(step)}")
    names: list[str] = []
    numbers: list[float] = []

    def collect(value: object) -> None:
        if isinstance(value, str):
            names.append(value)
        elif isinstance(value, (int, float)):
            numbers.append(float(value))
        elif isinstance(value, list):
            for item in value:
                collect(item)
        elif isinstance(value, dict):
            for key in sorted(value):
                names.append(key)
                collect(value[key])

    collect(step[1:])
    return Token(step[0], tuple(names), tuple(numbers))


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    for field in SCHEMA:
        if field.type == pa.string():
            frame[field.name] = frame[field.name].astype("str")
    for name, kind in (("samples", float), ("decisions", int)):
        frame[name] = pd.Series([tuple(map(kind, x)) for x in frame[name]], index=frame.index, dtype=object)
    return frame.astype({"seconds": "float64", "timestamp": "float64", "line": "int64"})


def _cells(column: pd.Series[Any], field: pa.Field) -> list[object]:
    if field.nullable:
        return [None if isinstance(x, float) and math.isnan(x) else x for x in column]
    return list(column)
