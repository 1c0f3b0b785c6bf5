"""`tunesmith log`: logs as files, audited, counted, pruned and merged."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from tunesmith.cli.common import LOG, finish, json_option


@click.group()
def log() -> None:
    """Audit, count, prune and merge logs."""


@log.command()
@click.argument("path", metavar="LOG", type=LOG)
@json_option
def verify(path: Path, out: str | None) -> None:
    """Check every line of LOG: shape, digests, targets, traces.  Bad lines are named by number; exit status 1 if there are any."""
    from tunesmith.driver.log_tools import verify as run

    found = run(path)
    finish(found.render(), found.to_json(), out, found.ok)


@log.command()
@click.argument("paths", metavar="LOG...", nargs=-1, required=True, type=LOG)
@json_option
def stats(paths: tuple[Path, ...], out: str | None) -> None:
    """Count what is in logs: trials, errors by class, best, sketches, curve, time, for each workload and target."""
    from tunesmith.driver.log_tools import stats as run

    found = run(paths)
    finish(found.render(), found.to_json(), out, True)


@log.command()
@click.argument("path", metavar="LOG", type=LOG)
@click.option("--keep", default=1, show_default=True, metavar="N", help="Candidates to keep for each workload and target.")
@click.option("-o", "new", required=True, type=LOG, help="A new log; LOG itself is replaced at once while its writers wait.")
@json_option
def prune(path: Path, keep: int, new: Path, out: str | None) -> None:
    """Write the best verified records of LOG, and their programs, to another log.  Failures go: keep LOG to learn from."""
    from tunesmith.driver.log_tools import prune as run
    from tunesmith.driver.log_tools import render_prune

    report = run(path, new, keep)
    finish(render_prune(new, report), asdict(report), out, True)


@log.command()
@click.argument("paths", metavar="LOG...", nargs=-1, required=True, type=LOG)
@click.option("-o", "new", required=True, type=LOG, help="The log to write; it must not be there yet.")
@json_option
def merge(paths: tuple[Path, ...], new: Path, out: str | None) -> None:
    """Merge logs into one, each measurement once.  The result does not depend on the order of the logs."""
    from tunesmith.driver.log_tools import merge as run
    from tunesmith.driver.log_tools import render_merge

    report = run(paths, new)
    finish(render_merge(new, report), asdict(report), out, True)
