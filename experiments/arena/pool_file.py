"""Load tabular benchmarks from files: one pool per workload and target of a record table or a tuning log."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

from tunesmith.datasets.record_table import RecordTable, load_any
from tunesmith.experiments.arena.pool import Measurement, Pool, make_pool
from tunesmith.ir import structural
from tunesmith.measure.candidate import parse_function
from tunesmith.support.errors import RecordError, UserError

PathLike = str | os.PathLike[str]


def load_pools(paths: Sequence[PathLike], workloads: Iterable[str] = ()) -> list[Pool]:
    """The pools of all tasks (workload and target) of the files, in the order of the files.

    Args:
        paths: record tables (parquet) or tuning logs (JSON lines).
        workloads: names, workload digests or pool digests (as in an arena's report) to load; all by default.
    Raises:
        RecordError: a file cannot be read, or is damaged.
        UserError: a requested workload or its program is missing, none of its candidates ran, or there are no pools.
    """
    requested = list(workloads)
    pools: list[Pool] = []
    others: list[tuple[RecordTable, str, str, pd.DataFrame, PathLike]] = []
    known: dict[str, str] = {}
    for path in paths:
        table = load_any(path)
        for keys, lines in table.frame.groupby(["workload", "target"], sort=False):
            digest, key = map(str, keys)
            name = str(lines["name"].iloc[0])
            known[digest] = name
            if not requested or digest in requested or name in requested:
                pools.append(_pool(table, digest, key, lines, path))
            else:
                others.append((table, digest, key, lines, path))
    missing = [w for w in requested if w not in known.keys() | set(known.values())]
    missing = _add_by_digest(pools, others, missing) if missing else []
    if missing:
        available = ", ".join(f"{name} (digest {digest})" for digest, name in sorted(known.items(), key=lambda x: x[1]))
        raise UserError(f"no pool of {missing[0]!r} in {_named(paths)}; available: {available or 'none'}")
    if not pools:
        raise UserError(f"there are no measurements in {_named(paths)}. A pool is a record table or a tuning log")
    return _distinct(pools)


def _add_by_digest(
    pools: list[Pool], others: Sequence[tuple[RecordTable, str, str, pd.DataFrame, PathLike]], requested: Sequence[str]
) -> list[str]:
    """Add the other pools that have a requested digest, and return the digests not found.  A pool must be built to compute its digest."""
    found = {p.digest for p in pools}
    for other in others:
        try:
            pool = _pool(*other)
        except UserError:
            continue  # not requested by name
        if pool.digest in requested:
            pools.append(pool)
            found.add(pool.digest)
    return [w for w in requested if w not in found]


def _pool(table: RecordTable, digest: str, key: str, lines: pd.DataFrame, path: PathLike) -> Pool:
    program = table.workloads.get(digest)
    if program is None:
        raise UserError(
            f"{os.fspath(path)} has measurements of the workload {digest} but not its program, which is needed for the search space. "
            "Merge it with the log that has the program's line"
        )
    if structural.digest(parse_function(program.script)) != digest:
        raise RecordError(f"{os.fspath(path)}: the program of {program.name} is not the measured one: its digest is not {digest}")
    return make_pool(program.name, program.script, table.targets[key], _measurements(lines))


def _measurements(lines: pd.DataFrame) -> Iterator[Measurement]:
    columns = [lines[name].tolist() for name in ("sketch", "trace", "row", "seconds", "clean")]
    for sketch, trace, row, seconds, clean in zip(*columns, strict=True):
        yield Measurement(sketch, json.loads(trace), tuple(map(int, row)), float(seconds), bool(clean))


def _distinct(pools: Sequence[Pool]) -> list[Pool]:
    """The pools with unique names: duplicate names get the digest as a suffix."""
    out: dict[str, Pool] = {}
    names = [p.name for p in pools]
    for p in pools:
        out.setdefault(p.digest, p if names.count(p.name) == 1 else p.renamed(f"{p.name} #{p.digest[:6]}"))
    return list(out.values())


def _named(paths: Sequence[PathLike]) -> str:
    return ", ".join(os.fspath(p) for p in paths) or "no file"
