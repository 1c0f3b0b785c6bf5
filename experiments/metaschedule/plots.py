"""Curves of two searches: the best time after each trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunesmith.experiments.arena.plots import SETTINGS, line_style
from tunesmith.support import atomic_file
from tunesmith.support.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SYSTEMS = ("tunesmith", "tvm")
COLUMNS = 2
"""Charts side by side."""
Line = dict[str, Any]


def draw(lines: Sequence[Line], path: Path) -> None:
    """Draw the best time after each trial as steps, one chart for each workload with curves.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "drawing the curves") from None
    drawn = [line for line in lines if "curve_us" in line]
    rows = max(1, math.ceil(len(drawn) / COLUMNS))
    with rc_context({**SETTINGS, "font.size": 8}):
        figure = Figure(figsize=(4.4 * COLUMNS, 2.1 * rows), layout="constrained")
        for i, line in enumerate(drawn):
            _curves(figure.add_subplot(rows, COLUMNS, i + 1), line)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file.replacing(path) as file:
            figure.savefig(file, format="svg", metadata={"Date": None})


def _curves(axes: Axes, line: Line) -> None:
    """The curves of a workload; both axes are logarithmic."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for i, system in enumerate(SYSTEMS):
        points = [(n + 1, us) for n, us in enumerate(line["curve_us"][system]) if us is not None]
        axes.plot(*zip(*points, strict=True), drawstyle="steps-post", label=system, **line_style(i)) if points else None
    axes.set_title(line["workload"])
    axes.set(xlabel="trials", ylabel="us")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.legend(frameon=False)
