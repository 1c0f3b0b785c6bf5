"""Report a comparison of searches: `python experiments/metaschedule/report.py OUT.jsonl FIGURE.svg` draws the curves and prints a table.

Args of the command line: the lines that `run.py` wrote, and the file of the figure.  The table is Markdown: ratios of TVM's time to
tunesmith's after each number of trials, timed in turns, and the seconds of both searches.  Equal lines give equal files.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunesmith.experiments.metaschedule.plots import SYSTEMS, draw
from tunesmith.support import json_lines

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


if __name__ == "__main__":
    sys.exit(main())
