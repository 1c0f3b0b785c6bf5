"""Plot a record table: slowdowns of the candidates of each task, outcomes, and noise of the times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tunesmith.datasets.record_columns import groups
from tunesmith.datasets.record_table import RecordTable
from tunesmith.measure.records.record import ERROR_KINDS
from tunesmith.support import atomic_file
from tunesmith.support.array_types import Int64Array
from tunesmith.support.errors import MissingExtraError, UserError
from tunesmith.support.escaped_text import escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "png")
MOST_TASKS = 20
"""Maximum number of tasks in a plot; those with the most records are used."""

_COLOURS = {"ran": "#4c9f70", "noisy": "#a8cfb5", "censored": "#d9c86c"} | dict(
    zip(ERROR_KINDS, ("#8d6a9f", "#d98e4a", "#b23a48", "#5f6c7b", "#e05a47", "#7a4a3a", "#4a7a6d"), strict=True)
)


def plot(table: RecordTable, folder: str | PathLike[str], kind: str = "svg") -> list[Path]:
    """Plot a table.

    Args:
        table: the record table.
        folder: folder of the files `slowdown`, `outcomes` and `noise`; created if missing.
        kind: svg or png.
    Returns:
        The paths of the files.  Equal tables give equal files.
    Raises:
        UserError: an unknown format, an empty table, or a folder that cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    if kind not in FORMATS:
        raise UserError(f"plots are {' or '.join(FORMATS)}, not {kind!r}")
    if not len(table):
        raise UserError("there is nothing to plot: the table is empty")
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_saved(draw, table, folder / f"{name}.{kind}") for name, draw in _PICTURES.items()]
    except OSError as error:
        raise UserError(f"cannot write plots to {folder}: {error.strerror or error}. Check the path and its permissions") from error


def slowdown(table: RecordTable) -> Figure:
    """For each task, the cumulative share of candidates over their time relative to the best."""
    figure, axes = _figure()
    for name, lines in _tasks(table):
        seconds = table.frame["seconds"].to_numpy()[lines]
        ran = np.sort(seconds[np.isfinite(seconds)])
        if len(ran):
            axes.step(ran / ran[0], np.arange(1, len(ran) + 1) / len(seconds), where="post", label=name, linewidth=1.2)
    axes.set(
        xscale="log",
        xlabel="time / best of the task",
        ylabel="share of candidates",
        ylim=(0, 1),
        title="Distribution of slowdowns",
    )
    _legend(axes)
    return figure


def outcomes(table: RecordTable) -> Figure:
    """For each task, the shares of candidates that ran, and that failed in each way."""
    tasks = _tasks(table)
    figure, axes = _figure(0.6 + 0.3 * len(tasks))
    frame = table.frame
    what = np.where(frame["censored"], "censored", np.where(frame["clean"], "ran", "noisy")).astype(object)
    failed = frame["error"].notna().to_numpy()
    what[failed] = frame["error"].to_numpy()[failed]
    left = np.zeros(len(tasks))
    for outcome, colour in _COLOURS.items():
        shares = np.array([np.mean(what[lines] == outcome) for _, lines in tasks])
        if shares.any():
            axes.barh([name for name, _ in tasks], shares, left=left, color=colour, label=outcome)
            left += shares
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel="share of candidates", title="Outcomes")
    _legend(axes)
    return figure


def noise(table: RecordTable) -> Figure:
    """Cumulative share of candidates over the relative distance of the quartiles of their samples."""
    figure, axes = _figure()
    frame = table.frame
    for label, mask in (("quiet", frame["clean"]), ("disturbed", ~frame["clean"])):
        spread = np.sort([_spread(s) for s in frame["samples"][mask & frame["error"].isna()] if len(s) >= 3])
        if len(spread):
            axes.step(100 * spread, np.arange(1, len(spread) + 1) / len(spread), where="post", label=f"{label} ({len(spread)})")
    axes.set(xscale="symlog", xlabel="distance of the quartiles, % of the median", ylabel="share of candidates", ylim=(0, 1))
    axes.set_title("Noise of the times")
    _legend(axes)
    return figure


_PICTURES = {"slowdown": slowdown, "outcomes": outcomes, "noise": noise}


def _tasks(table: RecordTable) -> list[tuple[str, Int64Array]]:
    """The tasks with the most records, by name; with several targets, the processor is appended."""
    several = table.frame["target"].nunique() > 1
    found = []
    for (name, _, target), lines in groups(table.frame, ["name", "workload", "target"]).items():
        processor = str(table.targets.get(target, {}).get("mcpu", "?"))
        found.append((escaped(f"{name} @ {processor}" if several else name), lines))
    return sorted(sorted(found, key=lambda t: -len(t[1]))[:MOST_TASKS], key=lambda t: t[0])


def _spread(samples: Sequence[float]) -> float:
    low, middle, high = np.percentile(samples, (25, 50, 75))
    return float((high - low) / middle)


def _figure(height: float = 4.5) -> tuple[Figure, Axes]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "plotting a data set") from None
    figure = Figure(figsize=(9, max(height, 2.5)), layout="constrained")
    return figure, figure.subplots()


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="x-small", loc="best")
    axes.grid(alpha=0.3)


def _saved(draw: Callable[[RecordTable], Figure], table: RecordTable, path: Path) -> Path:
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "plotting a data set") from None

    # No date and no random names of clip paths, for reproducible bytes.  Names of logs must not be parsed as formulas.
    with matplotlib.rc_context({"svg.hashsalt": "tunesmith", "text.parse_math": False}), atomic_file.replacing(path) as file:
        kind = path.suffix.removeprefix(".")
        draw(table).savefig(file, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
    return path
