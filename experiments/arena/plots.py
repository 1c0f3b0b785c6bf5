"""Plot an arena as SVG: median curves of each pool with intervals, and the ranking.  Equal data give equal files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tunesmith.experiments.arena.report import ArenaSummary
from tunesmith.support import atomic_file
from tunesmith.support.errors import MissingExtraError, UserError
from tunesmith.support.escaped_text import escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours that colour-blind readers distinguish (Okabe and Ito, Color Universal Design, 2008), without yellow, too light on white."""
LINES = ("solid", "dashed", "dotted")
"""Line styles; series beyond the number of colours repeat the colours with the next style."""
SETTINGS: dict[str, Any] = {
    "axes.prop_cycle": f"cycler('color', {list(COLOURS)})",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.3,
    "font.sans-serif": ["DejaVu Sans"],  # part of matplotlib, so that the layout does not depend on installed fonts
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "tunesmith",  # no random ids
    "text.parse_math": False,  # names from files may contain dollar signs
}
"""Settings of matplotlib for reproducible and readable SVG."""


def line_style(series: int) -> dict[str, Any]:
    """Colour and line style of a series, by names that matplotlib and CSS share."""
    return {"color": COLOURS[series % len(COLOURS)], "linestyle": LINES[series // len(COLOURS) % len(LINES)]}


def draw_band(axes: Axes, x: ArrayLike, low: ArrayLike, high: ArrayLike, series: int, step: Literal["post"] | None = None) -> None:
    """Draw the interval of a curve: a light fill with thin edges, which stay distinct where the bands of many series overlap.

    Args:
        axes: the axes.
        x, low, high: points of the bounds, of equal length; NaN leaves a gap.
        series: index of the series, see `line_style`.
        step: "post" if the curve is drawn in steps.
    """
    from matplotlib.colors import to_rgba

    style = line_style(series)
    fill, edge = to_rgba(style["color"], 0.08), to_rgba(style["color"], 0.45)
    axes.fill_between(x, low, high, step=step, facecolor=fill, edgecolor=edge, linewidth=0.5, linestyle=style["linestyle"])


def legend_beside(axes: Axes) -> None:
    """Put the legend to the right of the axes, where it covers no curve; save the figure with `bbox_inches="tight"`."""
    axes.legend(
        *axes.get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0, fontsize="small", frameon=False
    )


def slug(name: str) -> str:
    """A name as part of a file name: letters, digits and `-`, at most 60 characters."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:60]


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
        pages.append((f"curves-{i}-{slug(pool.name)}.svg", lambda axes, i=i: _curves(axes, summary, i)))  # type: ignore[misc]
    if summary.ranking:
        pages.append(("ranking.svg", lambda axes: _ranking(axes, summary)))
    out: list[Path] = []
    with rc_context(SETTINGS):
        for name, draw in pages:
            figure = Figure(figsize=(8, 5))
            draw(figure.add_subplot())
            out.append(folder / name)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with atomic_file.replacing(out[-1]) as file:
                    figure.savefig(file, format="svg", metadata={"Date": None}, bbox_inches="tight")
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
        draw_band(axes, s.trials, low, high, s.method)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(LogFormatter(minor_thresholds=(1.0, 0.5)))  # plain numbers where they fit
    axes.set_xlabel("trials")
    axes.set_ylabel("best so far / best of the pool")
    axes.set_title(f"{escaped(pool.name)}\nmedians of {summary.run.seeds} seeds, {summary.level:.0%} intervals", fontsize="medium")
    legend_beside(axes)


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
