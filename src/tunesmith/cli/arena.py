"""Implement `tunesmith arena`, which compares samplers and cost models on tabular benchmarks."""

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
@click.option("--trials", default=256, show_default=True, metavar="T", help="Trials of a search.")
@click.option("--batch", default=32, show_default=True, help="Candidates per sampler call.")
@click.option(
    "--workers", type=click.IntRange(0), metavar="W", help="Processes; by default one per core; 0 runs everything in this process."
)
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    metavar="NAME",
    help="Use only this workload, by name or digest (see arena.json); repeatable.",
)
@click.option(
    "-o", "folder", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path), help="Folder for tables, plots and a journal."
)
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
    """Replay searches on tabular benchmarks, without hardware, and compare them.

    A POOL is a record table (parquet) or a tuning log; every workload in it is searched.  A sampler or a model may have settings:
    'evolutionary(drafting=off,keep=256)'.  With -o, replays already in the folder's journal are not repeated.
    """
    from tunesmith.experiments.arena.methods import split_specs
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
        say(f"{len(written)} files in {folder}; report.txt holds the tables below")
    failures = report.summary.run.failures
    if failures:  # printed before the tables, which summarise the failures
        say(failures[0].detail if folder is None else f"tracebacks are in {folder / 'failures.txt'}")
    finish(report.render(), report.to_json(), out, report.ok)
