"""Implement `tunesmith dataset`, which builds, merges, splits and exports record tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tunesmith.cli.common import LOG, finish, json_option, renamed, say, target_option
from tunesmith.support.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

    from tunesmith.datasets.foreign_table import ForeignTable
    from tunesmith.datasets.record_table import RecordTable

_OUT = click.option("--out", "table", required=True, type=LOG, metavar="FILE", help="The parquet file to write.")
_IN = click.argument("tables", metavar="TABLE|LOG...", nargs=-1, required=True, type=LOG)

_QUIET = click.option("--quiet-only", is_flag=True, help="Leave out times that other processes disturbed.")


@click.group()
def dataset() -> None:
    """Record tables (parquet): build, merge, stats, split, export, import.

    Every TABLE argument also accepts a tuning LOG.
    """


@dataset.command()
@click.argument("workloads", metavar="SUITE|WORKLOAD...", nargs=-1)
@click.option("--per-task", default=256, show_default=True, metavar="N", help="Candidates per workload, including those in the log.")
@click.option("--out", "table", default="pool.parquet", show_default=True, type=LOG, metavar="FILE", help="The table to write.")
@click.option("--log", default="pool.jsonl", show_default=True, type=LOG, help="Log of records: read first, then appended to.")
@click.option("--seed", default=0, show_default=True, help="Seed of the candidate selection.")
@click.option("--workers", type=click.IntRange(0), metavar="N", help="Compiling processes; by default one per core.")
@click.option("--batch", default=32, show_default=True, help="Candidates per turn of a workload.")
@click.option("--retake", is_flag=True, help="Measure candidates again if other processes disturbed their times.")
@click.option("--suites", is_flag=True, help="List the suites and exit.")
@target_option
@json_option
def build(
    workloads: tuple[str, ...],
    per_task: int,
    table: Path,
    log: Path,
    seed: int,
    workers: int | None,
    batch: int,
    retake: bool,
    suites: bool,
    target: str | None,
    out: str | None,
) -> None:
    """Measure a tabular benchmark of each workload, with one comparable time per candidate.

    Half of the candidates are random, a quarter are ranked best by the analytic model, a quarter are neighbours of the fastest.  A SUITE
    is suite:NAME.  Only candidates missing from the log are measured; Ctrl-C keeps all measurements.
    """
    from tunesmith.experiments.pools.build import build as run

    if suites:
        _list_suites(out)
        return
    if not workloads:
        raise click.UsageError("name a suite or a workload, such as suite:tiny or 'matmul(m=512,n=512,k=512)'; --suites lists the suites")
    report = run(list(workloads), per_task, table, log, target, seed, batch=batch, workers=workers, retake=retake)
    finish(report.render(), report.to_json(), out, report.ok)


@dataset.command(context_settings=renamed(standing="representatives"))
@_IN
@_OUT
@click.option("--representatives", is_flag=True, help="Keep one measurement per candidate.")
@_QUIET
@json_option
def merge(tables: tuple[Path, ...], table: Path, representatives: bool, quiet_only: bool, out: str | None) -> None:
    """Merge tables and logs; each measurement is kept once."""
    from tunesmith.datasets.record_table import load_any
    from tunesmith.datasets.record_table import merge as run

    given = [load_any(path) for path in tables]
    for path, one in zip(tables, given, strict=True):
        _say_bad(path, one)
    merged = run(given)
    merged = _chosen(merged.representatives() if representatives else merged, quiet_only)
    merged.save(table)
    finish(f"{table}: {_records(len(merged))} of {sum(map(len, given))}", {"table": str(table), **summary(merged)}, out, True)


@dataset.command()
@_IN
@click.option("--plots", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Write plots to this folder.")
@click.option("--format", "kind", default="svg", show_default=True, help="Format of the plots: svg or png.")
@json_option
def stats(tables: tuple[Path, ...], plots: Path | None, kind: str, out: str | None) -> None:
    """Count records per task, target and error class; plots with --plots."""
    from tunesmith.datasets import foreign_table, parquet_file
    from tunesmith.datasets.record_table import load_any, merge

    if all(parquet_file.kind_of(path) == foreign_table.KIND for path in tables):
        if len(tables) > 1 or plots is not None:
            raise click.UsageError("stats takes one table of another tuner at a time and cannot plot it")
        foreign = foreign_table.ForeignTable.load(tables[0])
        finish(_counts_table(str(tables[0]), foreign.counts()), foreign_summary(foreign), out, True)
        return
    given = [load_any(path) for path in tables]
    for path, one in zip(tables, given, strict=True):
        _say_bad(path, one)
    table = given[0] if len(given) == 1 else merge(given)
    if plots is not None:
        from tunesmith.experiments.pools.plots import plot

        for path in plot(table, plots, kind):
            say(f"wrote {path}")
    counts = table.counts()
    if len(counts):
        counts["target"] = [_machine(table.targets[key]) for key in counts["target"]]
    finish(_counts_table(_records(len(table)), counts), summary(table), out, True)


@dataset.command()
@click.argument("table", metavar="TABLE|LOG", type=LOG)
@click.option("--by", default="within-task", show_default=True, help="What the parts do not share: within-task, task, family or target.")
@click.option("--train", default=0.9, show_default=True, help="Fraction for training.")
@click.option("--valid", default=0.0, show_default=True, help="Fraction for validation; the rest is the test set.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--hold-out", multiple=True, metavar="NAME", help="A task, family or target of the test set, instead of random ones; repeatable."
)
@click.option(
    "--out", "folder", required=True, type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Folder of the parts."
)
@_QUIET
@json_option
def split(
    table: Path,
    by: str,
    train: float,
    valid: float,
    seed: int,
    hold_out: tuple[str, ...],
    folder: Path,
    quiet_only: bool,
    out: str | None,
) -> None:
    """Write train.parquet, valid.parquet (if requested) and test.parquet, without leakage between them."""
    from tunesmith.datasets.record_table import load_any
    from tunesmith.datasets.splits import NAMES
    from tunesmith.datasets.splits import split as run

    given = load_any(table)
    _say_bad(table, given)
    parts = run(_chosen(given, quiet_only), by, train=train, valid=valid, seed=seed, hold_out=hold_out)
    data: dict[str, object] = {"by": by, "seed": seed}
    shown = []
    for name, part in zip(NAMES, parts, strict=True):
        if len(part) or name != "valid":
            part.notes["split"] = {"by": by, "part": name, "train": train, "valid": valid, "seed": seed, "hold_out": list(hold_out)}
            part.save(folder / f"{name}.parquet")
            data[name] = {"table": str(folder / f"{name}.parquet"), **summary(part)}
            shown.append(f"{folder / name}.parquet: {_records(len(part))}, {part.frame['workload'].nunique()} workloads")
        elif (stale := folder / f"{name}.parquet").exists():  # of an earlier split: it shares programs with the parts of this one
            stale.unlink()
            say(f"{stale} removed: it was of an earlier split, and this one has no such part")
    finish("\n".join(shown), data, out, True)


@dataset.command()
@click.argument("table", metavar="TABLE|LOG", type=LOG)
@click.option("--out", "exported", required=True, type=LOG, metavar="FILE", help="The parquet file to write.")
@_QUIET
@json_option
def export(table: Path, exported: Path, quiet_only: bool, out: str | None) -> None:
    """Write the table with the features of every candidate as named columns."""
    from tunesmith.datasets.record_table import load_any
    from tunesmith.experiments.pools.export import PREFIX, with_features

    given = load_any(table)
    _say_bad(table, given)
    found = with_features(_chosen(given, quiet_only))
    found.table.save(exported)
    for reason, lines in found.without.items():
        say(f"{_records(lines)} without features: {reason}")
    columns = [c for c in found.table.frame.columns if c.startswith(PREFIX)]
    data = {"table": str(exported), "records": len(found.table), "features": columns, "without": found.without}
    finish(f"{exported}: {_records(len(found.table))} with {len(columns)} features", data, out, True)


@dataset.command(name="import")
@click.argument("source", type=click.Choice(["ansor", "tenset", "metaschedule"]))
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@_OUT
@click.option("--limit", type=int, metavar="N", help="Maximum number of records per workload and target.")
@json_option
def import_(source: str, paths: tuple[Path, ...], table: Path, limit: int | None, out: str | None) -> None:
    """Import logs of other tuners as a table: times, workload keys and decisions.  No code in them is run.

    ansor: logs of auto_scheduler. tenset: folders of measure_records. metaschedule: folders with database_*.json.
    """
    from tunesmith.datasets import import_ansor, import_metaschedule, import_tenset

    load = {"ansor": import_ansor.load, "tenset": import_tenset.load, "metaschedule": import_metaschedule.load}[source]
    found = load(list(paths), limit)
    found.save(table)
    r = found.report
    for entry in r.bad[:10]:
        say(f"skipped {entry}")
    skipped = f", {r.duplicates} duplicates and {r.bad_count} invalid lines skipped" if r.duplicates or r.bad_count else ""
    finish(f"{table}: {_records(len(found))} of {r.workloads} workloads{skipped}", foreign_summary(found), out, True)


def summary(table: RecordTable) -> dict[str, object]:
    """Counts of a table as plain data: per task, target and class of error."""
    frame = table.frame
    return {
        "records": len(table),
        "tasks": _plain(table.counts()),
        "targets": {str(k): int(n) for k, n in frame["target"].value_counts().sort_index().items()},
        "errors": {str(k): int(n) for k, n in frame["error"].dropna().value_counts().sort_index().items()},
        "noisy": int((~frame["clean"]).sum()),
        "censored": int(frame["censored"].sum()),
    }


def foreign_summary(table: ForeignTable) -> dict[str, object]:
    """Counts of another tuner's table as plain data, with the lines skipped on import."""
    return {
        "records": len(table),
        "tasks": _plain(table.counts()),
        "errors": {str(k): int(n) for k, n in table.frame["error"].dropna().value_counts().sort_index().items()},
        "duplicates": table.report.duplicates,
        "bad_lines": table.report.bad_count,
    }


def _plain(counts: pd.DataFrame) -> list[dict[str, object]]:
    rows = counts.to_dict("records")
    return [{str(k): None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()} for row in rows]


def _counts_table(title: str, counts: pd.DataFrame) -> RenderableType:
    from tunesmith.display.tables import microseconds, plain_table

    names = [c for c in counts.columns if c != "workload" or "name" not in counts.columns]

    def cell(name: str, value: object) -> str:
        if name.endswith("_us"):
            return microseconds(float(str(value)) * 1e-6)
        text = str(value)
        return text if len(text) <= 60 else f"{text[:57]}..."

    rows = [[cell(n, row[n]) for n in names] for row in counts.to_dict("records")]
    return plain_table(title, names, rows, left=["target", "workload"])


def _machine(target: Mapping[str, object]) -> str:
    """A short description of a target."""
    words = [str(target.get(name, "")) for name in ("kind", "mcpu", "arch", "model")]
    return " ".join([w for w in words if w] + ([f"{target['num_cores']} cores"] if "num_cores" in target else []))


def _list_suites(out: str | None) -> None:
    from tunesmith.datasets.suites import SUITES
    from tunesmith.display.tables import plain_table

    found = {}
    for name in SUITES:
        try:
            found[name] = SUITES.get(name)
        except UserError as error:  # of a package with a defect; the others are usable
            say(f"! {error}")
    rows = [[f"suite:{name}", str(len(s)), s.about] for name, s in found.items()]
    finish(plain_table("", ["suite", "workloads", "what"], rows, left=["what"]), {n: list(s) for n, s in found.items()}, out, True)


def _say_bad(path: Path, table: RecordTable) -> None:
    if table.report.bad_count:
        say(f"! {path}: {table.report}")


def _chosen(table: RecordTable, quiet_only: bool) -> RecordTable:
    """The table, with `quiet_only` without disturbed times, of which the number is printed."""
    if not quiet_only:
        return table
    kept = table.quiet()
    say(f"{_records(len(table) - len(kept))} left out: other processes disturbed the times")
    return kept


def _records(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"
