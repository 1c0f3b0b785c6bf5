"""Plot an arena as SVG: median curves of each pool with intervals, and the ranking.  Equal data give equal files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tunesmith.experiments.arena.report import ArenaSummary
from tunesmith.support import atomic_file
from tunesmith.support.errors import MissingExtraError, UserError
from tunesmith.support.escaped_text import escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours that colour-blind readers distinguish (Okabe and Ito, Color Universal Design, 2008), without yellow, too light on white."""
LINES = ("solid", "dashed", "dotted")
"""Line styles; series beyond the number of colours repeat the colours with the next style."""
SETTINGS: dict[str, Any] = {
    "axes.prop_cycle": f"cycler('color', {list(COLOURS)})",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.sans-serif": ["DejaVu Sans"],  # part of matplotlib, so that the layout does not depend on installed fonts
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "tunesmith",  # no random ids
    "text.parse_math": False,  # names from files may contain dollar signs
}
"""Settings of matplotlib for reproducible and readable SVG."""


def line_style(series: int) -> dict[str, Any]:
    """Colour and line style of a series, by names that matplotlib and CSS share."""
    return {"color": COLOURS[series % len(COLOURS)], "linestyle": LINES[series // len(COLOURS) % len(LINES)]}


def plot_arena(summary: ArenaSummary, folder: Path) -> list[Path]:
    """Draw `curves-<number>-<pool>.svg` for each pool, and `ranking.svg`.

    Args:
        summary: the result of `report.summarise`.
        folder: folder of the files; created if missing.
    Returns:
        The paths of the files.
    Raises:
        MissingExtraError: matplotlib is not installed.
        UserError: a file cannot be written.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "plotting an arena") from None
    pages: list[tuple[str, Callable[[Axes], None]]] = []
    for i, pool in enumerate(summary.run.pools):
        slug = re.sub(r"[^\w]+", "-", pool.name).strip("-")[:60]
        pages.append((f"curves-{i}-{slug}.svg", lambda axes, i=i: _curves(axes, summary, i)))  # type: ignore[misc]
    if summary.ranking:
        pages.append(("ranking.svg", lambda axes: _ranking(axes, summary)))
    out: list[Path] = []
    with rc_context(SETTINGS):
        for name, draw in pages:
            figure = Figure(figsize=(8, 5), layout="constrained")
            draw(figure.add_subplot())
            out.append(folder / name)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with atomic_file.replacing(out[-1]) as file:
                    figure.savefig(file, format="svg", metadata={"Date": None})
            except OSError as error:
                raise UserError(f"cannot write {out[-1]}: {error.strerror or error}") from error
    return out


def _curves(axes: Axes, summary: ArenaSummary, at: int) -> None:
    """Plot best so far over the pool's best, against trials."""
    from matplotlib.ticker import LogFormatter

    pool = summary.run.pools[at]
    for s in summary.standings:
        if s.pool != at:
            continue
        median, low, high = (np.where(np.isfinite(c), c / pool.best, np.nan) for c in s.curve)
        axes.plot(s.trials, median, label=escaped(summary.labels[s.method]), **line_style(s.method))
        axes.fill_between(s.trials, low, high, color=f"C{s.method}", alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(LogFormatter(minor_thresholds=(1.0, 0.5)))  # plain numbers where they fit
    axes.set_xlabel("trials")
    axes.set_ylabel("best so far / best of the pool")
    axes.set_title(f"{escaped(pool.name)}\nmedians of {summary.run.seeds} seeds, {summary.level:.0%} intervals", fontsize="medium")
    axes.legend(fontsize="small", frameon=False)


def _ranking(axes: Axes, summary: ArenaSummary) -> None:
    """Plot geometric mean slowdowns with intervals, best on top."""
    places = np.arange(len(summary.ranking))
    for place, r in zip(places, summary.ranking, strict=True):
        color = f"C{r.method}"
        axes.plot([r.slowdown.low, r.slowdown.high], [place, place], color=color, linewidth=3, alpha=0.4)
        axes.plot([r.slowdown.value], [place], "o", color=color)
    axes.set_yticks(places, [escaped(summary.labels[r.method]) for r in summary.ranking])
    axes.invert_yaxis()
    axes.set_xlabel(f"geometric mean slowdown along the search, {summary.level:.0%} intervals")
    axes.set_title(f"ranking over {len(summary.run.pools)} {'pool' if len(summary.run.pools) == 1 else 'pools'}", fontsize="medium")
