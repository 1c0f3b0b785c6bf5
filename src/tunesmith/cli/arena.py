"""`tunesmith arena`: samplers and models compared on measured pools."""

from __future__ import annotations

from pathlib import Path

import click

from tunesmith.cli.common import finish, json_option, say
from tunesmith.support.errors import MissingExtraError


@click.command()
@click.argument("pools", metavar="POOL...", nargs=-1, required=True, type=click.Path(dir_okay=False))
@click.option("--samplers", default="random,evolutionary", show_default=True, metavar="A,B", help="Names, or path.py:Class.")
@click.option("--models", default="xgb", show_default=True, metavar="X,Y", help="Names, path.py:Class, files of saved models, or none.")
@click.option("--seeds", default=10, show_default=True, metavar="N", help="Replays of each sampler with each model on each pool.")
@click.option("--trials", default=256, show_default=True, metavar="T", help="Candidates that a search may try.")
@click.option("--batch", default=32, show_default=True, help="Candidates that a sampler is asked for at once.")
@click.option("--workers", type=click.IntRange(0), metavar="W", help="Processes; by default one for each core. 0 does all in this one.")
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    metavar="NAME",
    help="Of the pools only this one, by name or digest (see arena.json); repeatable.",
)
@click.option("-o", "folder", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path), help="For tables, plots and a journal.")
@json_option
def arena(
    pools: tuple[str, ...],
    samplers: str,
    models: str,
    seeds: int,
    trials: int,
    batch: int,
    workers: int | None,
    workloads: tuple[str, ...],
    folder: Path | None,
    out: str | None,
) -> None:
    """Replay whole searches on measured candidates, without hardware, and compare them.

    A POOL is a record table (parquet) or a tuning log; every workload in it is searched.  A sampler or a model may have settings:
    'evolutionary(drafting=off,keep=256)'.  With -o, replays that the folder's journal holds are not done again.
    """
    from tunesmith.experiments.arena.contestants import split_specs
    from tunesmith.experiments.arena.run import arena as run

    report = run(
        pools,
        split_specs(samplers),
        split_specs(models),
        seeds,
        trials,
        batch=batch,
        workers=workers,
        workloads=workloads,
        folder=folder,
    )
    if folder is not None:
        written = report.write(folder)
        try:
            written += report.plot(folder)
        except MissingExtraError as error:
            say(str(error))
        say(f"{len(written)} files in {folder}; report.txt holds what follows")
    failures = report.summary.run.failures
    if failures:  # what the tables say of it is the last thing on the screen
        say(failures[0].detail if folder is None else f"tracebacks are in {folder / 'failures.txt'}")
    finish(report.render(), report.to_json(), out, report.ok)
