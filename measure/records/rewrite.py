"""Merge several logs into one, and prune a log to its best records.

Lines are copied byte by byte.  Only their positions and digests are held in memory, so logs of any size can be merged; a line that changed
between selection and copy is detected by its digest.
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
from tunesmith.measure.records.log import LogReport, PathLike, entry_of, merged_order, status_rank
from tunesmith.measure.records.record import Record, WorkloadLine
from tunesmith.measure.records.record_decoder import RecordDecoder
from tunesmith.support import json_lines
from tunesmith.support.errors import RecordError, UserError


@dataclass(frozen=True, slots=True)
class _Line:
    """Position of a line, and the digest of its text.

    Attributes:
        file: index of the log.
        number, offset, length: line number (from 1), byte offset (from 0) and length of the text in the log.
        digest: digest of the text.
    """

    file: int
    number: int
    offset: int
    length: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class PruneReport:
    """Summary of a pruned log.

    Attributes:
        log: report on the original log.
        kept: number of records in the new log.
        dropped: number of records that were removed.
        empty: digests of workloads without a verified record, which are not in the new log.
    """

    log: LogReport
    kept: int
    dropped: int
    empty: tuple[str, ...]


def merge(paths: Sequence[PathLike], out: PathLike) -> LogReport:
    """Write the distinct lines of several logs to a new log; the result is independent of the order of the logs.

    Programs come first, by digest, then records in the order of `log.merged_order`, then lines of newer versions, which are also counted as
    bad lines in the report.  Of several lines for one measurement the one with the highest status rank is kept, and of equal ranks the
    line with the smallest text digest; the latter also decides between several scripts for one workload digest.

    Args:
        paths: logs; duplicates are allowed.
        out: path of a new file: an existing log, to which other processes may be writing, is never replaced.

    Raises:
        RecordError: an input cannot be read or changed during the merge; `out` exists or cannot be written.  Content never raises.
    """
    out = Path(out)
    if out.exists():
        raise RecordError(f"cannot merge into {out}: it exists. Name a new file, and pass {out} as one of the inputs to keep its lines")
    report = LogReport()
    json_lines.write(out, _texts(paths, _chosen(paths, report)))
    return report


def prune(path: PathLike, out: PathLike, keep: int) -> PruneReport:
    """Write the best verified candidates of each workload and target of a log, with their programs, to another log.

    Of a candidate measured several times, the first record and the one that replaces or confirms it are kept (see `status`), so that both
    logs have the same best candidate.  Failures and unverified records are removed; keep the whole log to train models.  Lines of newer
    versions are kept.

    Args:
        path: the log.
        out: path of a new file; or the log itself, which is replaced atomically while its writers wait.
        keep: number of candidates for each workload and target.

    Raises:
        UserError: `keep` is not positive.
        RecordError: the log cannot be read; `out` is another existing file, or cannot be written.
    """
    if keep < 1:
        raise UserError(f"a pruned log keeps at least 1 candidate of each workload, not {keep}")
    path, out = Path(path), Path(out)
    same = out.exists() and path.exists() and os.path.samefile(path, out)
    if out.exists() and not same:
        raise RecordError(f"cannot prune into {out}: it exists. Name a new file, or the log itself to replace it")
    with json_lines.locked(path) if same else nullcontext():
        # Links are resolved, so that their target is replaced, not the link.
        lines, report = _best_lines(path, keep)
        json_lines.write(out.resolve() if same else out, _texts([path], lines), replace=same)
    return report


def _chosen(paths: Sequence[PathLike], report: LogReport) -> list[_Line]:
    """The lines that a merge keeps, in order; fills in the report."""
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
            rank, known = status_rank(entry), records.get(entry.identity)
            report.duplicates += known is not None
            orders[line.file].append((entry.timestamp, entry.identity))
            if known is None or (-rank, line.digest) < (-known[0], known[1].digest):
                records[entry.identity] = (rank, line)
    report.records, report.workloads = len(records), len(programs)
    return [
        *[programs[digest] for digest in sorted(programs)],
        *[records[identity][1] for identity in merged_order(orders)],
        *[newer[digest] for digest in sorted(newer)],
    ]


def _best_lines(path: Path, keep: int) -> tuple[list[_Line], PruneReport]:
    """The lines that a pruned log keeps, in log order, and the report."""
    report, database = LogReport(), Database()
    records: dict[str, tuple[int, _Line]] = {}
    programs: dict[str, _Line] = {}
    lines: list[_Line] = []
    for line, entry in _entries([path], report):
        if isinstance(entry, NewerRecordError):
            lines.append(line)
        elif isinstance(entry, WorkloadLine):
            report.duplicates += entry.digest in programs
            programs.setdefault(entry.digest, line)
        else:
            database.add(entry)
            known = records.get(entry.identity)
            report.duplicates += known is not None
            if known is None or status_rank(entry) > known[0]:
                records[entry.identity] = (status_rank(entry), line)
    tasks = [(view, *task) for view in database.views() for task in view.tasks()]
    best = [r for view, workload, target in tasks for r in view.evidence(workload, target, keep)]
    present = {r.workload for r in best}
    lines += [records[r.identity][1] for r in best] + [line for digest, line in programs.items() if digest in present]
    report.records, report.workloads = len(records), len(programs)
    empty = sorted({*programs, *(workload for _, workload, _ in tasks)} - present)
    return sorted(lines, key=lambda line: line.number), PruneReport(report, len(best), len(records) - len(best), tuple(empty))


def _entries(paths: Sequence[PathLike], report: LogReport) -> Iterator[tuple[_Line, Record | WorkloadLine | NewerRecordError]]:
    """All valid lines and lines of newer versions; bad lines and those of newer versions are reported."""
    reader = RecordDecoder()
    for file, path in enumerate(paths):
        for number, offset, text, value in json_lines.spans(path, decode=reader.read):
            line = _Line(file, number, offset, len(text), blake2b(text, digest_size=16).digest())
            try:
                yield line, entry_of(value, reader.pool)
            except NewerRecordError as error:
                report.add_bad(path, number, f"{error}. The line was preserved")
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
                raise RecordError(
                    f"cannot copy line {line.number} of {path}: it was changed concurrently. Try again when no process rewrites the log"
                )
            yield text
