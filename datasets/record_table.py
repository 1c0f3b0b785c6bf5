"""A record table: the measurements of one log or many as a pandas frame, with all that is needed to use them elsewhere.

Unlike a log, a table is not appended to: it is made from logs, merged, split and written whole, as one parquet file that carries the
programs, the sketches and the targets of its lines.
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
from tunesmith.datasets.record_columns import SCHEMA, arrow_of, frame_from, frame_of, records_of, template
from tunesmith.ir.target.target import Target
from tunesmith.measure.records import log as record_log
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.log import LogReport, verdict
from tunesmith.measure.records.record import ERROR_KINDS, Record, WorkloadLine, target_key
from tunesmith.support import json_lines
from tunesmith.support.errors import RecordError, UserError

KIND = "records"
VERSION = 1
"""Of the columns and the metadata; newer files are refused."""

SketchKey = tuple[str, str]


class Program(NamedTuple):
    """What a workload's digest stands for: what people call it, and the script of the function, not scheduled."""

    name: str
    script: str


class RecordTable:
    """Measurements and where they come from.  Its methods give new tables; the frame is the caller's to read, not to change.

    Args:
        frame: the lines, see `frame`.
        workloads: programs by digest.
        targets: by key, as JSON.
        sketches: by workload and name of the sketch.
        report: what was found in the logs it was made from.
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
        """One line a measurement, numbered from 0:

        `workload` digest; `name` of the workload; `target` key (`Target.key`); `sketch` name, empty for a schedule written by hand;
        `row` a tuple of ints; `seconds` the median, inf for what failed; `error` its class, or missing; `error_message`; `clean`;
        `verified`; `censored`, where the timing gave up early and the time is rough; `samples` a tuple of seconds; `seed`;
        `timestamp`; and JSON texts: `host`, `versions`, `policy`, `extra`, `unknown`, `trace` with its decisions.  Exported tables have
        feature columns behind them.
        """
        self.workloads = dict(workloads)
        """Digest -> (name, script); a workload of which no log had the program is not among them."""
        self.targets = {key: dict(target) for key, target in targets.items()}
        """Key -> target as JSON, with its facts where they are known; for `Target.from_json`."""
        self.sketches = {key: list(steps) for key, steps in sketches.items()}
        """(workload, sketch) -> the trace without decisions, as JSON."""
        self.report = report or LogReport()
        self.notes: dict[str, object] = {}
        """Plain JSON that is saved with the table: how it came about, for people and for whoever wrote it."""

    @classmethod
    def from_records(
        cls,
        records: Sequence[Record],
        workloads: Iterable[WorkloadLine] = (),
        targets: Iterable[Target] = (),
        report: LogReport | None = None,
    ) -> RecordTable:
        """The table of records, in their order.

        Args:
            records: measurements, each once.
            workloads: their programs.
            targets: targets with facts (rates of the machine); others are known by their identity alone.
            report: of the logs.
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
        """The table of one log or of several; `report` tells what could not be used.

        Args:
            paths: logs.
            targets: as for `from_records`.
        Raises:
            RecordError: a log is not there or cannot be read.  No content of it raises.
        """
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        contents = record_log.load(given)
        return cls.from_records(contents.records, contents.workloads.values(), targets, contents.report)

    @classmethod
    def load(cls, path: PathLike, max_bytes: int | None = None) -> RecordTable:
        """The table that `save` wrote.

        Args:
            path: the file.
            max_bytes: that it may need unpacked; by default 1 GB, or 100 times the size of the file if that is more.
        Raises:
            RecordError: there is no such file, it is damaged, of a newer version, no record table, or too large when unpacked.
        """
        from_file, metadata = parquet_file.read(path, KIND, VERSION, SCHEMA, max_bytes)
        table = cls(frame_from(from_file), *_provenance(path, metadata))
        table._check(path)
        notes = metadata.get("notes")
        table.notes = notes if isinstance(notes, dict) else {}
        return table

    def save(self, path: PathLike) -> None:
        """Write the table as one parquet file, whole or not at all.

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
        """All lines as records.

        Raises:
            RecordError: a line holds what no record can hold, which only a file from elsewhere can bring.
        """
        return list(records_of(self.frame))

    def lines(self) -> list[WorkloadLine]:
        """The programs as a log has them."""
        return [WorkloadLine(digest, p.name, p.script) for digest, p in self.workloads.items()]

    @cached_property
    def identities(self) -> list[str]:
        """`Record.identity` of each line."""
        return [r.identity for r in records_of(self.frame, whole=False)]

    def take(self, lines: npt.ArrayLike) -> RecordTable:
        """The table of some lines: their numbers, or a mask.  It keeps the programs, targets and sketches that they need."""
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

    def standing(self) -> RecordTable:
        """One line for each candidate: the measurement that counts, as `measure.records.status` defines it; the last
        line of a candidate of which none counts, mostly a failure."""
        records = list(records_of(self.frame, whole=False))
        database = Database(records)
        chosen: set[str] = set()
        for workload, target in database.tasks():
            judged = database.top(workload, target, len(records), unverified=True)
            chosen |= {r.identity for r in judged}
            fine = {r.schedule for r in judged}
            last = {r.schedule: r for r in database.records(workload, target) if r.schedule not in fine}
            chosen |= {r.identity for r in last.values()}
        return self.take(np.flatnonzero([r.identity in chosen for r in records]))

    def counts(self) -> pd.DataFrame:
        """For each task (name, workload, target): `records`, `candidates`, `failed`, `noisy`, `best_us`, `median_us`, and a column for each
        class of error that occurs; in the order of names."""
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

    def _check(self, path: PathLike) -> None:
        """What holds of every table that was not tampered with."""
        frame = self.frame
        seconds, failed = frame["seconds"].to_numpy(), frame["error"].notna().to_numpy()
        bad = np.where(failed, seconds != np.inf, ~((seconds > 0) & np.isfinite(seconds)))
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise RecordError(f"{path}: line {at}: seconds are {seconds[at]!r}; they are positive, or inf where there is an error")
        medians = _medians(frame["samples"].tolist())
        other = ~failed & ~(np.abs(medians - seconds) <= 1e-9 * np.abs(seconds))
        if other.any():
            at = int(np.flatnonzero(other)[0])
            raise RecordError(
                f"{path}: line {at}: seconds are {float(seconds[at])!r}, and its samples have the median "
                f"{float(medians[at])!r}: it was changed"
            )
        kinds = sorted(set(frame["error"].dropna()) - set(ERROR_KINDS))
        if kinds:
            raise RecordError(f"{path}: unknown class of error {kinds[0]!r}; known: {', '.join(ERROR_KINDS)}")
        targets = sorted(set(frame["target"]) - self.targets.keys())
        if targets:
            raise RecordError(f"{path}: its metadata says nothing of the target {targets[0]}; make the table again from its log")


def merge(tables: Sequence[RecordTable]) -> RecordTable:
    """All measurements of several tables, each once: of two copies the one with the graver verdict stays, as when logs are merged.

    Feature columns that only some tables have are left out.  The first table that knows a program, a sketch or the facts of a target
    decides.

    Raises:
        UserError: there is no table.
        RecordError: a line is damaged.
    """
    if not tables:
        raise UserError("nothing to merge: name at least one table")
    columns = [c for c in tables[0].frame.columns if all(c in t.frame.columns for t in tables)]
    frame = pd.concat([t.frame[columns] for t in tables], ignore_index=True)
    best: dict[str, tuple[int, int]] = {}
    for at, record in enumerate(records_of(frame, whole=False)):
        known = best.get(record.identity)
        if known is None or verdict(record) > known[0]:
            best[record.identity] = (verdict(record), at)
    workloads: dict[str, Program] = {}
    targets: dict[str, Mapping[str, object]] = {}
    sketches: dict[SketchKey, Sequence[object]] = {}
    for t in tables:
        workloads = {**t.workloads, **workloads}
        targets = {**targets, **{k: v for k, v in t.targets.items() if len(v) > len(targets.get(k, {}))}}  # with facts is longer
        sketches = {**t.sketches, **sketches}
    frame["name"] = [workloads[d].name if d in workloads else n for d, n in zip(frame["workload"], frame["name"], strict=True)]
    return RecordTable(frame, workloads, targets, sketches).take(sorted(at for _, at in best.values()))


def load_any(path: PathLike, targets: Iterable[Target] = ()) -> RecordTable:
    """The table of a file: a parquet file, or a log, which is turned into one.

    Raises:
        RecordError: as `RecordTable.load` and `RecordTable.from_log`.
    """
    with json_lines.open_journal(path) as file:
        try:
            is_parquet = file.read(4) == b"PAR1"
        except OSError as error:
            raise RecordError(f"cannot read {os.fspath(path)}: {error.strerror or error}. Check the path") from error
    return RecordTable.load(path) if is_parquet else RecordTable.from_log(path, targets)


def _medians(samples: Sequence[tuple[float, ...]]) -> npt.NDArray[np.float64]:
    """`Record.seconds` of each line; NaN where there are no samples."""
    lengths = np.array([len(s) for s in samples], np.int64)
    out = np.full(len(samples), np.nan)
    for n in np.unique(lengths[lengths > 0]):
        lines = np.flatnonzero(lengths == n)
        out[lines] = np.median(np.array([samples[i] for i in lines.tolist()], np.float64), axis=1)
    return out


def _provenance(
    path: PathLike, metadata: Mapping[str, object]
) -> tuple[dict[str, Program], dict[str, dict[str, object]], dict[SketchKey, list[object]]]:
    """Programs, targets and sketches out of the metadata of a file."""
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
        raise RecordError(
            f"{path}: its metadata is damaged ({type(error).__name__}: {error}); make the table again from its log"
        ) from error
    return workloads, targets, sketches
