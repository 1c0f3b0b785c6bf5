"""Report a comparison of searches: `python experiments/metaschedule/report.py OUT.jsonl FIGURE.svg` draws the curves and prints a table.

Args of the command line: the lines that `run.py` wrote, and the file of the figure.  The table is Markdown: ratios of TVM's time to
tunesmith's after each number of trials, timed in turns, and the seconds of both searches.  Equal lines give equal files.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunesmith.experiments.arena.plots import SETTINGS, line_style
from tunesmith.support import atomic_file, json_lines
from tunesmith.support.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SYSTEMS = ("tunesmith", "tvm")
COLUMNS = 2
"""Charts side by side."""
Line = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Draw the figure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path)
    parser.add_argument("figure", type=Path)
    given = parser.parse_args(arguments)
    lines: list[Line] = [line for _, line in json_lines.read(given.lines)]  # type: ignore[misc]
    draw(lines, given.figure)
    print(table(lines))
    return 0


def table(lines: Sequence[Line]) -> str:
    """A Markdown table with a row for each workload and their geometric means."""
    counts = sorted({int(name.split()[1]) for line in lines for name in line["us"]})
    rows = [["workload", *[f"{n} trials" for n in counts], "tunesmith, s", "TVM, s"], ["---", *["---:"] * (len(counts) + 2)]]
    for line in lines:
        seconds = line["search_s"]
        ratios = [_ratio(line, n) for n in counts]
        rows.append([f"`{line['workload']}`", *["" if r is None else f"{r:.2f}" for r in ratios], *_seconds(seconds)])
    means = [statistics.geometric_mean([r for line in lines if (r := _ratio(line, n)) is not None]) for n in counts]
    rows.append(["geometric mean", *[f"{m:.2f}" for m in means], "", ""])
    return "\n".join([f"| {' | '.join(row)} |" for row in rows])


def _ratio(line: Line, trials: int) -> float | None:
    times = [line["us"].get(f"{system} {trials}") for system in ("tvm", "tunesmith")]
    return None if None in times else times[0] / times[1]


def _seconds(seconds: dict[str, float]) -> list[str]:
    return [f"{seconds[system]:.0f}" if system in seconds else "" for system in SYSTEMS]


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


if __name__ == "__main__":
    sys.exit(main())
