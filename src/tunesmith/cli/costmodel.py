"""Implement `tunesmith costmodel`, which trains cost models on measurements and evaluates them."""

from __future__ import annotations

from pathlib import Path

import click

from tunesmith.cli.common import finish, json_option

_FILE = click.Path(dir_okay=False, path_type=Path)

_QUIET = click.option("--quiet-only", is_flag=True, help="Leave out times that other processes disturbed, instead of weighing them less.")


@click.group()
def costmodel() -> None:
    """Train and evaluate cost models.  A TABLE is a log (.jsonl) or a record table (.parquet)."""


@costmodel.command()
@click.argument("tables", metavar="TABLE...", nargs=-1, required=True, type=_FILE)
@click.option("--model", default="xgb", show_default=True, metavar="NAME|FILE", help="The model; a saved model is trained further.")
@click.option("-o", "file", required=True, type=_FILE, help="The file to write: .json, or .safetensors for mlp.")
@click.option("--seed", default=0, show_default=True)
@_QUIET
@json_option
def train(tables: tuple[Path, ...], model: str, file: Path, seed: int, quiet_only: bool, out: str | None) -> None:
    """Train a model and save it, for `tunesmith tune --model FILE`."""
    from tunesmith.driver.train import train as run

    made = run(tables, file, model, seed, quiet_only=quiet_only)
    finish(made.render(), made.to_json(), out, True)


@costmodel.command(name="eval")
@click.argument("model", metavar="NAME|FILE")
@click.argument("tables", metavar="TABLE...", nargs=-1, required=True, type=_FILE)
@click.option(
    "--holdout",
    type=click.Choice(["within", "task", "family", "target"]),
    help="Test set: some programs of each task, or whole tasks, operators or machines. "
    "By default a saved model is evaluated as it is, any other within tasks.",
)
@click.option("--folds", default=5, show_default=True, help="Folds of the cross-validation.")
@click.option("--seed", default=0, show_default=True)
@_QUIET
@json_option
def eval_(model: str, tables: tuple[Path, ...], holdout: str | None, folds: int, seed: int, quiet_only: bool, out: str | None) -> None:
    """Evaluate a model on measurements, with shuffled labels, the analytic cost and random scores as controls."""
    from tunesmith.driver.train import evaluate_files

    found = evaluate_files(model, tables, holdout, folds, seed, quiet_only=quiet_only)
    finish(found.render(), found.to_json(), out, True)
