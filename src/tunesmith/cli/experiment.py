"""Implement `tunesmith experiment run | report | compare`, which runs studies and reports them."""

from __future__ import annotations

from pathlib import Path

import click

from tunesmith.cli.common import finish, json_option, say

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group()
def experiment() -> None:
    """Compare samplers, models and variants on many workloads and seeds; see docs/experiments.md."""


@experiment.command()
@click.argument("config", metavar="CONFIG|FOLDER", type=click.Path(path_type=Path))
@click.option("-o", "folder", metavar="RUN", type=_FOLDER, help="The run's folder; by default runs/NAME, or FOLDER if it is a run.")
@click.option("--run-code", is_flag=True, help="Run the Python files that the configuration names.")
@json_option
def run(config: Path, folder: Path | None, run_code: bool, out: str | None) -> None:
    """Run the unfinished part of a study.

    CONFIG is a TOML file; FOLDER holds a config.toml: a study, or a run to resume.  Ctrl-C keeps all measurements.
    """
    from tunesmith.experiments.study.config import ExperimentConfig
    from tunesmith.experiments.study.runner import run_experiment

    study = ExperimentConfig.load(config)
    if folder is None:
        folder = config if (config / "index.json").is_file() else Path("runs") / study.name
    index = run_experiment(study, folder, run_code=run_code, say=say, progress=True)
    say(f"run folder: {folder}")
    finish(index.render(), index.to_json(), out, index.ok)


@experiment.command()
@click.argument("folder", metavar="RUN", type=_FOLDER)
@click.option("-o", "page", metavar="PAGE", type=click.Path(dir_okay=False, path_type=Path), help="By default RUN/report.html.")
@json_option
def report(folder: Path, page: Path | None, out: str | None) -> None:
    """Write an HTML report of a run, finished or not: tables, curves, time per phase and raw numbers."""
    from tunesmith.experiments.study.report import report_experiment

    path, data = report_experiment(folder, page)
    finish(str(path), data, out, True)


@experiment.command()
@click.argument("a", metavar="RUN_A", type=_FOLDER)
@click.argument("b", metavar="RUN_B", type=_FOLDER)
@json_option
def compare(a: Path, b: Path, out: str | None) -> None:
    """Compare the times and trials of two runs per arm and workload, with significance over seeds."""
    from tunesmith.experiments.study.compare import compare_runs

    found = compare_runs(a, b)
    finish(found.render(), found.to_json(), out, True)
