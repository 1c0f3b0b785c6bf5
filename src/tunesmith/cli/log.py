"""Implement `tunesmith log`, which audits, counts, prunes, merges and imports logs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from tunesmith.cli.common import LOG, finish, json_option, target_option


@click.group()
def log() -> None:
    """Audit, count, prune, merge and import logs."""


@log.command()
@click.argument("path", metavar="LOG", type=LOG)
@json_option
def verify(path: Path, out: str | None) -> None:
    """Check every line of LOG: shape, digests, targets, traces.  Bad lines are listed by number and give exit status 1."""
    from tunesmith.driver.logs.log_tools import verify as run

    found = run(path)
    finish(found.render(), found.to_json(), out, found.ok)


@log.command()
@click.argument("paths", metavar="LOG...", nargs=-1, required=True, type=LOG)
@json_option
def stats(paths: tuple[Path, ...], out: str | None) -> None:
    """Count the trials, errors by class, best, sketches, curve and time of each workload and target."""
    from tunesmith.driver.logs.log_tools import stats as run

    found = run(paths)
    finish(found.render(), found.to_json(), out, True)


@log.command()
@click.argument("path", metavar="LOG", type=LOG)
@click.option("--keep", default=1, show_default=True, metavar="N", help="Candidates to keep per workload and target.")
@click.option("-o", "new", required=True, type=LOG, help="The log to write; LOG itself is replaced atomically while its writers wait.")
@json_option
def prune(path: Path, keep: int, new: Path, out: str | None) -> None:
    """Write the best verified records of LOG, and their programs, to another log.  Failures are dropped: keep LOG for training."""
    from tunesmith.driver.logs.log_tools import prune as run
    from tunesmith.driver.logs.log_tools import render_prune

    report = run(path, new, keep)
    finish(render_prune(new, report), asdict(report), out, True)


@log.command()
@click.argument("paths", metavar="LOG...", nargs=-1, required=True, type=LOG)
@click.option("-o", "new", required=True, type=LOG, help="The log to write; it must not exist yet.")
@json_option
def merge(paths: tuple[Path, ...], new: Path, out: str | None) -> None:
    """Merge logs into one, each measurement once.  The order of the logs does not change the result."""
    from tunesmith.driver.logs.log_tools import merge as run
    from tunesmith.driver.logs.log_tools import render_merge

    report = run(paths, new)
    finish(render_merge(new, report), asdict(report), out, True)


@log.command("import")
@click.argument("path", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("-o", "new", required=True, type=LOG, help="The log to append to.")
@click.option("--workers", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Compiling processes; 0 is this one.")
@target_option
@json_option
def import_(path: Path, new: Path, workers: int, target: str | None, out: str | None) -> None:
    """Replay the records of a database of TVM's MetaSchedule (FOLDER has database_tuning_record.json), and measure them here."""
    from tunesmith.driver.logs.import_traces import import_metaschedule as run

    found = run(path, new, target, workers)
    finish(found.render(), found.to_json(), out, found.ok)
