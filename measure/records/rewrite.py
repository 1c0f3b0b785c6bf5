"""Logs made of the lines of other logs: several merged into one, or one pruned to its best records.

Lines are carried over as they stand, byte by byte.  Only places and digests of them are held in memory, so that logs of any
size can be merged; a line that changed between the choice and the copy is noticed by its digest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from tunesmith.measure.records.database import Database
from tunesmith.measure.records.fields import NewerRecordError
from tunesmith.measure.records.log import LogReport, PathLike, entry_of, merged_order, verdict
from tunesmith.measure.records.record import Record, WorkloadLine
from tunesmith.measure.records.record_decoder import LineReader
from tunesmith.support import json_lines
from tunesmith.support.errors import RecordError, UserError


@dataclass(frozen=True, slots=True)
class _Line:
    """Where a line stands, and the digest of its text.

    Attributes:
        file: index of the log.
        number, offset, length: of the text in it, from line 1 and byte 0.
        digest: of the text.
    """

    file: int
    number: int
    offset: int
    length: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What a pruned log holds.

    Attributes:
        log: what was found in the log.
        kept: records that are in the new log.
        dropped: records that are not.
        empty: digests of workloads that have no verified record and so are not in the new log.
    """

    log: LogReport
    kept: int
    dropped: int
    empty: tuple[str, ...]


def merge(paths: Sequence[PathLike], out: PathLike) -> LogReport:
    """Write the distinct lines of several logs to a new one, which does not depend on the order of the logs.

    Programs come first, by digest, then records as `record_log.merged_order` orders them, then lines of a newer version, which count among
    the bad lines of the report all the same.  Of several lines for one measurement the gravest verdict is kept, of equal ones that whose
    text has the least digest; so with two scripts for one workload digest.

    Args:
        paths: logs; one may be named twice.
        out: a file that is not there yet: a log that others may be writing to is never replaced.

    Raises:
        RecordError: an input cannot be read, or changed meanwhile; `out` exists or cannot be written.  No content of the inputs raises.
    """
    out = Path(out)
    if out.exists():
        raise RecordError(f"cannot merge into {out}: it exists. Name a new file, and give {out} as one of the inputs to keep its lines")
    report = LogReport()
    json_lines.write(out, _texts(paths, _chosen(paths, report)))
    return report


def prune(path: PathLike, out: PathLike, keep: int) -> PruneReport:
    """Write the best verified candidates of each workload and target of a log, and the programs they are for, to another log.

    Of a candidate that was measured several times, the first record and the one that overrules or confirms it are kept (see `standing`),
    so that both logs have the same best.  All failures go, and what is not verified; keep the whole log to train models.  Lines of a
    newer version stay.

    Args:
        path: the log.
        out: a file that is not there yet; or the log itself, which is replaced at once while its writers wait.
        keep: so many candidates for each workload and target.

    Raises:
        UserError: `keep` is not positive.
        RecordError: the log cannot be read; `out` is another file that exists, or cannot be written.
    """
    if keep < 1:
        raise UserError(f"a pruned log keeps at least 1 record of each workload, not {keep}")
    path, out = Path(path), Path(out)
    same = out.exists() and path.exists() and os.path.samefile(path, out)
    if out.exists() and not same:
        raise RecordError(f"cannot prune into {out}: it exists. Name a new file, or the log itself to replace it")
    with json_lines.locked(path) if same else nullcontext():
        # A link is followed: what it points to is replaced, not the link.
        lines, report = _best_lines(path, keep)
        json_lines.write(out.resolve() if same else out, _texts([path], lines), replace=same)
    return report


def _chosen(paths: Sequence[PathLike], report: LogReport) -> list[_Line]:
    """The lines that a merge keeps, in order, and the counts of all others."""
    programs: dict[str, _Line] = {}
    scripts: dict[str, bytes] = {}
    records: dict[str, tuple[int, _Line]] = {}
    orders: list[list[tuple[float, str]]] = [[] for _ in paths]
    newer: dict[bytes, _Line] = {}
    for line, entry in _entries(paths, report):
        if isinstance(entry, NewerRecordError):
            newer.setdefault(line.digest, line)
        elif isinstance(entry, WorkloadLine):
            script = blake2b(entry.script.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if scripts.setdefault(entry.digest, script) != script:
                reason = (
                    f"workload {entry.digest} is defined elsewhere with another script; one of them is kept, see `tunesmith log verify`"
                )
                report.add_bad(paths[line.file], line.number, reason)
            report.duplicates += entry.digest in programs
            if entry.digest not in programs or line.digest < programs[entry.digest].digest:
                programs[entry.digest] = line
        else:
            grave, known = verdict(entry), records.get(entry.identity)
            report.duplicates += known is not None
            orders[line.file].append((entry.timestamp, entry.identity))
            if known is None or (-grave, line.digest) < (-known[0], known[1].digest):
                records[entry.identity] = (grave, line)
    report.records, report.workloads = len(records), len(programs)
    return [
        *[programs[digest] for digest in sorted(programs)],
        *[records[identity][1] for identity in merged_order(orders)],
        *[newer[digest] for digest in sorted(newer)],
    ]


def _best_lines(path: Path, keep: int) -> tuple[list[_Line], PruneReport]:
    """The lines that a pruned log keeps, in the order of the log."""
    report, database = LogReport(), Database()
    places: dict[str, tuple[int, _Line]] = {}
    programs: dict[str, _Line] = {}
    kept: list[_Line] = []
    for line, entry in _entries([path], report):
        if isinstance(entry, NewerRecordError):
            kept.append(line)
        elif isinstance(entry, WorkloadLine):
            report.duplicates += entry.digest in programs
            programs.setdefault(entry.digest, line)
        else:
            database.add(entry)
            known = places.get(entry.identity)
            report.duplicates += known is not None
            if known is None or verdict(entry) > known[0]:
                places[entry.identity] = (verdict(entry), line)
    best = [r for workload, target in database.tasks() for r in database.evidence(workload, target, keep)]
    present = {r.workload for r in best}
    kept += [places[r.identity][1] for r in best] + [line for digest, line in programs.items() if digest in present]
    report.records, report.workloads = len(places), len(programs)
    empty = sorted({*programs, *(workload for workload, _ in database.tasks())} - present)
    return sorted(kept, key=lambda line: line.number), PruneReport(report, len(best), len(places) - len(best), tuple(empty))


def _entries(paths: Sequence[PathLike], report: LogReport) -> Iterator[tuple[_Line, Record | WorkloadLine | NewerRecordError]]:
    """Every line that can be used, or is of a newer version; the others are reported."""
    reader = LineReader()
    for file, path in enumerate(paths):
        for number, offset, text, value in json_lines.spans(path, decode=reader.read):
            line = _Line(file, number, offset, len(text), blake2b(text, digest_size=16).digest())
            try:
                yield line, entry_of(value, reader.pool)
            except NewerRecordError as error:
                report.add_bad(path, number, f"{error}. The line was carried over")
                yield line, error
            except RecordError as error:
                report.add_bad(path, number, str(error))


def _texts(paths: Sequence[PathLike], lines: Sequence[_Line]) -> Iterator[bytes]:
    with ExitStack() as stack:
        files = [stack.enter_context(json_lines.open_journal(path)) for path in paths]
        for line in lines:
            files[line.file].seek(line.offset)
            text = files[line.file].read(line.length)
            if blake2b(text, digest_size=16).digest() != line.digest:
                path = os.fspath(paths[line.file])
                raise RecordError(f"cannot copy line {line.number} of {path}: it was changed meanwhile. Try again when nobody rewrites it")
            yield text
