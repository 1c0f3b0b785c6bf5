"""Tabulate measured functions: `python experiments/functions/table.py OUT.jsonl [OTHER.jsonl] [--least]`.

Ratios are the time of torch over ours: above 1 ours is faster.  With two files, the change from the first to the second is added.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from tunesmith.experiments.functions.run import Line, read

UNTUNED_MARKS = (2.0, 5.0)
"""Untuned: times of torch eager that the geometric mean and each function may take."""
TUNED_MARKS = (1.3, 0.8)
"""Tuned: ratios to torch eager that the geometric mean and each function must reach."""

SYSTEMS = ("ours", "first", "eager", "inductor")
PAIRS = (("eager", "ours"), ("inductor", "ours"), ("eager", "first"))
RANKED = 8
"""Candidates without which a rank correlation says nothing."""


def main(arguments: list[str] | None = None) -> None:
    """Print the table of one file, or of two and their difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--least", action="store_true", help="compare least times instead of medians")
    given = parser.parse_args(arguments)
    if len(given.files) > 2:
        parser.error("pass one file, or two to compare")
    if missing := [str(path) for path in given.files if not path.exists()]:
        parser.error(f"there is no {', '.join(missing)}; run.py writes it")
    statistic = "least" if given.least else "median"
    found = [read(path) for path in given.files]
    for lines in found:
        print(table(lines, statistic))
    if len(found) == 2:
        print(change(*found, statistic))


def table(lines: Sequence[Line], statistic: str = "median") -> str:
    """A row for each function, the slowest against torch eager first, then the summary and the errors."""
    known = sorted(lines, key=lambda line: (ratio(line, "eager", "ours", statistic) or 0.0, line["name"]))
    times, ratios = [f"{system} us" for system in SYSTEMS], [f"{slow}/{fast}" for slow, fast in PAIRS]
    head = ("function", *times, *ratios, "rank", "sketch (or their number)")
    return "\n".join([*_aligned([head, *[_row(line, statistic) for line in known]]), "", *summary(lines, statistic), *_notes(known)])


def summary(lines: Sequence[Line], statistic: str = "median") -> list[str]:
    """Geometric means, the numbers of functions beyond the marks, and how well the analytic model ranks."""
    out = [f"{len(lines)} functions, {sum(not line.get('clean', False) for line in lines)} of them noisy or without times"]
    for fast in ("ours", "first"):
        for slow in ("eager", "inductor"):
            found = _ratios(lines, slow, fast, statistic)
            if found:
                mean = statistics.geometric_mean(found)
                out.append(f"{slow} / {fast}: geometric mean {mean:.3f} of {len(found)}, least {min(found):.3f}")
    for fast in ("ours", "first"):
        found = _ratios(lines, "eager", fast, statistic)
        over, under = [sum(1 / r > mark for r in found) for mark in UNTUNED_MARKS], [sum(r < mark for r in found) for mark in TUNED_MARKS]
        slower = ", ".join([f"{n} over {mark:g} x eager" for n, mark in zip(over, UNTUNED_MARKS, strict=True)])
        faster = ", ".join([f"{n} under {mark:g}" for n, mark in zip(under, TUNED_MARKS, strict=True)])
        out.append(f"{fast}: {slower}; of the ratios {faster}; of {len(found)}")
    without = sum(not line.get("sketches") for line in lines)
    out.append(f"spaces: {sum(line.get('fallback', False) for line in lines)} of the fallback rule, {without} functions without a space")
    ranks = [line["rank_correlation"] for line in lines if "rank_correlation" in line and line["candidates"] >= RANKED]
    if ranks:
        out.append(f"rank correlation of the analytic model: median {statistics.median(ranks):.2f} of {len(ranks)}, least {min(ranks):.2f}")
    choices = _ratios([line for line in lines if line["mode"] == "tuned"], "first", "ours", statistic)
    if choices:
        out.append(f"first choice / tuned: median {statistics.median(choices):.2f} of {len(choices)}, worst {max(choices):.2f}")
    return out


def change(before: Sequence[Line], after: Sequence[Line], statistic: str = "median") -> str:
    """The ratio to torch eager of each function in both files, the largest loss first."""
    old = {line["name"]: ratio(line, "eager", "ours", statistic) for line in before}
    new = {line["name"]: ratio(line, "eager", "ours", statistic) for line in after}
    both = sorted([(new[n] / old[n], n) for n in old if old[n] and new.get(n)])  # type: ignore[operator]
    rows = [(n, _number(old[n]), _number(new[n]), f"{c:.3f}") for c, n in both]
    lines = _aligned([("function", "eager/ours before", "after", "change"), *rows])
    if both:
        lines += ["", f"change: geometric mean {statistics.geometric_mean([c for c, _ in both]):.3f} of {len(both)}"]
    lines += [f"! {n}: no time before" for n in new if new[n] and not old.get(n)]
    return "\n".join([*lines, *[f"! {n}: no time after" for n in old if old[n] and not new.get(n)]])


def ratio(line: Line, slow: str, fast: str, statistic: str) -> float | None:
    """The time of one system over that of another; None unless both have one."""
    times = line.get("us", {})
    return times[slow][statistic] / times[fast][statistic] if slow in times and fast in times else None


def _ratios(lines: Sequence[Line], slow: str, fast: str, statistic: str) -> list[float]:
    return [r for line in lines if (r := ratio(line, slow, fast, statistic)) is not None]


def _row(line: Line, statistic: str) -> tuple[str, ...]:
    times = [line.get("us", {}).get(system, {}).get(statistic) for system in SYSTEMS]
    ratios = [_number(ratio(line, *pair, statistic)) for pair in PAIRS]
    sketch = line.get("sketch") or ("fallback" if line.get("fallback") else f"({line.get('sketches', 0)})")
    return (line["name"], *["-" if t is None else f"{t:.1f}" for t in times], *ratios, _number(line.get("rank_correlation")), sketch)


def _notes(lines: Sequence[Line]) -> list[str]:
    notes = [f"! {line['name']}: {system}: {message.splitlines()[0][:300]}" for line in lines for system, message in line["errors"].items()]
    notes += [f"! {line['name']}: tune: {line['tune_failure'][:300]}" for line in lines if "tune_failure" in line]
    notes += [f"! {c[:300]}" for line in lines for c in line.get("coverage", []) if ": record " not in c]
    return notes + [f"! {line['name']}: space: {line['space_error'][:300]}" for line in lines if "space_error" in line]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=True)]) + " |" for row in rows]
    return [lines[0], "|" + "|".join(["-" * (width + 2) for width in widths]) + "|", *lines[1:]]


if __name__ == "__main__":
    main()
