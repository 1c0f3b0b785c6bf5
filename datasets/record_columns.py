"""Convert records to table rows and back, without loss, and define the columns.

Fields by which tables are grouped are columns of plain values; the others (host, versions, policy, trace) are JSON text.  A row converted
back to a record is validated like an untrusted log line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import cast

import numpy as np
import pandas as pd
import pyarrow as pa

from tunesmith.measure.records.fields import VERSION, ValuePool
from tunesmith.measure.records.record import Record, target_key
from tunesmith.support import json_lines
from tunesmith.support.array_types import Int64Array
from tunesmith.support.errors import RecordError

SCHEMA = pa.schema(
    [
        pa.field("workload", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("target", pa.string(), nullable=False),
        pa.field("sketch", pa.string(), nullable=False),
        pa.field("row", pa.list_(pa.int64()), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("error", pa.string()),
        pa.field("error_message", pa.string()),
        pa.field("clean", pa.bool_(), nullable=False),
        pa.field("verified", pa.bool_(), nullable=False),
        pa.field("censored", pa.bool_(), nullable=False),
        pa.field("samples", pa.list_(pa.float64()), nullable=False),
        pa.field("seed", pa.decimal128(20, 0), nullable=False),  # signed or unsigned 64 bits
        pa.field("timestamp", pa.float64(), nullable=False),
        pa.field("host", pa.string(), nullable=False),
        pa.field("versions", pa.string(), nullable=False),
        pa.field("policy", pa.string(), nullable=False),
        pa.field("extra", pa.string(), nullable=False),
        pa.field("unknown", pa.string(), nullable=False),
        pa.field("trace", pa.string(), nullable=False),
    ]
)
"""The columns of a record table, documented in `RecordTable.frame`."""

COLUMNS = tuple(SCHEMA.names)
_TEXTS = tuple(f.name for f in SCHEMA if f.type == pa.string())
_JSON = ("host", "versions", "policy", "extra", "unknown", "trace")


def frame_of(records: Sequence[Record], names: Mapping[str, str]) -> pd.DataFrame:
    """The rows of records, in their order; `names` maps workload digests to names."""
    lines = [_line(r, names.get(r.workload, r.workload)) for r in records]
    return typed(pd.DataFrame({c: [line[c] for line in lines] for c in COLUMNS}, columns=list(COLUMNS)))


def typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Normalise column types, so that read, built and empty frames agree: tuples of numbers, text, Python integers."""
    for name in _TEXTS:
        frame[name] = frame[name].astype("str")
    for name, kind in (("row", int), ("samples", float)):
        frame[name] = pd.Series([tuple(map(kind, x)) for x in frame[name]], index=frame.index, dtype=object)
    frame["seed"] = pd.Series([int(x) for x in frame["seed"]], index=frame.index, dtype=object)
    return frame.astype({"seconds": "float64", "timestamp": "float64", "clean": "bool", "verified": "bool", "censored": "bool"})


def arrow_of(frame: pd.DataFrame) -> pa.Table:
    """The frame as a table for a file: the columns of the schema first, then all others.

    Raises:
        RecordError: a column cannot be stored.
    """
    try:
        return _arrow_of(frame)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"cannot write the table: {error}. Columns must hold numbers, texts or lists of them") from error


def _arrow_of(frame: pd.DataFrame) -> pa.Table:
    columns = {f.name: pa.array(_values(frame[f.name], f), f.type) for f in SCHEMA}
    others = pa.Table.from_pandas(frame[[c for c in frame.columns if c not in columns]], preserve_index=False)
    fields = list(SCHEMA) + list(others.schema.remove_metadata())
    return pa.table([*columns.values(), *others.columns], schema=pa.schema(fields))


def frame_from(table: pa.Table) -> pd.DataFrame:
    """The frame of a table read from a file."""
    return typed(table.replace_schema_metadata(None).to_pandas())


def groups(frame: pd.DataFrame, columns: Sequence[str]) -> dict[tuple[str, ...], Int64Array]:
    """Indices of the rows with equal values in two or more columns, keyed by the values, in sorted order."""
    found = frame.groupby(list(columns), sort=True).indices
    return {cast(tuple[str, ...], key): np.asarray(lines, np.int64) for key, lines in found.items()}


def records_of(frame: pd.DataFrame, whole: bool = True) -> Iterator[Record]:
    """The records of the rows.

    Args:
        frame: the rows.
        whole: False omits the fields that identity, candidate and status do not depend on: host, versions, policy, extra.
    Raises:
        RecordError: a row is not a valid record; the message names it.
    """
    pool = ValuePool()
    parsed: dict[str, object] = {}
    for at, cells in enumerate(zip(*[frame[c].tolist() for c in COLUMNS], strict=True)):
        line = dict(zip(COLUMNS, cells, strict=True))
        if not whole:
            line |= {name: "{}" for name in _JSON if name != "trace"}
        try:
            for name in ("target", *_JSON):
                text = line[name]
                line[name] = _json(name, text) if name == "trace" or (whole and name == "extra") else _cached_json(parsed, name, text)
            if isinstance(line["trace"], list):
                line["trace"] = [pool.one(step) for step in line["trace"]]
            yield Record.from_json(_record_line(line), pool)
        except RecordError as error:
            raise RecordError(f"line {at} of the table: {error}") from error


def gave_up(record: Record) -> bool:
    """True if timing may have stopped early because the candidate was clearly behind: its time is then imprecise, biased high."""
    policy = record.policy
    if record.error is not None or policy.get("kind") != "race" or policy.get("give_up") is None:
        return False
    repeats, least, calls = policy.get("repeats"), policy.get("min_repeat_ms"), record.extra.get("calls")
    if not isinstance(repeats, int) or len(record.samples) >= repeats:
        return False
    # Two samples are all if they are as long together as those of a short call.
    known = isinstance(least, (int, float)) and isinstance(calls, (int, float))
    return not known or len(record.samples) < 2 or sum(record.samples) * calls * 1e3 <= repeats * least  # type: ignore[operator]


def _line(record: Record, name: str) -> dict[str, object]:
    error = record.error
    return {
        "workload": record.workload,
        "name": _encodable(name),
        "target": target_key(record.target),
        "sketch": _encodable(record.sketch),
        "row": record.row,
        "seconds": math.inf if error is not None else record.seconds,
        "error": None if error is None else error.kind,
        "error_message": None if error is None else _encodable(error.message),
        "clean": record.clean,
        "verified": record.verified,
        "censored": gave_up(record),
        "samples": record.samples,
        "seed": record.seed,
        "timestamp": record.timestamp,
        **{n: json.dumps(getattr(record, n), allow_nan=False, separators=(",", ":")) for n in _JSON},
    }


def _record_line(line: dict[str, object]) -> dict[str, object]:
    """Convert a table row to a log line."""
    unknown, kind = line.pop("unknown"), line.pop("error")
    failed = isinstance(kind, str)
    found = {name: value for name, value in line.items() if name not in ("name", "seconds", "error_message", "censored")}
    message = line["error_message"] if isinstance(line["error_message"], str) else ""
    known = {**found, "row": list(line["row"]), "samples": list(line["samples"])}  # type: ignore[call-overload]
    return {
        **(unknown if isinstance(unknown, dict) else {}),
        "v": VERSION,
        "kind": "record",
        **known,
        "error": {"kind": kind, "message": message} if failed else None,
    }


def _cached_json(parsed: dict[str, object], name: str, text: object) -> object:
    """Parse JSON text through a cache, because many rows share equal texts."""
    if not isinstance(text, str):
        return _json(name, text)
    if text not in parsed:
        parsed[text] = _json(name, text)
    return parsed[text]


def _json(name: str, text: object) -> object:
    value = json_lines.parse(str(text).encode())
    if isinstance(value, json_lines.BadLine):
        raise RecordError(f"the column {name!r} is not JSON: {value.reason}")
    return value


def _values(column: pd.Series, field: pa.Field) -> list[object]:
    if pa.types.is_decimal(field.type):
        return [Decimal(x) for x in column]
    if field.nullable:
        return [x if isinstance(x, str) else None for x in column]
    return list(column)


def _encodable(text: str) -> str:
    """Replace lone surrogates, which are valid in JSON but not in UTF-8, by escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
