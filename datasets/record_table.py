"""Store the measurements of one or many logs as a self-contained table: a pandas frame with programs, sketches and targets.

Unlike a log, a table is not appended to: it is built from logs, merged, split and written as a whole, as one parquet file that includes the
programs, sketches and targets of its records.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tunesmith.datasets import parquet_file
from tunesmith.datasets.parquet_file import PathLike
from tunesmith.datasets.record_columns import SCHEMA, arrow_of, frame_from, frame_of, records_of
from tunesmith.ir.target.target import Target
from tunesmith.measure.records import log as record_log
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.log import LogReport, status_rank
from tunesmith.measure.records.record import ERROR_KINDS, Record, WorkloadLine, target_key
from tunesmith.measure.records.trace_template import template
from tunesmith.support import json_lines
from tunesmith.support.array_types import Float64Array
from tunesmith.support.errors import RecordError, UserError
from tunesmith.support.html_table import html_table

KIND = "records"
VERSION = 1
"""Version of the columns and the metadata; newer files are rejected."""

SketchKey = tuple[str, str]


class Program(NamedTuple):
    """Definition of a workload digest: display name, and script of the unscheduled function."""

    name: str
    script: str


class RecordTable:
    """Measurements with their provenance.  Methods return new tables; the frame must not be modified.

    Args:
        frame: the measurements, see `frame`.
        workloads: programs by digest.
        targets: targets by key, as JSON.
        sketches: sketches by workload and sketch name.
        report: report on the logs from which the table was built.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        workloads: Mapping[str, Program],
        targets: Mapping[str, Mapping[str, object]],
        sketches: Mapping[SketchKey, Sequence[object]],
        report: LogReport | None = None,
    ) -> None:
        self.frame = frame.reset_index(drop=True)
        """One row per measurement, numbered from 0:

        `workload` digest; `name` of the workload; `target` key (`Target.key`); `sketch` name, empty for a handwritten schedule; `row`, a
        tuple of ints; `seconds`, the median, inf if failed; `error`, the error kind, or missing; `error_message`; `clean`; `verified`;
        `censored`, True if timing stopped early and the time is imprecise; `samples`, a tuple of seconds; `seed`; `timestamp`; and JSON
        texts: `host`, `versions`, `policy`, `extra`, `unknown`, `trace` with its decisions.  Exported tables have additional feature
        columns.
        """
        self.workloads = dict(workloads)
        """Digest -> (name, script); workloads whose program is in no log are missing."""
        self.targets = {key: dict(target) for key, target in targets.items()}
        """Key -> target as JSON, with facts if known; for `Target.from_json`."""
        self.sketches = {key: list(steps) for key, steps in sketches.items()}
        """(workload, sketch) -> the trace without decisions, as JSON."""
        self.report = report or LogReport()
        self.notes: dict[str, object] = {}
        """Plain JSON saved with the table: its provenance, for users and for the code that wrote it."""

    @classmethod
    def from_records(
        cls,
        records: Sequence[Record],
        workloads: Iterable[WorkloadLine] = (),
        targets: Iterable[Target] = (),
        report: LogReport | None = None,
    ) -> RecordTable:
        """Build a table from records, in their order.

        Args:
            records: distinct measurements.
            workloads: their programs.
            targets: targets with facts (rates of the machine); other targets are stored without facts.
            report: report on the logs.
        """
        programs = {line.digest: Program(line.name, line.script) for line in workloads}
        used = {r.workload for r in records}
        facts = {t.key: t.to_json(facts=True) for t in targets}
        known: dict[str, Mapping[str, object]] = {}
        sketches: dict[SketchKey, list[object]] = {}
        for r in records:
            key = target_key(r.target)
            known.setdefault(key, facts.get(key, r.target))
            if r.sketch and (r.workload, r.sketch) not in sketches:
                sketches[r.workload, r.sketch] = template(r.trace)
        frame = frame_of(records, {digest: p.name for digest, p in programs.items()})
        return cls(frame, {d: p for d, p in programs.items() if d in used}, known, sketches, report)

    @classmethod
    def from_log(cls, paths: PathLike | Sequence[PathLike], targets: Iterable[Target] = ()) -> RecordTable:
        """Build a table from one or several logs; `report` lists bad lines.

        Args:
            paths: logs.
            targets: as for `from_records`.
        Raises:
            RecordError: a log does not exist or cannot be read.  Its content never raises.
        """
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        contents = record_log.load(given)
        return cls.from_records(contents.records, contents.workloads.values(), targets, contents.report)

    @classmethod
    def load(cls, path: PathLike, max_bytes: int | None = None) -> RecordTable:
        """Load a table written by `save`.

        Args:
            path: the file.
            max_bytes: limit of the uncompressed size; by default the larger of 1 GB and 100 times the file size.
        Raises:
            RecordError: the file does not exist, is damaged, of a newer version, not a record table, or too large uncompressed.
        """
        from_file, metadata = parquet_file.read(path, KIND, VERSION, SCHEMA, max_bytes)
        table = cls(frame_from(from_file), *_provenance(path, metadata))
        table._check(path)
        notes = metadata.get("notes")
        table.notes = notes if isinstance(notes, dict) else {}
        return table

    def save(self, path: PathLike) -> None:
        """Write the table atomically as one parquet file.

        Raises:
            RecordError: the file cannot be written.
        """
        metadata = {
            "workloads": {digest: list(p) for digest, p in sorted(self.workloads.items())},
            "targets": dict(sorted(self.targets.items())),
            "sketches": [[workload, name, steps] for (workload, name), steps in sorted(self.sketches.items())],
            "notes": self.notes,
        }
        parquet_file.write(path, arrow_of(self.frame), KIND, VERSION, metadata)

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"RecordTable({len(self)} records, {self.frame['workload'].nunique()} workloads, {self.frame['target'].nunique()} targets)"

    def records(self) -> list[Record]:
        """All rows as records.

        Raises:
            RecordError: a row is not a valid record, which is possible only in a file not written by `save`.
        """
        return list(records_of(self.frame))

    def lines(self) -> list[WorkloadLine]:
        """The programs as workload lines of a log."""
        return [WorkloadLine(digest, p.name, p.script) for digest, p in self.workloads.items()]

    @cached_property
    def identities(self) -> list[str]:
        """`Record.identity` of each row."""
        return [r.identity for r in records_of(self.frame, whole=False)]

    def take(self, lines: npt.ArrayLike) -> RecordTable:
        """The table of selected rows (indices or a mask), with the programs, targets and sketches that they refer to."""
        chosen = np.asarray(lines)
        frame = self.frame.iloc[chosen if chosen.size else []]
        digests, keys = set(frame["workload"]), set(frame["target"])
        used = set(zip(frame["workload"], frame["sketch"], strict=True))
        taken = RecordTable(
            frame,
            {d: p for d, p in self.workloads.items() if d in digests},
            {k: t for k, t in self.targets.items() if k in keys},
            {k: s for k, s in self.sketches.items() if k in used},
        )
        taken.notes = dict(self.notes)
        return taken

    def representatives(self) -> RecordTable:
        """One row per candidate: the measurement that counts, as defined by `measure.records.status`; if none counts, the candidate's
        last row, usually a failure."""
        records = list(records_of(self.frame, whole=False))
        database = Database(records)
        chosen: set[str] = set()
        for workload, target in database.tasks():
            counting = database.top(workload, target, len(records), unverified=True)
            chosen |= {r.identity for r in counting}
            schedules = {r.schedule for r in counting}
            last = {r.schedule: r for r in database.records(workload, target) if r.schedule not in schedules}
            chosen |= {r.identity for r in last.values()}
        return self.take(np.flatnonzero([r.identity in chosen for r in records]))

    def quiet(self, least: int = 1) -> RecordTable:
        """The rows whose times no other process disturbed, and those of failures.

        Args:
            least: the number of undisturbed times that are needed.
        Raises:
            UserError: there are fewer.
        """
        ran = np.isfinite(self.frame["seconds"].to_numpy(np.float64))
        clean = self.frame["clean"].to_numpy(np.bool_)
        found, total = int((ran & clean).sum()), int(ran.sum())
        if found == total < least:
            raise UserError(f"there are {total} times, all of them clean, and at least {least} are needed: measure more programs")
        if found < least:
            raise UserError(
                f"{found} of {total} times are clean, and at least {least} are needed: other processes disturbed the others. Measure them "
                "again on a quiet machine (`tunesmith dataset build` with the same arguments and --retake, or `tunesmith tune` with more "
                "trials), or use all of them, without --quiet-only"
            )
        return self.take(np.flatnonzero(clean | ~ran))

    def counts(self) -> pd.DataFrame:
        """Per task (name, workload, target): `records`, `candidates`, `failed`, `noisy`, `best_us`, `median_us`, and a column per error
        kind that occurs; sorted by name."""
        out = []
        for (name, workload, target), lines in self.frame.groupby(["name", "workload", "target"], sort=True):
            ran = lines["seconds"][np.isfinite(lines["seconds"])]
            kinds = lines["error"].value_counts()
            out.append(
                {
                    "name": name,
                    "workload": workload,
                    "target": target,
                    "records": len(lines),
                    "candidates": len(lines[["sketch", "row", *(["trace"] if (lines["sketch"] == "").any() else [])]].drop_duplicates()),
                    "failed": int(lines["error"].notna().sum()),
                    "noisy": int((~lines["clean"]).sum()),
                    "best_us": ran.min() * 1e6 if len(ran) else np.nan,
                    "median_us": ran.median() * 1e6 if len(ran) else np.nan,
                    **{kind: int(kinds.get(kind, 0)) for kind in ERROR_KINDS if (self.frame["error"] == kind).any()},
                }
            )
        return pd.DataFrame(out)

    def _repr_html_(self) -> str:
        """The table in a notebook: `counts`."""
        counts = self.counts()
        title = f"{len(self)} records of {len(counts)} tasks"
        rows = [["-" if pd.isna(x) else f"{x:.4g}" if isinstance(x, float) else str(x) for x in row] for row in counts.to_numpy().tolist()]
        return html_table(title, list(map(str, counts.columns)), rows, left=(0, 1, 2))

    def _check(self, path: PathLike) -> None:
        """Check the invariants of an unmodified table."""
        frame = self.frame
        seconds, failed = frame["seconds"].to_numpy(), frame["error"].notna().to_numpy()
        bad = np.where(failed, seconds != np.inf, ~((seconds > 0) & np.isfinite(seconds)))
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise RecordError(f"{path}: line {at}: seconds are {seconds[at]!r}; they must be positive, or inf for errors")
        medians = _medians(frame["samples"].tolist())
        other = ~failed & ~(np.abs(medians - seconds) <= 1e-9 * np.abs(seconds))
        if other.any():
            at = int(np.flatnonzero(other)[0])
            raise RecordError(
                f"{path}: line {at}: seconds are {float(seconds[at])!r}, but the median of its samples is "
                f"{float(medians[at])!r}: the line was changed"
            )
        kinds = sorted(set(frame["error"].dropna()) - set(ERROR_KINDS))
        if kinds:
            raise RecordError(f"{path}: unknown error kind {kinds[0]!r}; known: {', '.join(ERROR_KINDS)}")
        targets = sorted(set(frame["target"]) - self.targets.keys())
        if targets:
            raise RecordError(f"{path}: its metadata lacks the target {targets[0]}; rebuild the table from its log")


def merge(tables: Sequence[RecordTable]) -> RecordTable:
    """Merge tables; of several copies of a measurement the one with the highest status rank is kept, as in a merge of logs.

    Feature columns missing in some table are dropped.  Programs, sketches and target facts are taken from the first table that has them.

    Raises:
        UserError: no table is given.
        RecordError: a row is damaged.
    """
    if not tables:
        raise UserError("nothing to merge: pass at least one table")
    columns = [c for c in tables[0].frame.columns if all(c in t.frame.columns for t in tables)]
    frame = pd.concat([t.frame[columns] for t in tables], ignore_index=True)
    best: dict[str, tuple[int, int]] = {}
    for at, record in enumerate(records_of(frame, whole=False)):
        known = best.get(record.identity)
        if known is None or status_rank(record) > known[0]:
            best[record.identity] = (status_rank(record), at)
    workloads: dict[str, Program] = {}
    targets: dict[str, Mapping[str, object]] = {}
    sketches: dict[SketchKey, Sequence[object]] = {}
    for t in tables:
        workloads = {**t.workloads, **workloads}
        # More attributes means more facts.
        targets = {**targets, **{k: v for k, v in t.targets.items() if len(v) > len(targets.get(k, {}))}}
        sketches = {**t.sketches, **sketches}
    frame["name"] = [workloads[d].name if d in workloads else n for d, n in zip(frame["workload"], frame["name"], strict=True)]
    return RecordTable(frame, workloads, targets, sketches).take(sorted(at for _, at in best.values()))


def load_any(path: PathLike, targets: Iterable[Target] = ()) -> RecordTable:
    """Load a table from a parquet file or a log.

    Raises:
        RecordError: as `RecordTable.load` and `RecordTable.from_log`.
    """
    with json_lines.open_journal(path) as file:
        try:
            is_parquet = file.read(4) == b"PAR1"
        except OSError as error:
            raise RecordError(f"cannot read {os.fspath(path)}: {error.strerror or error}. Check the path") from error
    return RecordTable.load(path) if is_parquet else RecordTable.from_log(path, targets)


def _medians(samples: Sequence[tuple[float, ...]]) -> Float64Array:
    """`Record.seconds` of each row; NaN without samples."""
    lengths = np.array([len(s) for s in samples], np.int64)
    out = np.full(len(samples), np.nan)
    for n in np.unique(lengths[lengths > 0]):
        lines = np.flatnonzero(lengths == n)
        out[lines] = np.median(np.array([samples[i] for i in lines.tolist()], np.float64), axis=1)
    return out


def _provenance(
    path: PathLike, metadata: Mapping[str, object]
) -> tuple[dict[str, Program], dict[str, dict[str, object]], dict[SketchKey, list[object]]]:
    """Programs, targets and sketches from the metadata of a file."""
    workloads: dict[str, Program] = {}
    targets: dict[str, dict[str, object]] = {}
    sketches: dict[SketchKey, list[object]] = {}
    try:
        for digest, (name, text) in dict(metadata["workloads"]).items():  # type: ignore[call-overload]
            line = WorkloadLine.from_json({"v": 1, "kind": "workload", "digest": digest, "name": name, "script": text})
            workloads[digest] = Program(line.name, line.script)
        for key, target in dict(metadata["targets"]).items():  # type: ignore[call-overload]
            targets[key] = {str(k): v for k, v in dict(target).items()}
            identity = json_lines.parse(str(key).encode())
            if not isinstance(identity, dict) or target_key(identity) != key:
                raise ValueError(f"the key {str(key)[:80]!r} of a target is not the JSON of its identity")
        for workload, name, steps in metadata["sketches"]:  # type: ignore[attr-defined]
            sketches[str(workload), str(name)] = list(steps)
    except (KeyError, TypeError, ValueError, RecordError) as error:
        raise RecordError(f"{path}: its metadata is damaged ({type(error).__name__}: {error}); rebuild the table from its log") from error
    return workloads, targets, sketches
